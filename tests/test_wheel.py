"""The wheel: its content, and commands of a package that was installed from it, outside of a checkout."""

import shutil
import zipfile

import pytest
from support.tiny import BIN, REPOSITORY, run_command, succeeded

from fairseq_lrpe import __version__

pytestmark = pytest.mark.slow

WHEEL = f"fairseq_lrpe-{__version__}-py3-none-any.whl"
SMALL = (
    "updates=2 train.save_interval_updates=2 train.decoder_layers=1 train.decoder_embed_dim=8 "
    "train.decoder_ffn_embed_dim=8 train.decoder_attention_heads=2"
).split()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Returns the path of a wheel of this repository."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("fairseq_lrpe", "data_prep", "configs"):
        ignored = shutil.ignore_patterns("__pycache__", "cluster.yaml")
        shutil.copytree(REPOSITORY / name, folder / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, folder)
    (folder / "configs/cluster.yaml").write_text("partition: mine\n")  # local settings
    words = ["setup.py", "-q", "bdist_wheel", "--dist-dir", folder / "dist"]
    succeeded(run_command(BIN / "python", *words, folder=folder))
    [path] = (folder / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Returns the folder in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("site-packages")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def test_content(wheel):
    assert wheel.name == WHEEL
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = [path for part in ("fairseq_lrpe", "data_prep") for path in (REPOSITORY / part).rglob("*.py")]
    expected = {str(path.relative_to(REPOSITORY)) for path in modules}
    configs, templates = REPOSITORY.glob("configs/*/*.yaml"), REPOSITORY.glob("fairseq_lrpe/**/*.jinja")
    expected |= {f"fairseq_lrpe/{path.relative_to(REPOSITORY)}" for path in configs}
    expected |= {str(path.relative_to(REPOSITORY)) for path in templates}
    expected |= {"data_prep/sources.yaml", "fairseq_lrpe/py.typed"}
    expected |= {f"data_prep/grimm/{split}.txt" for split in ("train", "valid", "test")}
    assert {name for name in names if ".dist-info/" not in name} == expected


def test_commands_outside_of_a_checkout(installed, data_bin, tmp_path):
    options = {"folder": tmp_path, "PYTHONPATH": str(installed), "COLUMNS": "200"}
    words = ["-m", "fairseq_lrpe", "table", "quickstart", "--cpu"]
    done = run_command(BIN / "python", *words, **options)
    message = f"lm/quickstart is skipped: {tmp_path}/data/text/bin lacks dict.txt"
    assert done.returncode == 1 and message in done.stderr
    assert "`lrpe prepare text` prepares it" in done.stderr
    assert not list(tmp_path.iterdir())

    words += ["--methods", "rope", f"data={data_bin}", *SMALL]
    done = run_command(BIN / "python", *words, **options)
    assert done.returncode == 0 and "| linear | RoPE |" in done.stdout, done.stderr + done.stdout
    [record] = tmp_path.glob("results/lm/quickstart/linear_rope/**/evaluation.json")
    assert "perplexity" in record.read_text()
