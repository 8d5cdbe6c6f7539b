"""Invalid arguments of the benchmarks end in a one-line error and leave no files.

A row is a benchmark with its arguments and a part of the message. {file} is a file, {folder} a folder, and
{missing} does not exist.
"""

import json
import shutil
from importlib import import_module

import pytest
from labelled_data import write_text_dataset
from tiny import preprocess, run_here

from fairseq_lrpe.benchmarks import decoding, linear_attention, speed, zero_padding

COMMON = dict.fromkeys(["--rounds", "--layers"], 1) | {"--vocab-size": 5}
MINIMUM = {
    "linear_attention": COMMON
    | dict.fromkeys(["--lengths", "--heads", "--width", "--positions", "--model-lengths"], 1),
    "decoding": COMMON | dict.fromkeys(["--length", "--batch-size", "--beam"], 1),
    "gpu_check": {"--minutes": 1, "--lengths": 1},
    "images": {"--rounds": 1, "--batch-size": 2, "--image-size": 1},
    "memory": COMMON
    | dict.fromkeys(["--streams", "--length", "--heads", "--ffn", "--segments"], 1)
    | {"--width": 2},
    "options": COMMON | {"--batch-size": 1, "--length": 2},
    "sampling": COMMON | {"--length": 1, "--memory-length": 10},
    "speed": COMMON | {"--batch-size": 1, "--length": 2},
}
"""{benchmark: {option: its least value}}"""

