"""GLUE tasks (Wang et al. 2019) in GPT-2 BPE or in words."""

import json
import shutil
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from data_prep import gpt2_bpe
from data_prep.binarize import SPLITS, preprocess
from data_prep.corpus import UNPACKED, Corpus, compared
from data_prep.fetch import fetch, unpacked
from data_prep.hub import find_tables, glue_to_tsv
from data_prep.labeled import TRAIN_ROWS
from data_prep.labeled_words import LabeledWords
from data_prep.parallel import map_lines
from data_prep.text_corpus import BytePairCorpus
from data_prep.validation import usable_rows
from fairseq_lrpe.data.glue_tasks import MAX_SCORE, PAPER_TASKS, TASKS, Task, get_task
from fairseq_lrpe.data.layout import read_object
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import PLUGIN, check_regular, display_path, file_exists, read_lines, write_lines


def task_option(tasks: list[str], default: list[str]) -> dict[str, dict]:
    text = f"tasks to prepare, from {' '.join(tasks)} (default: {' '.join(default)})"
    return {"tasks": {"nargs": "*", "metavar": "TASK", "help": text, "default": default}}


class Tasks(Corpus):
    accepts = (
        "a folder with GLUE's TSV files, TASK/train.tsv and so on, or the hub's Parquet files "
        "(default: download them)"
    )
    unrecorded = (*Corpus.unrecorded, "tasks", "task", "name")

    def parts(self, args):
        tasks = {name: get_task(name) for name in args.tasks}
        parts = []
        for name, task in tasks.items():
            part = Namespace(**vars(args))
            part.name = name
            part.task = task
            part.out = args.out / name
            parts.append(part)
        return parts

    def find_source(self, args: Namespace) -> Path:
        """Returns the folder with a task's TSV files, which are made from Parquet files if needed."""
        on_hub = args.name.lower().replace("-", "")
        for folder in (args.source / args.name, args.source / on_hub):
            if tables := find_tables(folder):
                target = args.out / UNPACKED
                target.mkdir(exist_ok=True)
                glue_to_tsv(tables, args.name, args.task, target)
                return target
        return args.source / args.name

    def download(self, args: Namespace) -> Path:
        paths = []
        for name, facts in self.facts[args.name]["files"].items():
            facts = {"mirrors": self.facts["mirrors"], **facts}
            paths.append(fetch(args.out / name, facts))
        folder = args.out / UNPACKED / args.name
        if args.name == "MRPC":
            split_mrpc(*paths, folder)
        else:
            unpacked(*paths, args.out / UNPACKED)
        return folder

    def write_text(self, args, folder):
        source = self.find_source(args) if args.source else self.download(args)
        counts = {}
        for split, file in args.task.files.items():
            limit = args.train_rows if split == "train" else None
            values = zip(*rows(source / file, args.task, split, limit), strict=True)
            for column, texts in zip(columns(args.task, split), values, strict=True):
                ending = "label" if column == "label" else f"{column}.txt"
                write_lines(folder / f"{split}.{ending}", texts)
            counts[split] = len(texts)
        (folder / "rows.json").write_text(json.dumps(counts) + "\n")
        # A complete dictionary for fairseq-preprocess --srcdict, which adds no madeupwords to it.
        write_lines(folder / "labels.txt", (f"{name} 0" for name in args.task.labels))

    def published_rows(self, args):
        return self.facts[args.name]["rows"]


class Glue(Tasks, BytePairCorpus):
    """GLUE tasks in GPT-2 BPE, for fairseq's sentence_prediction.

    The folder OUT/TASK/bin contains input0, label and, for tasks with pairs of sentences, input1. The scores
    of STS-B are divided by 5. MNLI's valid and test are the matched sets, valid1 and test1 the mismatched
    ones. Test sets have no labels.
    """

    options = {**task_option([*TASKS], PAPER_TASKS), **TRAIN_ROWS, **BytePairCorpus.options}

    def prepare(self, args, folder):
        text = self.text(args)
        bpe = args.out.parent / "gpt2_bpe"
        gpt2_bpe.provide(bpe, args.bpe, args.bpe_types)
        for path in sorted(text.glob("*.input?.txt")):
            map_lines(gpt2_bpe.line_encoder(bpe), path, path.with_suffix(""), args.workers)
        for column in columns(args.task, "train"):
            splits = args.task.files
            dictionary = bpe / "dict.txt"
            if column == "label":
                splits = args.task.labeled
                dictionary = text / "labels.txt"
            if column == "label" and not args.task.labels:
                (folder / column).mkdir()
                for split in splits:
                    shutil.copyfile(text / f"{split}.label", folder / column / f"{split}.label")
                continue
            texts = {}  # one call for valid and valid1 because fairseq-preprocess is slow to start
            for kind in SPLITS:
                for split in splits:
                    if split.startswith(kind):
                        texts.setdefault(kind, []).append(text / f"{split}.{column}")
            log = args.out / "preprocess.log"
            flags = ("--only-source", "--srcdict", dictionary)
            preprocess(texts, folder / column, log, *flags, workers=args.workers)
        shutil.copyfile(text / "rows.json", folder / "rows.json")

    def report(self, args):
        rows = read_object(args.out / "bin" / "rows.json", lambda counts: counts["train"] > 0)
        print(f"{args.name}: rows: {compared(rows, self.published_rows(args))}")
        classes = len(args.task.labels) or "1 --regression-target"
        flags = f"--task sentence_prediction --num-classes {classes} --user-dir {display_path(PLUGIN)} ..."
        print(f"ready: fairseq-train {args.out / 'bin'} {flags}")


