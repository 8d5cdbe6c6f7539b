"""Wrong calls of the measuring programs get one sentence, and leave nothing behind.

A row is the program with its words, and a part of the sentence; {file} is a file, {folder} a folder, and
{nowhere} is not there.
"""

import shutil

import pytest
from tiny import preprocess, run_here

from fairseq_lrpe.measure import benchmark, decoding, figures, gpu_check, images, memory, speed, zero_padding

PROGRAMS = {
    "benchmark": benchmark.main,
    "decoding": decoding.main,
    "figures": figures.main,
    "gpu_check": gpu_check.main,
    "images": images.main,
    "memory": memory.main,
    "speed": speed.main,
    "zero_padding": zero_padding.main,
}
NUMBERS = {
    "benchmark": {
        **dict.fromkeys(["--lengths", "--heads", "--width", "--rounds", "--positions", "--layers"], 1),
        **{"--model-lengths": 1, "--vocab-size": 5},
    },
    "decoding": {**dict.fromkeys(["--length", "--batch-size", "--beam", "--rounds", "--layers"], 1)}
    | {"--vocab-size": 5},
    "gpu_check": {"--minutes": 1, "--lengths": 1},
    "images": {"--rounds": 1, "--batch-size": 2, "--image-size": 1},
    "memory": {
        **dict.fromkeys(
            ["--streams", "--length", "--layers", "--heads", "--ffn", "--rounds", "--segments"], 1
        ),
        **{"--rounds": 1, "--width": 2, "--vocab-size": 5},
    },
    "speed": {**dict.fromkeys(["--rounds", "--batch-size", "--layers"], 1), "--length": 2, "--vocab-size": 5},
}
"""{program: {option: the least number}}"""

SMALL = {
    "decoding": "--layers 1 --batch-size 1 --beam 1 --rounds 1 --attention linear",
    "speed": "--layers 1 --batch-size 1 --rounds 1 --attention linear --methods base --vocab-size 9",
}
HUGE = 10**15
"""Numbers of which no memory has as many."""

NO_FOLDER = "is no folder to write to ("
BLOCKED = ["{file}", "{file}/below", "/dev/null/below", "/proc/far/below"]
CALLS = [
    *(
        (f"{program} {option} {number}", f"{option}: must be a whole number from {least} on, not '{number}'")
        for program, options in NUMBERS.items()
        for option, least in options.items()
        for number in (least - 1, "-3", "1.5", "x")
    ),
    *((f"{program} --nosuch", "unrecognized arguments: --nosuch") for program in PROGRAMS),
    *((f"{program} surplus", "unrecognized arguments: surplus") for program in PROGRAMS),
    *((f"{program} --methods nosuch", "invalid choice: 'nosuch'") for program in SMALL),
    *((f"{program} --methods", "expected at least one argument") for program in SMALL),
    *((f"{program} --attention nosuch", "invalid choice: 'nosuch'") for program in SMALL),
    *((f"{program} --attention linear --methods t5", "t5 works in softmax attention") for program in SMALL),
    ("memory --attention linear --methods xl", "xl works in softmax attention alone"),
    ("memory --width 9 --heads 2 --methods rope", "the embed dim 9 is not divisible by 2 attention heads"),
    ("speed --family nosuch", "invalid choice: 'nosuch'"),
    *((f"figures --out {place}", NO_FOLDER) for place in BLOCKED),
    *((f"gpu_check --out {place}", NO_FOLDER) for place in BLOCKED),
    *((f"zero_padding --out {place}", NO_FOLDER) for place in BLOCKED),
    *((f"benchmark --plot {place}/x.png", NO_FOLDER) for place in BLOCKED),
    ("figures --out=", "argument --out: is empty: a path is needed"),
    ("gpu_check --out=", "argument --out: is empty: a path is needed"),
    ("zero_padding --out=", "argument --out: is empty: a path is needed"),
    ("benchmark --plot=", "argument --plot: is empty: a path is needed"),
    ("decoding --data=", "argument --data: is empty: a path is needed"),
    *((f"benchmark --plot {{folder}}/{name}", "must be a file that ends in .png") for name in ("x", "x.doc")),
    ("benchmark --plot {folder}", "must be a file that ends in .png, .pdf or .svg"),
    *(
        (f"decoding --data {{{place}}}", "holds no binarised test split")
        for place in ("file", "folder", "nowhere")
    ),
    *(
        (f"images --from {{{place}}}", "has no JPEGs: --from takes")
        for place in ("file", "folder", "nowhere")
    ),
    ("images --from=", "argument --from: is empty: a path is needed"),
    *((f"{program} {words} --length {HUGE}", "the memory is too small") for program, words in SMALL.items()),
    (f"benchmark --lengths {HUGE} --plot {{folder}}/far/x.png", "the memory"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name in ("train.en", "train.de", "test.en", "test.de"):
        (folder / name).write_text("a b c\n" * 9)
    words = ["-s", "en", "-t", "de", "--trainpref", folder / "train", "--testpref", folder / "test"]
    preprocess(*words, "--destdir", folder / "bin", "--workers", 1)
    return folder / "bin"


def refused(call, message, folder):
    """Makes a wrong call, and looks for its sentence and for what it leaves in the folder."""
    program, *words = call.split()
    before = sorted(folder.rglob("*"))
    done = run_here(PROGRAMS[program], *words)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0 and message in last, done.stderr
    assert "Traceback" not in done.stderr and sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_one_sentence(call, message, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    places = {name: tmp_path / name for name in ("file", "folder", "nowhere")}
    refused(call.format(**places), message, tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("test.en-de.de.bin", b"foreign", "has 7 bytes and its index says"),
        ("test.en-de.en.idx", b"foreign", "is no index of fairseq's binarised text"),
        ("test.en-de.de.idx", None, "test.en-de.de.idx missing"),
        ("dict.en.txt", None, "dict.en.txt missing"),
        ("dict.en.txt", "ä 1\n".encode("latin-1"), "dict.en.txt is no dictionary"),
        ("dict.en.txt", b"a 1\n", "and its dictionary 5 types"),
    ],
)
def test_damaged_data(name, content, message, data, tmp_path):
    folder = shutil.copytree(data, tmp_path / "bin")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    refused(f"decoding {SMALL['decoding']} --data {folder}", message, tmp_path)


def test_a_folder_in_the_place_of_a_picture(tmp_path):
    (tmp_path / "prior_matrices.png").mkdir()
    refused(
        f"figures --out {tmp_path}", "prior_matrices.png cannot be read or written (Is a directory)", tmp_path
    )
    refused(f"benchmark --plot {tmp_path}/prior_matrices.png", "must be a file that ends in .png", tmp_path)


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        (speed, "compare", SMALL["speed"]),
        (decoding, "compare", SMALL["decoding"]),
        (benchmark, "measure", "--plot {folder}/far/x.png"),
        (zero_padding, "measure", "--out {folder}/far"),
    ],
)
def test_an_interruption(module, name, words, monkeypatch, tmp_path):
    monkeypatch.setattr(module, name, lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    program = module.__name__.rsplit(".", 1)[1]
    refused(f"{program} {words.format(folder=tmp_path)}", f"{program}: interrupted", tmp_path)