BENCHMARKS = [*MINIMUM, "figures", "zero_padding"]
SMALL = {
    "decoding": "--layers 1 --batch-size 1 --beam 1 --rounds 1 --attention linear",
    "speed": "--layers 1 --batch-size 1 --rounds 1 --attention linear --methods base --vocab-size 9",
}
TOO_LARGE = 10**15
BLOCKED = ["{file}", "{file}/below", "/dev/null/below", "/proc/far/below"]
CHOICES = [
    ("--methods nosuch", "invalid choice: 'nosuch'"),
    ("--methods", "expected at least one argument"),
    ("--attention nosuch", "invalid choice: 'nosuch'"),
    ("--attention linear --methods t5", "t5 only works with softmax attention"),
    (f"--length {TOO_LARGE}", "out of memory: try smaller sizes"),
]
PATHS = {
    "figures": "--out",
    "gpu_check": "--out",
    "zero_padding": "--out",
    "linear_attention": "--plot",
    "decoding": "--data",
    "images": "--from",
}
CALLS = [
    *(
        (f"{name} {option} {number}", f"{option}: must be an integer of at least {least}, not '{number}'")
        for name, options in MINIMUM.items()
        for option, least in options.items()
        for number in (least - 1, "-3", "1.5", "x")
    ),
    *((f"{name} {word}", f"unrecognized arguments: {word}") for name in BENCHMARKS for word in ("--no", "x")),
    *((f"{name} {SMALL[name]} {words}", message) for name in SMALL for words, message in CHOICES),
    ("memory --attention linear --methods xl", "xl only works with softmax attention"),
    ("memory --width 9 --heads 2 --methods rope", "the embed dim 9 is not divisible by 2 attention heads"),
    ("options --families nosuch", "invalid choice: 'nosuch'"),
    ("options --families images --length 33", "--image-size 33 is not divisible by --patch-size 16"),
    ("speed --family nosuch", "invalid choice: 'nosuch'"),
    *(
        (f"{name} {option}=", f"argument {option}: must be a path, not an empty string")
        for name, option in PATHS.items()
    ),
    *(
        (f"{name} {PATHS[name]} {path}{'/x.png' * (PATHS[name] == '--plot')}", "is not a writable folder (")
        for name in ("figures", "gpu_check", "zero_padding", "linear_attention")
        for path in BLOCKED
    ),
    *(
        (f"linear_attention --plot {{folder}}{name}", "must be a file that ends in .png, .pdf or .svg")
        for name in ("", "/x", "/x.doc")
    ),
    *(
        (f"decoding --data {{{path}}}", "has no binarized test split")
        for path in ("file", "folder", "missing")
    ),
    *(
        (f"images --from {{{path}}}", "is not a folder with images: expected .jpg")
        for path in ("file", "folder", "missing")
    ),
    *(
        (f"figures --out {{folder}}/out --data {{{path}}}", "has no texts for the task classification: `bash")
        for path in ("file", "folder", "missing")
    ),
    ("figures --data", "expected at least one argument"),
    ("figures --data=", "argument --data: must be a path, not an empty string"),
    (f"linear_attention --lengths {TOO_LARGE} --plot {{folder}}/far/x.png", "memory"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name in ("train.en", "train.de", "test.en", "test.de"):
        (folder / name).write_text("a b c\n" * 9)
    words = ["-s", "en", "-t", "de", "--trainpref", folder / "train", "--testpref", folder / "test"]
    preprocess(*words, "--destdir", folder / "bin", "--workers", 1)
    return folder / "bin"


def check_error(call, message, folder):
    """Runs a benchmark that is expected to fail, and checks its message and that it leaves no files."""
    name, *words = call.split()
    before = sorted(folder.rglob("*"))
    done = run_here(import_module(f"fairseq_lrpe.benchmarks.{name}").main, *words)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0 and message in last, done.stderr
    assert "Traceback" not in done.stderr and "gpu_check: machine" not in done.stdout
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_invalid_arguments(call, message, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    places = {name: tmp_path / name for name in ("file", "folder", "missing")}
    check_error(call.format(**places), message, tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("test.en-de.de.bin", b"foreign", "has 7 bytes instead of the"),
        ("test.en-de.en.idx", b"foreign", "is not fairseq's binarized text"),
        ("test.en-de.de.idx", None, "test.en-de.de lacks .bin or .idx"),
        ("dict.en.txt", None, "dict.en.txt cannot be read"),
    ],
)
def test_damaged_data(name, content, message, data, tmp_path):
    folder = shutil.copytree(data, tmp_path / "bin")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    check_error(f"decoding {SMALL['decoding']} --data {folder}", message, tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("about.json", b"{}", "about.json is missing or damaged"),
        ("about.json", None, "has no texts for the task classification"),
        ("train.input0.bin", b"foreign", "has 7 bytes instead of the"),
        ("train.label.npy", None, "train.label.npy cannot be read"),
        ("dict.txt", None, "dict.txt cannot be read"),
    ],
)
def test_damaged_texts(name, content, message, tmp_path):
    folder = write_text_dataset(tmp_path / "data")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    check_error(f"figures --out {tmp_path}/out --data {folder}", message, tmp_path)


def test_figures_of_image_files(tmp_path):
    folder = write_text_dataset(tmp_path / "data")
    about = json.loads((folder / "about.json").read_text())
    (folder / "about.json").write_text(json.dumps({**about, "images": True}))
    call = f"figures --out {tmp_path}/out --data {folder}"
    check_error(call, "has no texts for the task classification", tmp_path)


def test_a_folder_with_the_name_of_a_plot(tmp_path, monkeypatch):
    monkeypatch.setattr(zero_padding, "GRIDS", {"8 positions": ((8,), 4)})
    monkeypatch.setattr(zero_padding, "DEPTHS", (1,))
    for name, plot in (("figures", "prior_matrices.png"), ("zero_padding", "zero_padding.png")):
        (tmp_path / plot).mkdir()
        message = f"{plot} cannot be read or written (Is a directory)"
        check_error(f"{name} --out {tmp_path}", message, tmp_path)
    message = "must be a file that ends in .png"
    check_error(f"linear_attention --plot {tmp_path}/prior_matrices.png", message, tmp_path)


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        (speed, "compare", SMALL["speed"]),
        (decoding, "compare", SMALL["decoding"]),
        (linear_attention, "measure", "--plot {folder}/far/x.png"),
        (zero_padding, "measure", "--out {folder}/far"),
    ],
)
def test_interruption(module, name, words, monkeypatch, tmp_path):
    monkeypatch.setattr(module, name, lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    name = module.__name__.rsplit(".", 1)[1]
    message = f"lrpe bench {name.replace('_', '-')}: interrupted"
    check_error(f"{name} {words.format(folder=tmp_path)}", message, tmp_path)
