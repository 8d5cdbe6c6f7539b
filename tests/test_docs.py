"""Runs every command of README.md, docs/*.md and CONTRIBUTING.md, and loads their code blocks.

Commands run in a shell, in a copy of the repository, with the options in ROWS that make them fast. BLOCKS
lists the tests of the code blocks.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from documents import BLOCK, DOCUMENTS, SHELL, block, blocks, commands
from image_files import colored_image
from omegaconf import OmegaConf
from test_dependencies import declared
from test_wheel import WHEEL
from tiny import REPOSITORY, write_text


class Row(NamedTuple):
    """How the test of a command runs or checks it.

    Attributes:
        more: additional arguments.
        replaced: {part of the command: replacement}.
        after: prefixes of commands that must run before.
        refused: part of the expected error message, for commands that are too slow to succeed here.
        checked: a function of the command's words that checks the command instead of running it.
    """

    more: str = ""
    replaced: dict[str, str] = {}
    after: tuple[str, ...] = ()
    refused: str = ""
    checked: object = None


def check_pip(words):
    """Asserts that setup.py declares what a ``pip install`` command names, and that its files exist."""
    lists, rest = declared(), words[2:]
    if "-c" in rest:
        assert (REPOSITORY / rest[rest.index("-c") + 1]).is_file()
    for word in rest:
        if extras := re.fullmatch(r"(\.|\./\S+\.whl)\[([\w,]+)\]", word):
            assert extras[1] in (".", f"./{WHEEL}") and set(extras[2].split(",")) <= set(lists)
        else:
            known = {"-c", "-e", ".", "constraints.txt", "--no-build-isolation", *lists["train"]}
            assert word in known, f"pip install {word}: not declared in setup.py"


def check_apt(words):
    """Asserts that a ``sudo apt install`` command names only g++ and packages of Python 3.11 or 3.12."""
    assert words[:3] == ["sudo", "apt", "install"]
    assert all(re.fullmatch(r"g\+\+|python3\.1[12]-(venv|dev)", word) for word in words[3:])


TINY = "--decoder-layers 1 --decoder-embed-dim 16 --decoder-ffn-embed-dim 16 --decoder-attention-heads 2 "
ENCODER = TINY.replace("decoder", "encoder")
ONCE = "--max-update 1 --cpu --num-workers 0 --data-buffer-size 0 --no-epoch-checkpoints "
ONCE += "--required-batch-size-multiple 1 "
SPEED = "--layers 1 --length 8 --batch-size 1 --vocab-size 99 --rounds 1 --attention linear"
SAMPLING = "--layers 1 --length 4 --rounds 1 --memory-length 10 --vocab-size 99"
BLOCKS = {
    # {text that identifies a code block: test file that loads or runs the block}
    '@register_encoding("forget"': "encodings/test_own_encoding.py",
    '@register_encoding("distance"': "encodings/test_own_encoding.py",
    '"forget": Method(': "encodings/test_own_encoding.py",
    '"distance": Method(': "encodings/test_own_encoding.py",
    "out = linear_attention(": "encodings/test_own_encoding.py",
    "class Block(nn.Module)": "attention/test_own_models.py",
    "class GPT(nn.Module)": "attention/test_own_models.py",
    "lrpe = GPT(99": "attention/test_own_models.py",
    "layer = nn.TransformerEncoderLayer": "attention/test_own_models.py",
    "t5 = build_encoding": "attention/test_own_models.py",
    "# three texts in one row": "attention/test_own_models.py",
    '"rope_mixed"': "attention/test_own_models.py",
    "AttentionInterface.register": "attention/test_own_models.py",
    "def shard(model)": "attention/test_own_models.py",
    "roberta.fill_mask(": "models/test_roberta.py",
    "model.stream(": "experiments/inference/test_trained.py",
    "class Lines(Kind)": "experiments/spec/kinds/test_new_kind.py",
    "kind: lines": "experiments/spec/kinds/test_new_kind.py",
    "experiment: lines/own": "experiments/spec/kinds/test_new_kind.py",
    "defaults: lm/mini": "test_docs.py",
    "class Words(Corpus)": "test_docs.py",
    '"words": Row(': "test_docs.py",
}

RUN, RESULTS = ("bash scripts/train.sh lm/mini rope", "lrpe results ")
PREPARE, FEW = "bash data_prep/prepare.sh ", "--rows 9 3 3 --workers 1"
CUT = "--cut 9 3 --pieces 60 --workers 1"
LM, BEST = "results/lm/mini/linear_rope/seed-1", "checkpoints/checkpoint_best.pt"
MISSING = Row("--from missing", refused="missing")

ROWS = {
    # {command, or a prefix of commands followed by "*": row}; the longest matching prefix applies
    "sudo apt install *": Row(checked=check_apt),
    "pip install *": Row(checked=check_pip),
    "pip wheel --no-deps .": Row(checked=lambda words: (REPOSITORY / words[-1] / "setup.py").is_file()),
    "bash scripts/setup_env.sh": Row("--dry-run"),
    "bash scripts/setup_env.sh --torch cu126": Row("--dry-run"),
    "bash scripts/gpu_check.sh*": Row("--out README.md", refused="not a writable folder"),
    "bash scripts/quickstart.sh": Row("--data missing", refused="missing"),
    "bash scripts/test.sh*": Row("--version"),  # pytest checks the other options first
    "bash scripts/test.sh --encoding forget": Row("--version", {"forget": "rope"}),
    "bash scripts/test.sh --encoding NAME": Row("--version", {"NAME": "rope"}),
    "bash .ci/run": Row(replaced={"bash": "bash -n"}),
    ".venv/bin/python -m ruff *": Row(),
    ".venv/bin/python -m mkdocs serve": Row("--help"),  # test_site.py builds the site
    "TRITON_INTERPRET=1 *": Row("--collect-only"),  # test_interpreter.py runs the cases
    ".venv/bin/jupyter *": Row("--help"),
    "lrpe prepare NAME": Row("--help", {"NAME": "text"}),
    "lrpe prepare text": Row("--out data/docs --workers 1"),
    "lrpe table": Row("--help"),
    "lrpe table quickstart *": Row(
        "--dry-run --methods rope data=data/docs/bin", after=("lrpe prepare text",)
    ),
    "lrpe train": Row("--help"),
    # fairseq's commands
    "fairseq-preprocess *": Row("--workers 1"),
    "fairseq-train data-bin *": Row(TINY + ONCE, after=("fairseq-preprocess",)),
    "fairseq-eval-lm data-bin *": Row("--cpu", after=("fairseq-train data-bin",)),
    "fairseq-hydra-train *": Row(
        "optimization.max_update=1 common.cpu=true model.decoder_layers=1 model.decoder_embed_dim=16 "
        "model.decoder_ffn_embed_dim=16 model.decoder_attention_heads=2 dataset.num_workers=0",
        after=("fairseq-preprocess",),
    ),
    "fairseq-train --user-dir fairseq_lrpe --task synthetic_lm *": Row(TINY + ONCE + "--batch-size 2"),
    "fairseq-train data/sentences/bin *": Row(ENCODER + ONCE, after=(PREPARE + "sentences",)),
    "fairseq-train data/squad/bin *": Row(
        f"{ENCODER}{ONCE} --decoder-layers 1 --decoder-ffn-embed-dim 16 --decoder-attention-heads 2 "
        "--max-source-positions 64",
        {"data/squad/bin": "data/squad_mini/bin", "bert-base-cased": "scratch"},
        after=(PREPARE + "squad --from",),
    ),
    "torchrun *": Row(
        replaced={
            "…": "data-bin --user-dir fairseq_lrpe --task language_modeling --arch linear_lm_base "
            f"--optimizer adam --lr 1e-3 --tokens-per-sample 32 --batch-size 4 {TINY}{ONCE} "
            "--save-dir checkpoints/two"
        },
        after=("fairseq-preprocess",),
    ),
    # commands that print or plot
    "lrpe methods": Row(),
    "lrpe methods --flags": Row(),
    "lrpe synthetic *": Row(),
    "lrpe bench lra-examples *": Row(),
    "lrpe report *": Row(after=(RUN,)),
    RESULTS + "results --experiment *": Row(after=(RUN,)),
    RESULTS + "results --table *": Row(after=(RUN,), refused="no run of"),
    RESULTS + "results --record *": Row(after=(RUN,)),
    RESULTS + "results --record-weights *": Row(after=(RUN,), refused="no finished run of"),
    RESULTS + "results --check": Row(after=(RESULTS + "results --record",)),
    RESULTS + "docs/results --experiment *": Row(after=(RESULTS + "results --record",), refused="no run of"),
    RESULTS + "docs/results --table *": Row(after=(RESULTS + "results --record",)),
    RESULTS + "docs/results --write-docs": Row(after=(RESULTS + "results --record",)),
    # benchmarks
    "lrpe bench linear-attention*": Row("--help"),
    "lrpe bench speed": Row(SPEED + " --methods rope"),
    "lrpe bench speed --attention softmax *": Row(SPEED.replace("linear", "softmax"), {" …": ""}),
    "lrpe bench speed --attention linear *": Row(SPEED),
    "lrpe bench speed --family *": Row(SPEED + " --methods rope"),
    "OMP_NUM_THREADS=2 lrpe bench speed --family vit *": Row(
        "--layers 1 --length 32 --batch-size 1 --rounds 1 --methods rope"
    ),
    "lrpe bench decoding": Row(
        "--layers 1 --batch-size 1 --beam 1 --length 4 --rounds 1 --attention linear --vocab-size 99"
    ),
    "lrpe bench sampling": Row(SAMPLING + " --methods base"),
    "lrpe bench sampling *": Row(SAMPLING),
    "lrpe bench memory *": Row(
        "--layers 1 --rounds 1 --segments 2 --width 16 --heads 2 --ffn 16 --length 4 --streams 2 "
        "--vocab-size 99 --methods rope"
    ),
    "lrpe bench options": Row("--layers 1 --length 32 --vocab-size 40 --rounds 1 --families images"),
    "lrpe bench images": Row("--rounds 1 --batch-size 2 --image-size 16"),
    "lrpe bench figures*": Row("--out README.md", refused="not a writable folder"),
    "lrpe bench zero-padding": Row("--out README.md", refused="not a writable folder"),
    # data preparation
    "bash data_prep/prepare.sh": Row(),
    PREPARE + "NAME*": Row(FEW, {"NAME": "listops"}),
    PREPARE + "listops *": Row(FEW),
    PREPARE + "pathfinder *": Row(FEW),
    PREPARE + "sentences *": Row("--workers 1", {"FOLDER": "given/sentences"}),
    PREPARE + "multi30k *": Row("--workers 1 --bpe-types 30", {"FOLDER": "given/multi30k"}),
    PREPARE + "imagenet *": Row("--workers 1", {"FOLDER": "given/pictures"}),
    PREPARE + "imagenet --from FOLDER --shorter-side *": Row(
        "--workers 1 --out data/smaller", {"FOLDER": "given/pictures"}
    ),
    PREPARE + "imagenet --from ILSVRC2012": Row("--from missing --out ilsvrc", refused="missing"),
    PREPARE + "text --from FOLDER": Row("--workers 1", {"FOLDER": "."}),
    PREPARE + "cifar10 *": Row("--workers 1 --train-rows 10"),
    PREPARE + "snli *": Row("--cut 9 3 3 --workers 1"),
    PREPARE + "squad *": Row(CUT),
    PREPARE + "cmrc2018 *": Row(CUT),
    PREPARE + "squad --bert *": MISSING,
    PREPARE + "wikitext_mini": Row("--from . --workers 1"),
    PREPARE + "wikitext_mini_chars": Row("--from . --workers 1"),
    PREPARE + "wikitext_mini_bpe *": MISSING,
    PREPARE + "lra_retrieval_mini *": Row(refused="is not a folder"),
    PREPARE + "lra_image *": MISSING,
    PREPARE + "wikipedia": MISSING,
    PREPARE + "glue*": Row("--from missing --out prepared_glue", refused="missing"),
    # single runs
    "bash scripts/train.sh *": Row("--dry-run"),
    "bash scripts/train.sh lm/wikitext103 tmlr_type1 --launcher slurm *": Row(
        refused="wikitext103 is skipped"
    ),
    "bash scripts/train.sh glue/wikibook *": Row("--dry-run", refused="does not exist"),
    "bash scripts/train.sh lm/mini shaw --attention softmax train.shaw_k=4": Row(
        after=(PREPARE + "wikitext_mini",)
    ),
    RUN: Row(after=(PREPARE + "wikitext_mini",)),
    RUN + " 'evaluations.*": Row(after=(RUN,)),
    "bash scripts/train.sh mt/multi30k rope *": Row(after=(PREPARE + "multi30k",)),
    "bash scripts/train.sh lm/quickstart forget updates=20": Row(refused="unknown method 'forget'"),
    "bash scripts/train.sh imagenet/deit_small *": Row(
        replaced={"--gpus 8": "--cpu"}, after=(PREPARE + "imagenet --from FOLDER",)
    ),
    # use of trained models
    "bash scripts/extrapolate.sh *": Row(
        replaced={"RUN": "results/lm/mini/linear_rope/seed-1", "512 1024 2048 4096 8192": "512"}, after=(RUN,)
    ),
    "bash scripts/translate.sh *": Row(
        "--cpu --beam 2",
        {"CHECKPOINT": f"results/mt/multi30k/linear_rope/seed-1/{BEST}"},
        after=("bash scripts/train.sh mt/multi30k rope",),
    ),
    "lrpe generate results/lm*": Row("--cpu", after=(RUN,)),
    "lrpe generate RUN *": Row("--cpu", {"RUN": LM}, after=(RUN,)),
    "lrpe generate results/mt*": Row("--cpu --beam 2", after=("bash scripts/train.sh mt/multi30k rope",)),
    "bash scripts/generate_questions.sh *": Row(
        "--cpu --beam 2",
        {"results/questions/squad/softmax_gcdf/seed-1/checkpoints": "checkpoints/questions"},
        after=("fairseq-train data/squad/bin",),
    ),
    "bash scripts/finetune_glue.sh *": Row(refused="does not exist"),
    "bash scripts/glue_submission.sh *": Row(refused="has no finished runs of GLUE"),
    "lrpe classify *": Row("--cpu", after=("fairseq-train data/sentences/bin",)),
    "lrpe classify CHECKPOINT FOLDER_OF_PICTURES*": Row(
        "--cpu",
        {
            "CHECKPOINT": f"results/imagenet/deit_small/linear_tmlr_type1/seed-1/{BEST}",
            "FOLDER_OF_PICTURES": "given/pictures",
        },
        after=(
            PREPARE + "imagenet --from FOLDER",
            "bash scripts/train.sh imagenet/deit_small",
        ),
    ),
    # tables
    "bash scripts/table.sh": Row(),
    "bash scripts/table.sh *": Row("--dry-run --methods rope"),
    "bash scripts/table.sh tmlr_table2 --launcher slurm *": Row(refused="wikitext103 is skipped"),
    "bash scripts/table.sh tmlr_table1 --estimate": Row("--methods rope"),
    "bash scripts/table.sh tmlr_table2 --estimate *": Row("--methods rope"),
    "bash scripts/table.sh tmlr_table2 --scale mini --estimate *": Row(
        "--methods rope", after=(PREPARE + "wikitext_mini",)
    ),
    "bash scripts/train.sh lm/wikitext103 tmlr_type1 --estimate *": Row(),
    "bash scripts/table.sh tmlr_table2 --status": Row("--dry-run", refused="--dry-run cannot be combined"),
    "bash scripts/table.sh tmlr_table2 --cancel": Row("--dry-run", refused="--dry-run cannot be combined"),
    "bash scripts/table.sh lfhc_table*": Row("--dry-run --methods gcdf"),
    "bash scripts/table.sh lfhc_table5 *": Row("--dry-run --methods lfhc"),
    "bash scripts/table.sh lfhc_table7 *": Row("--dry-run --methods lfhc"),
    "bash scripts/table.sh tmlr_table2 --scale mini --methods *": Row("--dry-run"),
}

SIZES = {"layers": 1, "embed_dim": 16, "ffn_embed_dim": 16, "attention_heads": 2}
OFTEN = {"validate_interval_updates": 2, "save_interval_updates": 2, "num_workers": 0, "data_buffer_size": 0}
SMALL = {  # {experiment: overrides that make it fast}
    "lm/mini": {
        "batch": {"total": 2, "per_gpu": 2},
        "train": {f"decoder_{x}": SIZES[x] for x in SIZES},
        "evaluations": {"test": None},
    },
    "mt/multi30k": {
        "batch": {"total": 300, "per_gpu": 300},
        "train": {f"{side}_{x}": SIZES[x] for side in ("encoder", "decoder") for x in SIZES},
        "evaluations": {"valid": None},
        "evaluate": {"flags": {"beam": 1, "max_len_a": 0, "max_len_b": 5}},
    },
    "imagenet/deit_small": {
        "batch": {"total": 4, "per_gpu": 4},
        "train": {"image_size": 32, **{f"encoder_{x}": SIZES[x] for x in SIZES}},
    },
}


def write_clone(folder):
    """Copies the repository to ``folder``, with small experiments."""
    for name in ("fairseq_lrpe", "configs", "data_prep", "scripts", "docs", "tests", ".ci"):
        # The runs of these commands cannot be recorded beside runs on other data.
        ignored = shutil.ignore_patterns("__pycache__", "*.png", "measurements.csv")
        shutil.copytree(REPOSITORY / name, folder / name, ignore=ignored)
    for name in ("README.md", "setup.py", "pyproject.toml", "constraints.txt"):
        shutil.copy(REPOSITORY / name, folder)
    (folder / ".venv").mkdir()
    (folder / ".venv/bin").symlink_to(Path(sys.executable).parent)
    (folder / ".venv/.fairseq-lrpe-ready").touch()
    # The scripts call setup_env.sh without arguments, which would install packages.
    real = shlex.quote(str(REPOSITORY / "scripts/setup_env.sh"))
    (folder / "scripts/setup_env.sh").write_text(f'[ $# = 0 ] || exec bash {real} "$@"\n')
    for name, small in SMALL.items():
        path = folder / f"configs/{name}.yaml"
        changed = {"updates": 2, **small, "train": {**small["train"], **OFTEN, "warmup_updates": 1}}
        OmegaConf.save(OmegaConf.merge(OmegaConf.load(path), changed), path)
    kinds = folder / "fairseq_lrpe/experiments/spec/kinds"
    (kinds / "lines.py").write_text(block("python", "class Lines(Kind)"))
    (folder / "configs/lines").mkdir()
    (folder / "configs/lines/own.yaml").write_text(block("yaml", "kind: lines"))
    (folder / "configs/lm/shown.yaml").write_text(block("yaml", "defaults: lm/mini"))
    (folder / "data_prep/corpora/words.py").write_text(block("python", "class Words(Corpus)"))
    corpora, row = folder / "fairseq_lrpe/data/corpora.py", block("python", '"words": Row(')
    corpora.write_text(corpora.read_text().replace("CORPORA = {\n", "CORPORA = {\n" + row, 1))


def write_data(folder):
    """Writes the data files that the commands read."""
    write_text(folder)
    files = {"text.en": "a good one\n", "lines": "Anna\tAnna lived in Rome .\n"}
    for split, count in (("train", 40), ("valid", 10), ("test", 10)):
        words = [("good", "gutes"), ("bad", "schlechtes")] * (count // 2)
        english = "".join(f"a {word} one\n" for word, _ in words)
        files |= {f"{split}.input0": english, f"given/sentences/{split}.input0.txt": english}
        labels = "".join(f"{word}\n" for word, _ in words)
        files |= {f"{split}.label": labels, f"given/sentences/{split}.label": labels}
        files[f"given/multi30k/{split.replace('valid', 'val')}.en"] = english
        files[f"given/multi30k/{split.replace('valid', 'val')}.de"] = "".join(f"ein {x}\n" for _, x in words)
    pair, labels = {"sentence1": "Anna lived.", "sentence2": "She died."}, ["neutral", "contradiction"] * 10
    pairs = "".join(json.dumps({**pair, "gold_label": label}) + "\n" for label in labels)
    files |= dict.fromkeys(("snli_dev.jsonl", "mnli_dev_matched.jsonl"), pairs)
    answers = [{"text": "Anna", "answer_start": 0}]
    paragraphs = [
        {
            "context": f"Anna lived {i} years.",
            "qas": [{"id": i, "question": "Who lived?", "answers": answers}],
        }
        for i in range(20)
    ]
    squad = json.dumps({"version": "v2.0", "data": [{"title": "Anna", "paragraphs": paragraphs}]})
    files |= dict.fromkeys(("dev-v2.0.json", "cmrc2018_dev.json"), squad)
    files["data/glue/RTE/bin/rows.json"] = json.dumps({"train": 40, "valid": 10})
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    for number in range(16):
        name = f"given/pictures/{('train', 'test')[number > 11]}/{'ab'[number % 2]}/{number}.jpg"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(colored_image(number % 2, number))
    with tarfile.open(folder / "cifar10-jpeg.tar.gz", "w:gz") as archive:
        archive.add(folder / "given/pictures", "cifar10")


COMMANDS = commands()


def row_of(command):
    """Returns the pattern in ROWS that covers a command: the command itself, or its longest prefix."""
    beginnings = [x for x in ROWS if x.endswith("*") and command.startswith(x[:-1])]
    return command if command in ROWS else max(beginnings, key=len, default=None)


@pytest.fixture(scope="module")
def shell():
    """Returns ``shell(line)``, which runs a line in the copy of the repository and caches the result."""
    with tempfile.TemporaryDirectory(prefix="docs-") as folder:  # a short path, as in forks.py
        write_clone(Path(folder))
        write_data(Path(folder))
        path = f"{folder}/.venv/bin:{os.environ['PATH']}"
        changed = {"PATH": path, "PYTHONPATH": folder, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
        env = {**os.environ, **changed}
        env.pop("VIRTUAL_ENV", None)

        @cache
        def shell(line):
            words = ["bash", "-c", line]
            return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)

        yield shell


def run(command, shell):
    """Runs a command as its row in ROWS describes, after the commands that it depends on."""
    row = ROWS[row_of(command)]
    for beginning in row.after:
        found = [x for x in COMMANDS if x.startswith(beginning)]
        run(beginning if beginning in found else found[0], shell)
    line = command
    for old, new in row.replaced.items():
        assert old in line, f"{old!r} of its row is not in {command}"
        line = line.replace(old, new)
    ours, dashes, rest = line.partition(" -- ")  # what follows goes to fairseq-train
    done = shell(" ".join(f"{ours} {row.more}{dashes}{rest}".split()))
    said = f"{done.args[-1]}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    if row.refused:
        assert done.returncode == 1 and row.refused in done.stderr, said
    else:
        assert done.returncode == 0, said


@pytest.mark.parametrize("command", COMMANDS, ids=COMMANDS)
def test_command(command, shell):
    pattern = row_of(command)
    assert pattern, f"no row of ROWS covers the command: {command}"
    if check := ROWS[pattern].checked:
        check(shlex.split(command))
    else:
        run(command, shell)


def test_every_row_covers_a_command():
    assert set(ROWS) == {row_of(command) for command in COMMANDS}


def test_every_block_has_a_test():
    languages = {language for path in DOCUMENTS for language, _ in BLOCK.findall(path.read_text())}
    assert languages <= {*SHELL, "python", "yaml"}
    parts = [[part for part in BLOCKS if part in text] for text in blocks("python", "yaml")]
    assert all(len(found) == 1 for found in parts) and {part for [part] in parts} == set(BLOCKS)


def test_the_experiment_with_every_key(shell):
    done = shell("bash scripts/train.sh lm/shown shaw --attention softmax --dry-run")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 6  # three values of shaw_k, two learning rates


def test_the_corpus(shell):
    done = shell("bash data_prep/prepare.sh words --from . --workers 1")
    assert done.returncode == 0 and "vocabulary: " in done.stdout, done.stderr
