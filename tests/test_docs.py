"""Every command of README.md, docs and CONTRIBUTING.md is parsed, and README's commands are run.

Commands are parsed in this process: by the parser of the command, and with ``--dry-run`` where there is one,
which also loads the experiments' YAML.
"""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from unittest.mock import patch

import pytest
from support.documents import block, blocks, commands
from support.tiny import BIN, REPOSITORY, run_here, write_text
from test_dependencies import declared
from test_wheel import WHEEL

from fairseq_lrpe.cli import main
from fairseq_lrpe.utils.errors import UserError

NO_DRY_RUN = {"--estimate", "--status", "--cancel", "--launcher"}
EXAMPLES = {"forget", "lines/own", "glue/wikibook", "mine", "own"}
"""Methods, an experiment and a table that the reader adds, and an experiment that needs a trained model."""
ONE_METHOD = {
    "lfhc_table5": "lfhc",
    "lfhc_table6": "lfhc",
    "lfhc_table7": "lfhc",
    "lfhc": "gcdf",
    "iclr_table5": "tmlr_type2",
    "tmlr_table5": "tmlr_type2",
    "": "rope",
}
"""The method that is enough for a table whose name starts so."""
TABLES_OF_SPEEDS = ("tmlr_table6", "iclr_table9", "training_speed")
"""Tables whose runs have no training to print."""


def check_lrpe(verb, *words):
    if "--import" in words:  # a file that the reader adds
        index = words.index("--import")
        words = words[:index] + words[index + 2 :]
    if verb in ("train", "table") and words and not (NO_DRY_RUN | EXAMPLES) & {*words}:
        end = words.index("--") if "--" in words else len(words)
        more = ["--dry-run"]
        if verb == "table" and "--methods" not in words:
            more += ["--methods", next(m for start, m in ONE_METHOD.items() if words[0].startswith(start))]
        done = run_here(lambda: main([verb, *words[:end], *more, *words[end:]]))
        trains = verb == "train" or not words[0].startswith(TABLES_OF_SPEEDS)
        is_continued = any(word.startswith("starts_from=results/") for word in words)
        shown = "which does not exist yet" if is_continued else "--save-dir"
        assert done.returncode == 0 and (shown in done.stdout) == trains, done.stderr
    else:
        check_parser(lambda: main([verb, *(words or ["--help"])]))


def check_parser(call):
    """Asserts that the parser of a command accepts its arguments, and ends the command there."""

    def ending(parse):
        def parse_and_end(self, *arguments, **settings):
            parse(self, *arguments, **settings)
            sys.exit()

        return parse_and_end

    methods = {
        name: ending(getattr(ArgumentParser, name)) for name in ("parse_args", "parse_intermixed_args")
    }
    with patch.multiple(ArgumentParser, **methods):
        done = run_here(call)
    assert done.returncode == 0, done.stderr


def check_bash(path, *words):
    text = (REPOSITORY / path).read_text()
    if found := re.search(r"^exec python -m fairseq_lrpe ([\w-]+)", text, re.MULTILINE):
        check_lrpe(found[1], *words)
    elif path == "scripts/test.sh":
        check_python("-m", "pytest", *words)
    else:
        python = text + (REPOSITORY / "scripts/setup_env.py").read_text() * (path == "scripts/setup_env.sh")
        assert all(word in python for word in words if word.startswith("-"))


def check_python(path, *words):
    if path != "-m":
        assert (REPOSITORY / path).is_file()
    elif words[0] == "pytest":
        assert all((REPOSITORY / word).exists() for word in words if word.startswith("tests/"))
    else:
        assert words[0] in ("ruff", "mkdocs", "mypy", "fairseq_lrpe")


FAIRSEQ = {
    "fairseq-preprocess": "get_preprocessing_parser",
    "fairseq-train": "get_training_parser",
    "fairseq-eval-lm": "get_eval_lm_parser",
}


def check_fairseq(program, *words):
    from fairseq import options

    import fairseq_lrpe.models  # noqa: F401  (fairseq imports them only if it is the first to import the plugin)

    parser = getattr(options, FAIRSEQ[program])()
    if program == "fairseq-preprocess":
        parser.parse_args(words)
    else:
        try:
            options.parse_args_and_arch(parser, ["scratch" if x == "bert-base-cased" else x for x in words])
        except UserError as error:  # the flags are correct, but the data is not prepared
            assert str(error).startswith("data/")


def check_torchrun(*words):
    """Parses the flags of fairseq-train."""
    training = "data-bin --user-dir fairseq_lrpe --task language_modeling --arch linear_lm_base".split()
    check_fairseq("fairseq-train", *training, *words[words.index("fairseq-train)") + 1 :])


