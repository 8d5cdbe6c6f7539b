"""Published data sets as the Hugging Face hub exports them: tables, which become the published files.

A folder has the tables of a data set if it contains Parquet files whose names state their splits, such as
train-00000-of-00001.parquet or validation.parquet.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from data_prep.documents import read_parquet
from fairseq_lrpe.data.glue_tasks import Task
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import visible_entries, write_lines

ON_HUB = {"train": "train", "valid": "validation", "test": "test"}
"""{split: its name on the hub}"""
SPLITS = ("train", "validation_matched", "validation_mismatched", "validation", "test_matched")
SPLITS += ("test_mismatched", "test", "unsupervised")
"""The names of splits on the hub; a name comes before those that it contains."""

GLUE_FILES = {
    "train.tsv": "train",
    "dev.tsv": "validation",
    "test.tsv": "test",
    "dev_matched.tsv": "validation_matched",
    "dev_mismatched.tsv": "validation_mismatched",
    "test_matched.tsv": "test_matched",
    "test_mismatched.tsv": "test_mismatched",
}
"""{file of a GLUE task: split on the hub}"""
GLUE_COLUMNS = {
    "CoLA": ["sentence"],
    "SST-2": ["sentence"],
    "MRPC": ["sentence1", "sentence2"],
    "STS-B": ["sentence1", "sentence2"],
    "QQP": ["question1", "question2"],
    "MNLI": ["premise", "hypothesis"],
    "QNLI": ["question", "sentence"],
    "RTE": ["sentence1", "sentence2"],
    "WNLI": ["sentence1", "sentence2"],
}
"""{GLUE task: columns with the sentences on the hub}"""
GLUE_CLASSES = {"MNLI": ["entailment", "neutral", "contradiction"]}
"""{GLUE task: names of the classes 0, 1, .. on the hub}, if they are not in the order of ``Task.labels``"""


def find_tables(folder: Path | None) -> dict[str, list[Path]]:
    """Returns {split: Parquet files, sorted} of the tables in a folder, or {} if there are none."""
    tables: dict[str, list[Path]] = {}
    if folder is None or not folder.is_dir():
        return tables
    for path in visible_entries(folder):
        if path.suffix == ".parquet":
            for split in SPLITS:
                if path.name.startswith(split):
                    tables.setdefault(split, []).append(path)
                    break
    return tables


def read_rows(tables: dict[str, list[Path]], split: str, columns: list[str]) -> Iterator[list]:
    """Yields the values of ``columns`` of each row of a split.

    Raises:
        UserError: if the split is missing, or if a file lacks a column.
    """
    if split not in tables:
        raise UserError(f"--from has no Parquet files of the split {split}: pass those of all splits")
    for path in tables[split]:
        for batch in read_parquet(path, columns, "pass the published data set"):
            for row in zip(*batch, strict=True):
                yield list(row)


def texts_to_lines(tables: dict[str, list[Path]], files: dict[str, Path]) -> None:
    """Writes the column "text" of each split to a file, a row in a line; blank rows become a space.

    This is how the hub represents the lines of WikiText. ``files`` are {split of the hub: file}.
    """
    for split, path in files.items():
        rows = read_rows(tables, split, ["text"])
        write_lines(path, (text.rstrip("\n") or " " for [text] in rows))


def pairs_to_lines(tables: dict[str, list[Path]], languages: Iterable[str], folder: Path) -> None:
    """Writes the columns of translations, such as "en" and "de", to the files {train,valid,test}.LANGUAGE."""
    for name, split in ON_HUB.items():
        for language in languages:
            rows = read_rows(tables, split, [language])
            write_lines(folder / f"{name}.{language}", (text.replace("\n", " ") for [text] in rows))


def questions_to_json(tables: dict[str, list[Path]], files: dict[str, dict], folder: Path) -> None:
    """Writes SQuAD's questions to files in its format; ``files`` are {split: {"name": name of its file}}."""
    folder.mkdir(exist_ok=True)
    for name, file in files.items():
        split = ON_HUB[name]
        paragraphs = []
        for context, question, answers in read_rows(tables, split, ["context", "question", "answers"]):
            if not paragraphs or paragraphs[-1]["context"] != context:
                paragraphs.append({"context": context, "qas": []})
            starts = zip(answers["text"], answers["answer_start"], strict=True)
            entry = {"question": question, "answers": []}
            for text, start in starts:
                entry["answers"].append({"text": text, "answer_start": start})
            paragraphs[-1]["qas"].append(entry)
        (folder / file["name"]).write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))


def reviews_to_files(tables: dict[str, list[Path]], labels: tuple[str, ...], folder: Path) -> None:
    """Writes IMDB's reviews to files {train,test}/LABEL/NUMBER.txt, and those without a label to train/unsup.

    The published names of the reviews, which decide their order, are not on the hub.
    """
    for split in ("train", "test", "unsupervised"):
        if split == "unsupervised" and split not in tables:
            continue
        for number, (text, label) in enumerate(read_rows(tables, split, ["text", "label"])):
            parent = folder / "train" / "unsup"
            if split != "unsupervised":
                parent = folder / split / class_name(label, "IMDB", labels)
            parent.mkdir(parents=True, exist_ok=True)
            (parent / f"{number}.txt").write_text(text, encoding="utf-8")


def glue_to_tsv(tables: dict[str, list[Path]], name: str, task: Task, folder: Path) -> None:
    """Writes the rows of a GLUE task to files in the published format.

    Args:
        tables: {split of the hub: files}.
        name: the name of the task.
        task: the task.
        folder: the folder of the files, which exists.

    Raises:
        UserError: if a split is missing, or if a class is unknown.
    """
    label = score
    if task.labels:
        label = partial(class_name, name=name, labels=GLUE_CLASSES.get(name, task.labels))
    for split, file in task.files.items():
        is_labeled = split in task.labeled
        header = [*task.sentences, task.label] if is_labeled else list(task.sentences)
        columns = [*GLUE_COLUMNS[name], "label"] if is_labeled else GLUE_COLUMNS[name]
        lines = ["\t".join(header)]
        if is_labeled and task.header:  # CoLA's labeled files have no header, and further columns
            header = task.header
            lines = []
        for values in read_rows(tables, GLUE_FILES[file], columns):
            named = dict(zip([*task.sentences, task.label], values, strict=False))
            if is_labeled:
                named[task.label] = label(named[task.label])
            texts = [named.get(column, "") for column in header]
            lines.append("\t".join(text.replace("\t", " ").replace("\n", " ") for text in texts))
        write_lines(folder / file, lines)


def score(value: float) -> str:
    """Returns a score of STS-B as in the published files; the hub has it in single precision."""
    return f"{value:.3f}"


def class_name(value: int, name: str, labels: Sequence[str]) -> str:
    """Returns the label in the published files of ``name`` for a value of the hub's column "label"."""
    if value not in range(len(labels)):
        raise UserError(f"{name} has the class {value}: expected 0 to {len(labels) - 1}")
    return labels[value]
