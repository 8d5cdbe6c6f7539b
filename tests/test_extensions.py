"""Modules outside the package that register encodings and methods: where they are found, and wrong ones."""

import pytest
from support.parameters import slow_after
from support.tiny import PLUGIN, REPOSITORY, TINY_EXTENSION, run_command, succeeded

from fairseq_lrpe import extensions
from fairseq_lrpe.experiments.execution.run_extension import code_digest, extension_differences
from fairseq_lrpe.methods import Method

METHOD = "from fairseq_lrpe.methods import register_method\n"
CLASS = """\
from fairseq_lrpe.encodings import Encoding, register_encoding


@register_encoding("{name}"{help})
class Own(Encoding):
    def __init__(self, {option}**shared):
        super().__init__(**shared)


"""


def lrpe(folder, *words, **variables):
    return run_command("python", "-m", "fairseq_lrpe", *words, folder=folder, **paths(variables))


def paths(variables):
    return {"PYTHONPATH": str(REPOSITORY), "LRPE_IMPORT": "", **variables}


FOUND = [
    ({"mine.py": TINY_EXTENSION}, "--import mine.py"),
    ({"mine.py": TINY_EXTENSION}, "--import=mine"),
    ({"mine.py": TINY_EXTENSION}, "--import ./mine.py"),
    ({"mine.py": TINY_EXTENSION}, "--import mine --import mine.py"),
    ({"own/__init__.py": "from own.mine import Mine\n", "own/mine.py": TINY_EXTENSION}, "--import own"),
    ({"own/__init__.py": "", "own/mine.py": TINY_EXTENSION}, "--import own/mine.py"),
    ({"own/mine.py": TINY_EXTENSION}, "--import own.mine"),
    ({"other.py": "SOURCE = 'x'\n", "mine.py": f"import other\n{TINY_EXTENSION}"}, "--import mine"),
    ({"mine.py": TINY_EXTENSION, "all.py": "import mine\n" + CLASS.format(name="b", help="", option="")},
     "--import mine,all"),
]  # fmt: skip


@pytest.mark.parametrize("files, words", slow_after(2, FOUND))
def test_modules_are_found(files, words, tmp_path):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    done = succeeded(lrpe(tmp_path, "methods", *words.split()))
    assert "--encoding mine" in done.stdout


WRONG = [
    ("", "registers nothing: decorate a class with @register_encoding(NAME)"),
    ("x = 1\nx.y\n", "/mine.py, line 2): AttributeError: 'int' object has no attribute 'y'"),
    ("def f(:\n", "/mine.py, line 1): SyntaxError: "),
    ("import nosuch\n", "/mine.py, line 1): ModuleNotFoundError: No module named 'nosuch'"),
    ("raise SystemExit('no')\n", "/mine.py, line 1): SystemExit: no"),
    (f"{METHOD}register_method('rope', {{}}, '')\n", "line 2): the method 'rope' exists already"),
    (f"{METHOD}register_method('iclr_type2', {{}}, '')\n", "the method 'iclr_type2' exists already"),
    (f"{METHOD}register_method('fairseq', {{}}, '')\n", "the name 'fairseq' is reserved"),
    (f"{METHOD}register_method('floater', {{}}, '')\n", "the name 'floater' is reserved"),
    (f"{METHOD}register_method('lrpe', {{}}, '')\n", "'lrpe' is the name of an encoding"),
    (f"{METHOD}register_method('My-Own', {{}}, '')\n", "'My-Own' cannot be the name of a method"),
    (f"{METHOD}register_method('x', {{'encoding': 'rop'}}, '')\n", "unknown encoding 'rop' (did you mean"),
    (f"{METHOD}register_method('x', {{'rope_base': 1.0}}, '')\n", "unknown flag 'rope_base'"),
    (f"{METHOD}register_method('x', {{'encoding': 'rope', 'rope_base': 'a'}}, '')\n", "rope_base = 'a': use"),
    (CLASS.format(name="rope", help="", option=""), "ValueError: the encoding 'rope' exists already"),
    (CLASS.format(name="tmlr_type1", help="", option=""), "the name of a method: rename it"),
    (CLASS.format(name="a-b", help="", option=""), "ValueError: 'a-b' cannot be the name of an encoding"),
    (CLASS.format(name="own", help="", option="*, size=2, "), "TypeError: Own has options ['size'] but help"),
    ("import fairseq_lrpe.models\n" + TINY_EXTENSION, "is registered too late for its architectures"),
]  # fmt: skip


