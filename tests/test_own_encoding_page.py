"""The files and commands of docs/own_encoding.md, in an empty folder, with the package as a wheel has it."""

import os
import re
import shutil
import subprocess

import pytest
import tomllib
from omegaconf import OmegaConf
from support.documents import block, commands
from support.tiny import BIN, REPOSITORY, SMALL_LM, run_command, write_text

pytestmark = pytest.mark.slow

PAGE = REPOSITORY / "docs/own_encoding.md"
NAMES = ("mine", "hinge", "open_gate", "value_rope")
SMALL = [*SMALL_LM, "updates=2", "train.warmup_updates=1", "train.log_interval=1"]
SMALL += ["train.validate_interval_updates=1", "train.save_interval_updates=1", "seeds=[1]"]
TINY = (
    "--cpu --max-update 1 --decoder-layers 1 --decoder-embed-dim 16 --decoder-ffn-embed-dim 16 "
    "--decoder-attention-heads 2 --num-workers 0 --data-buffer-size 0 --required-batch-size-multiple 1"
)
LINEAR = re.compile(r"\| linear \| Mine \| \**\d+\.\d\d \(1\)\** \| \**\d+\.\d\d \(1\)\** \|")
FOUR = """
title: The four encodings of the page
experiment: lm/own
columns: {test: {evaluation: test}}
rows:
  - {row: Mine, attention: linear, method: mine}
  - {row: Hinge, attention: softmax, method: hinge}
  - {row: Gate, attention: linear, method: open_gate}
  - {row: Values, attention: softmax, method: value_rope}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Returns a folder with the modules of a wheel."""
    site = tmp_path_factory.mktemp("site")
    ignored = shutil.ignore_patterns("__pycache__", "cluster.yaml")
    for name in ("fairseq_lrpe", "data_prep"):
        shutil.copytree(REPOSITORY / name, site / name, ignore=ignored)
    shutil.copytree(REPOSITORY / "configs", site / "fairseq_lrpe/configs", ignore=ignored)
    return site


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Returns the reader's folder: the files of the page, with a smaller model, and a text."""
    place = tmp_path_factory.mktemp("place")
    for name in NAMES:
        (place / f"{name}.py").write_text(block("python", f'@register_encoding("{name}"'))
    (place / "configs/lm").mkdir(parents=True)
    (place / "configs/tables").mkdir()
    shown = OmegaConf.create(block("yaml", "updates: 500\nevaluations: {valid"))
    OmegaConf.save(OmegaConf.merge(shown, OmegaConf.from_dotlist(SMALL)), place / "configs/lm/own.yaml")
    (place / "configs/tables/own.yaml").write_text(block("yaml", "experiment: lm/own"))
    (place / "configs/tables/four.yaml").write_text(FOUR)
    (place / "my_text").mkdir()
    write_text(place / "my_text")
    return place


@pytest.fixture(scope="module")
def shell(site, place):
    """Returns a function that runs a command of the page with further arguments and variables."""

    def shell(line, more="", **variables):
        path = f"{BIN}:{os.environ['PATH']}"
        imported = os.pathsep.join([*variables.pop("packages", ()), str(site)])
        variables = {"PATH": path, "PYTHONPATH": imported, "CUDA_VISIBLE_DEVICES": "", **variables}
        line = line.replace("--user-dir fairseq_lrpe", f"--user-dir {site}/fairseq_lrpe")
        command = ["bash", "-c", f"{line} {more}"]
        environment = {**os.environ, **variables}
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    return shell


@pytest.fixture(scope="module")
def trained(shell):
    """Runs the commands of the page that prepare the text and train; returns the printed table."""
    for start in ("lrpe prepare text", "lrpe train lm/quickstart mine"):
        shell(shown(start), " ".join(SMALL) if "train" in start else "")
    return shell(shown("lrpe table own"))


def shown(start):
    """Returns the only command of the page with a beginning."""
    [line] = [line for line in commands([PAGE]) if line.startswith(start)]
    return line


def test_encodings_are_short():
    for name in NAMES:
        assert len(block("python", f'@register_encoding("{name}"').splitlines()) <= 26


@pytest.mark.exhaustive
def test_table_plot_report_and_atlas_have_the_method(shell, trained, place):
    assert "| linear | RoPE |" in trained and LINEAR.search(trained), trained
    again = shell(shown("lrpe results --table own"))
    assert LINEAR.search(again) and "| softmax | Mine in softmax attention |" in again
    for name in ("own.png", "columns.png"):
        assert (place / name).read_bytes().startswith(b"\x89PNG")
    for command in ("lrpe report --import mine.py", shown("lrpe report --import mine.py --results")):
        shell(command)
    report = (place / "results/report.html").read_text()
    assert "My encoding beside RoPE" in report and "linear_mine" in report
    atlas = (place / "atlas.html").read_text()
    card = atlas.partition('id="card-mine"')[2].partition("</section>")[0]
    assert "with learned θ_t" in card and "Someone 2026, Eq. 7" in card and "--mine-speed" in card
    assert re.search(r"own: test</th>\s*<td data-value", card), card


@pytest.mark.exhaustive
def test_all_four_train_together(shell, trained):
    imports = " ".join(f"--import {name}" for name in NAMES)
    table = shell(f"lrpe table four --cpu {imports}")
    assert len(re.findall(r"^\| (?:linear|softmax) \| \w+ \| \**\d+\.\d\d \(1\)", table, re.MULTILINE)) == 4


def test_fairseq_trains_with_the_variable(shell, trained):
    assert "mine" in shell("lrpe methods", LRPE_IMPORT="mine.py")
    shell(shown("fairseq-train"), TINY, LRPE_IMPORT="mine.py")
    validated = (
        "fairseq-eval-lm data/text/bin --user-dir fairseq_lrpe --path checkpoints/mine/checkpoint_best.pt"
    )
    shell(validated, "--cpu --tokens-per-sample 32", LRPE_IMPORT="./mine.py")


def test_installed_package_needs_no_option(shell, trained, tmp_path):
    project = tomllib.loads(block("toml", "[project.entry-points."))
    installed = tmp_path / "site-packages"
    info = installed / "my_encodings-0.1.dist-info"
    info.mkdir(parents=True)
    [(group, modules)] = project["project"]["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {module}" for name, module in modules.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-encodings\nVersion: 0.1\n")
    for module in project["tool"]["setuptools"]["py-modules"]:
        (installed / f"{module}.py").write_text(block("python", f'@register_encoding("{module}"'))
    options = {"packages": [str(installed)]}
    shell(shown("fairseq-train"), TINY, **options)
    # The runs that --import trained are finished.
    assert LINEAR.search(shell("lrpe table own --cpu", **options))


def test_encodings_pass_the_contract(place):
    variable, *_ = shown("LRPE_IMPORT=").split()
    assert variable == "LRPE_IMPORT=/path/to/mine.py"
    files = ",".join(str(place / f"{name}.py") for name in NAMES)
    program = (
        f"import pytest; [pytest.main(['-q', 'tests/test_contract.py', '--encoding', x]) for x in {NAMES}]"
    )
    done = run_command(BIN / "python", "-c", program, LRPE_IMPORT=files, PYTHONPATH=str(REPOSITORY))
    results = re.findall(r"^=* ?(\d+) passed(?:, \d+ warnings?)? in", done.stdout, re.MULTILINE)
    assert len(results) == len(NAMES) and min(map(int, results)) >= 12, done.stdout[-3000:]