def check_pip(action, *words):
    lists = declared()
    known = {"-b", "-c", "-e", ".", "constraints.txt", "--no-deps", "--no-build-isolation", "--no-cache-dir"}
    known |= {"pip==24.0", "fairseq==0.12.2", *lists["train"]}
    known |= {"-w", "wheels", "setuptools", "wheel"}
    assert action in ("install", "wheel")
    for word in words:
        if extras := re.fullmatch(r"(\.|\./\S+\.whl)\[([\w,]+)\]", word):
            assert extras[1] in (".", f"./{WHEEL}") and set(extras[2].split(",")) <= set(lists)
        else:
            assert word in known, f"{word} is not declared in pyproject.toml"


CHECKS = {
    "lrpe": check_lrpe,
    "bash": check_bash,
    "python": check_python,
    "pip": check_pip,
    "uv": lambda pip, *words: check_pip(*words),
    "torchrun": check_torchrun,
    **{program: lambda *words, program=program: check_fairseq(program, *words) for program in FAIRSEQ},
}


@pytest.mark.parametrize("command", commands())
def test_command_is_parsed(command, monkeypatch):
    command = command.replace("--arch linear_lm_mine --mine-speed 0.25", "--arch linear_lm_rope")
    monkeypatch.chdir(REPOSITORY)
    for part in (
        re.sub(r"[<>] *\S+| …|\w+=\d+ (?=lrpe|\.venv)", "", command).replace("NAME", "text").split("&&")
    ):
        program, *words = shlex.split(part)
        if check := CHECKS.get(program.removeprefix(".venv/bin/")):
            check(*words)


def parts_of_blocks():
    tests = REPOSITORY / "tests"
    paths = [*tests.rglob("test_*.py"), *tests.rglob("*_cases.py")]
    trees = [ast.parse(path.read_text()) for path in paths]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls = [call for call in calls if getattr(call.func, "id", "") in ("block", "example")]
    return {node.value for call in calls for node in ast.walk(call) if isinstance(node, ast.Constant)}


def test_every_block_has_a_test():
    parts = [part for part in parts_of_blocks() if len(part) > len("python")]
    assert not [text for text in blocks("python", "yaml") if not any(part in text for part in parts)]


TINY = "--decoder-layers 1 --decoder-embed-dim 16 --decoder-ffn-embed-dim 16 --decoder-attention-heads 2 "
ONCE = "--max-update 1 --cpu --num-workers 0 --data-buffer-size 0 --required-batch-size-multiple 1"
SMALL = (
    "--cpu data=data-bin updates=2 batch.total=2 batch.per_gpu=2 train.decoder_layers=1 "
    "train.decoder_embed_dim=16 train.decoder_ffn_embed_dim=16 train.decoder_attention_heads=2 "
    "train.warmup_updates=1 train.validate_interval_updates=2 train.save_interval_updates=2 "
    "evaluations.test=null"
)
README = {
    # {beginning of a command of README.md: arguments that make it fast}, in the order in which they run
    "bash scripts/setup_env.sh": "--dry-run",
    "fairseq-preprocess": "--workers 1",
    "fairseq-train data-bin": TINY + ONCE,
    "fairseq-eval-lm data-bin": "--cpu",
    "bash scripts/quickstart.sh": "--from . --updates 2 --results quickstart",
    "lrpe methods": "",
    "bash scripts/table.sh": "",
    "bash scripts/train.sh lm/mini shaw": SMALL,
    "lrpe report": "",
}


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    for name in ("fairseq_lrpe", "configs", "data_prep", "scripts"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "docs").symlink_to(REPOSITORY / "docs")
    # The scripts call setup_env.sh without arguments, which would install packages.
    real = shlex.quote(str(REPOSITORY / "scripts/setup_env.sh"))
    (folder / "scripts/setup_env.sh").write_text(f'[ $# = 0 ] || exec bash {real} "$@"\n')
    write_text(folder)

    def shell(line):
        path = f"{BIN}:{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "PYTHONPATH": str(folder), "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(["bash", "-c", line], cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    shell.folder = folder
    return shell


@pytest.mark.slow
def test_commands_of_the_readme_run(shell):
    shown = commands([REPOSITORY / "README.md"])
    for start, more in README.items():
        command = min((line for line in shown if f"{line} ".startswith(f"{start} ")), key=len)
        shell(f"{command} {more}")


@pytest.mark.slow
def test_the_experiment_with_every_key(shell):
    (shell.folder / "configs/lm/shown.yaml").write_text(block("yaml", "defaults: lm/mini"))
    shown = shell("bash scripts/train.sh lm/shown shaw --attention softmax --dry-run")
    assert len(shown.splitlines()) == 6  # three values of shaw_k, two learning rates


@pytest.mark.slow
def test_the_corpus(shell):
    (shell.folder / "data_prep/corpora/words.py").write_text(block("python", "class Words(TextCorpus)"))
    corpora, row = shell.folder / "fairseq_lrpe/data/corpora.py", block("python", '"words": Row(')
    corpora.write_text(corpora.read_text().replace("CORPORA = {\n", "CORPORA = {\n" + row, 1))
    assert "vocabulary: " in shell("bash data_prep/prepare.sh words --from . --workers 1")