class GlueWords(Tasks, LabeledWords):
    """GLUE tasks in words, for ``classification``, without STS-B, which has scores instead of classes.

    MNLI's valid and test are the matched sets, valid1 and test1 the mismatched ones. Test sets have no
    labels.
    """

    classified = [name for name, task in TASKS.items() if task.labels]
    paper = ["SST-2", "QNLI", "QQP", "MNLI"]
    options = {**task_option(classified, paper), **LabeledWords.options}

    def check(self, args):
        super().check(args)
        if not args.task.labels:
            raise UserError(f"{args.name} has scores instead of classes: prepare it with the corpus glue")


def columns(task: Task, split: str) -> list[str]:
    """Returns the names of the columns that :func:`rows` yields.

    These are input0, input1 for pairs of sentences, and label unless the labels of the split are secret.
    """
    inputs = [f"input{i}" for i in range(len(task.sentences))]
    return [*inputs, "label"] if split in task.labeled else inputs


def rows(path: Path, task: Task, split: str, limit: int | None = None) -> Iterator:
    """Yields [sentence ..., label] of the first ``limit`` intact rows, or [sentence ...] in unlabeled splits.

    Broken rows are left out.

    Raises:
        UserError: if the file is missing or lacks a column, or if a row of an unlabeled split is broken,
            because predictions are submitted for all rows.
    """
    if not file_exists(path):
        raise UserError(f"{path} is missing: its folder must have {', '.join(task.files.values())}")
    lines = read_lines(path)
    labeled = split in task.labeled
    has_header = not (labeled and task.header)
    header = next(lines, "").split("\t") if has_header else task.header
    names = [*task.sentences, task.label] if labeled else task.sentences
    for name in names:
        if name not in header:
            raise UserError(f"{path} line 1 has no column {name}: pass the published file")
    columns_used = [header.index(name) for name in names]

    def parse(line):
        fields = line.replace("\r", " ").split("\t")  # quotes have no special meaning
        if len(fields) != len(header):
            raise UserError(f"has {len(fields)} fields instead of {len(header)}")
        values = [fields[i] for i in columns_used]
        for name, value in zip(task.sentences, values, strict=False):
            if not value.strip() and not task.empty:
                raise UserError(f"has an empty {name}")
        return [*values[:-1], label(values[-1], task)] if labeled else values

    intact = usable_rows(lines, parse, path, start=1 + has_header, limit=limit, required=not labeled)
    return with_quotes_reported(intact, path)


def with_quotes_reported(intact: Iterator[list], path: Path) -> Iterator[list]:
    """Yields the ``intact`` rows of a file, and at the end prints how many another program has quoted."""
    quoted = 0
    for row in intact:
        quoted += has_quoted_text(row)
        yield row
    if quoted:
        wrong = f"{quoted:,} rows have texts in quotes with doubled quotes inside, unlike the published file"
        remedy = "write the file without quotes, in pandas with quoting=csv.QUOTE_NONE"
        print(f"{path}: {wrong}: {remedy}", flush=True)


def has_quoted_text(row: list) -> bool:
    return any(isinstance(value, str) and is_quoted(value) for value in row)


def is_quoted(text: str) -> bool:
    """Returns whether a text is quoted as in CSV files: enclosed in quotes, with doubled quotes inside."""
    inside = text[1:-1]
    is_enclosed = len(text) > 1 and text[0] == text[-1] == '"'
    return is_enclosed and '""' in inside and '"' not in inside.replace('""', "")


def label(field: str, task: Task) -> str | float:
    if task.labels:
        if field not in task.labels:
            raise UserError(f"has the label {field!r} instead of one of {', '.join(task.labels)}")
        return field
    with suppress(ValueError):
        if 0 <= (score := float(field)) <= MAX_SCORE:
            return score / MAX_SCORE
    raise UserError(f"has the score {field!r} instead of a number from 0 to {MAX_SCORE}")


def split_mrpc(train: Path, test: Path, dev_ids: Path, folder: Path) -> None:
    """Writes train.tsv, dev.tsv and test.tsv of MRPC to ``folder``.

    The training rows whose pair of sentence IDs is in the file ``dev_ids`` form dev.tsv.
    """
    for path in (train, test, dev_ids):
        check_regular(path)
    ids = set()  # pairs of the IDs of two sentences
    for line in dev_ids.read_bytes().splitlines():
        ids.add(tuple(line.split()))
    with train.open("rb") as file:
        header, *rest = file
    train_lines = [header]
    dev_lines = [header]
    for line in rest:
        is_dev = tuple(line.split(b"\t")[1:3]) in ids
        (dev_lines if is_dev else train_lines).append(line)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.tsv").write_bytes(b"".join(train_lines))
    (folder / "dev.tsv").write_bytes(b"".join(dev_lines))
    shutil.copyfile(test, folder / "test.tsv")