@pytest.mark.parametrize("content, message", slow_after(6, WRONG))
def test_wrong_modules(content, message, tmp_path):
    (tmp_path / "mine.py").write_text(content)
    done = lrpe(tmp_path, "methods", "--import", "mine.py")
    assert done.returncode == 1 and not done.stdout
    [line] = done.stderr.splitlines()
    assert line.startswith(f"lrpe methods: the extension {tmp_path}/mine.py ") and message in line, line


WRONG_NAMES = [
    ("--import nosuch.py", "the extension nosuch.py does not exist: pass the path of a .py file"),
    ("--import nosuch", "nosuch cannot be imported: ModuleNotFoundError: No module named 'nosuch'"),
    ("--import a-b", "the extension 'a-b' is not the name of a module"),
    ("--import my-file.py", "Python cannot import my-file.py: rename it"),
    ("--import random.py", "random: rename random.py"),
    ("--import", "--import '' names no module: pass the path"),
    ("--import=,", "--import ',' names no module: pass the path"),
]  # fmt: skip


@pytest.mark.parametrize("words, message", slow_after(3, WRONG_NAMES))
def test_wrong_names(words, message, tmp_path):
    for name in ("my-file.py", "random.py"):
        (tmp_path / name).write_text(TINY_EXTENSION)
    done = lrpe(tmp_path, "methods", *words.split())
    [line] = done.stderr.splitlines()
    assert done.returncode == 1 and line.startswith("lrpe methods: ") and message in line, line


def test_folder_with_a_comma(tmp_path):
    folder = tmp_path / "a,b"
    folder.mkdir()
    (folder / "mine.py").write_text(TINY_EXTENSION)
    for word in ("mine", "mine.py"):
        message = f"LRPE_IMPORT separates paths by commas, but {folder}/mine.py contains one"
        assert message in lrpe(folder, "methods", "--import", word).stderr


def test_fairseq_prints_one_line(tmp_path):
    (tmp_path / "mine.py").write_text("1 / 0\n")
    words = ["data", "--user-dir", PLUGIN, "--task", "language_modeling", "--arch", "linear_lm_mine"]
    done = run_command("fairseq-train", *words, folder=tmp_path, **paths({"LRPE_IMPORT": "mine.py"}))
    start = (
        f"fairseq_lrpe: the extension {tmp_path}/mine.py cannot be imported ({tmp_path}/mine.py, line 1): "
    )
    assert done.returncode == 1 and done.stderr.strip() == f"{start}ZeroDivisionError: division by zero"
    done = run_command("fairseq-train", *words, folder=tmp_path, **paths({}))
    last = done.stderr.splitlines()[-1]
    assert last.startswith("fairseq_lrpe: linear_lm has no method 'mine'") and "LRPE_IMPORT=FILE.py" in last


def test_unknown_method_names_the_option(tmp_path):
    done = lrpe(tmp_path, "train", "lm/mini", "mine")
    [line] = done.stderr.splitlines()
    assert line.startswith("train: unknown method 'mine'") and "--import FILE.py" in line


def test_option_after_dashes_is_that_of_fairseq(tmp_path):
    (tmp_path / "mine.py").write_text(TINY_EXTENSION)
    words = ["lm/quickstart", "mine", "--cpu", "--dry-run", "--import", "mine.py", "--", "--import", "x"]
    done = succeeded(lrpe(tmp_path, "train", *words))
    assert done.stdout.startswith(f"LRPE_IMPORT={tmp_path}/mine.py fairseq-train ")
    assert done.stdout.endswith("--import x\n") and "--arch linear_lm_mine" in done.stdout


def test_import_of_the_package_loads_nothing(tmp_path):
    (tmp_path / "mine.py").write_text("1 / 0\n")
    program = "import sys, fairseq_lrpe.attention\nprint('fairseq_lrpe.extensions' in sys.modules)"
    done = succeeded(
        run_command("python", "-c", program, folder=tmp_path, **paths({"LRPE_IMPORT": "mine.py"}))
    )
    assert done.stdout == "False\n"


@pytest.mark.slow
def test_trained_run_names_its_module(tmp_path, data_bin):
    """Also if its code or the flags of its method change after the training."""
    (tmp_path / "mine.py").write_text(TINY_EXTENSION)
    words = ["train", "lm/quickstart", "mine", "--cpu", "--results", tmp_path, f"data={data_bin}"]
    words += (
        "updates=1 batch.total=4 batch.per_gpu=4 train.decoder_layers=1 train.decoder_embed_dim=16".split()
    )
    words += "train.decoder_ffn_embed_dim=16 train.save_interval_updates=1 train.tokens_per_sample=32".split()
    imported = ["--import", "mine.py"]
    succeeded(lrpe(tmp_path, *words, *imported))
    [run] = [path.parent for path in tmp_path.rglob("run.json")]
    missing = f"the run's method 'mine' was registered by {tmp_path}/mine.py, which is not imported"
    for command in (["generate", run, "--cpu", "--prompt", "w1"], ["evaluate", run, 32, "--cpu"]):
        assert missing in lrpe(tmp_path, *command).stderr.splitlines()[-1]
    checkpoint = run / "checkpoints/checkpoint_best.pt"
    flags = [data_bin, "--user-dir", PLUGIN, "--path", checkpoint, "--cpu"]
    for done in (
        lrpe(tmp_path, "generate", checkpoint, "--cpu", "--prompt", "w1"),
        run_command("fairseq-eval-lm", *flags, folder=tmp_path, **paths({})),
    ):
        line = done.stderr.splitlines()[-1]
        assert f"the encoding 'mine' of {checkpoint} is not registered: import the module" in line

    (tmp_path / "mine.py").write_text(f"# A comment.\n{TINY_EXTENSION}")
    assert "already finished" in succeeded(lrpe(tmp_path, *words, *imported)).stdout
    shown = ["results", "--results", tmp_path, "--experiment", "lm/quickstart"]
    assert not succeeded(lrpe(tmp_path, *shown, *imported)).stderr
    (tmp_path / "mine.py").write_text(TINY_EXTENSION.replace("return q, k", "return q, 2 * k"))
    changed = f"the code of {tmp_path}/mine.py has changed since the training"
    assert changed in lrpe(tmp_path, *words, *imported).stderr
    [line] = succeeded(lrpe(tmp_path, *shown, *imported)).stderr.splitlines()
    assert line.startswith(f"results: numbers of {run} are those of other code ({changed}): remove the runs")
    assert not succeeded(lrpe(tmp_path, *shown)).stderr


def test_differences_of_flags(tmp_path):
    before = {"extension": {"source": "mine", "code": "a", "flags": {"encoding": "mine"}}}
    now = {"method": "mine", "extension": {"source": "mine", "code": "a", "flags": {"encoding": "rope"}}}
    assert extension_differences(before, now) == ["mine: encoding was mine, now rope"]
    assert extension_differences({}, now) == extension_differences(before, {"method": "rope"}) == []


def test_digest_ignores_comments_and_docstrings(tmp_path):
    texts = ['"""A."""\nx = 1\n', "# Comment.\n'B.'\nx = (\n    1\n)\n", "x = 2\n"]
    digests = []
    for number, text in enumerate(texts):
        path = tmp_path / f"{number}.py"
        path.write_text(text)
        digests.append(code_digest(path))
    assert digests[0] == digests[1] != digests[2]


def test_origin_is_none_for_encodings_of_the_package():
    assert extensions.origin("rope", "rope") is None


def test_a_method_can_be_registered_again(monkeypatch):
    from fairseq_lrpe import methods

    monkeypatch.setitem(methods.METHODS, "own", Method({"encoding": "rope"}, "x"))
    methods.register_method("own", {"encoding": "rope"}, "x")
    with pytest.raises(ValueError, match="the method 'own' exists already"):
        methods.register_method("own", {}, "x")
