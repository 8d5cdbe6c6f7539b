"""GLUE's tasks in GPT-2's byte pairs -> binaries for fairseq's sentence_prediction (``data_prep/glue.sh``).

OUT/TASK/bin has input0 (and input1 of pairs) and label; MNLI's valid and test are the matched sets, its
valid1 and test1 the mismatched ones. Test sets have no labels. STS-B's scores are divided by 5.
"""

import argparse
import json
import os
import re
import shutil
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from data_prep import binarise, door, fetch, gpt2_bpe
from data_prep.binarise import DATA, SOURCES
from fairseq_lrpe.commands import run

SOURCE = SOURCES["glue"]
FILES = {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv"}
TWICE = {
    "train": "train.tsv",
    "valid": "dev_matched.tsv",
    "valid1": "dev_mismatched.tsv",
    "test": "test_matched.tsv",
    "test1": "test_mismatched.tsv",
}
PAIR = ("sentence1", "sentence2")
YES_NO = ("0", "1")
TWO_WAY = ("entailment", "not_entailment")
THREE_WAY = ("contradiction", "entailment", "neutral")
HIGHEST = 5  # score of STS-B


class Task(NamedTuple):
    sentences: tuple[str, ...]  # their columns' names
    label: str  # its column's name
    labels: tuple[str, ...]  # in the order of their dictionary; none: a score
    files: dict[str, str] = FILES
    header: tuple[str, ...] = ()  # of the labelled files, if they lack one
    empty: bool = False  # whether a sentence may be


TASKS = {
    "CoLA": Task(("sentence",), "label", YES_NO, header=("source", "label", "mark", "sentence")),
    "SST-2": Task(("sentence",), "label", YES_NO),
    "MRPC": Task(("#1 String", "#2 String"), "Quality", YES_NO),
    "STS-B": Task(PAIR, "score", ()),
    # QQP's training set has a few empty questions; MNLI's files have not been looked through for such.
    "QQP": Task(("question1", "question2"), "is_duplicate", YES_NO, empty=True),
    "MNLI": Task(PAIR, "gold_label", THREE_WAY, files=TWICE, empty=True),
    "QNLI": Task(("question", "sentence"), "label", TWO_WAY),
    "RTE": Task(PAIR, "label", TWO_WAY),
    "WNLI": Task(PAIR, "label", YES_NO),
}
DEFAULT = [name for name in TASKS if name != "WNLI"]  # which the papers leave out


def labelled(split):
    return not split.startswith("test")


def columns(task, split):
    """The names of fairseq's folders for what ``rows`` gives of a split."""
    inputs = [f"input{i}" for i in range(len(task.sentences))]
    return [*inputs, "label"] if labelled(split) else inputs


def lines(path):
    """(number, fields) of each line of a TSV; quotes are characters like others."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise door.BadInput(
                    f"{path} line {number} is not UTF-8 text ({error.reason}): convert it first"
                ) from None
            # A carriage return inside a sentence would end a line of the text to encode.
            yield number, text.removesuffix("\n").removesuffix("\r").replace("\r", " ").split("\t")


def rows(path, task, split, most=None):
    """The sentences, and the label if there is one, of the first ``most`` rows; BadInput names a bad line."""
    numbered = lines(path)
    header = task.header if labelled(split) and task.header else next(numbered, (1, [""]))[1]
    wanted = [*task.sentences, task.label] if labelled(split) else task.sentences
    for name in wanted:
        if name not in header:
            raise door.BadInput(f"{path} line 1 names no column {name}: {excerpt(header)}")
    places = [header.index(name) for name in wanted]
    for number, fields in islice(numbered, most):
        where = f"{path} line {number}"
        if len(fields) != len(header):
            raise door.BadInput(
                f"{where} has {len(fields)} fields instead of {len(header)}: {excerpt(fields)}"
            )
        values = [fields[place] for place in places]
        for name, value in zip(task.sentences, values, strict=False):
            if not value.strip() and not task.empty:
                raise door.BadInput(f"{where} has an empty {name}: {excerpt(fields)}")
        if labelled(split):
            values[-1] = label(values[-1], task, where)
        yield values


def excerpt(fields):
    text = " | ".join(fields)
    return text if len(text) <= 80 else text[:80] + "…"


def label(field, task, where):
    """What the label file gets for ``field``."""
    if task.labels:
        if field not in task.labels:
            raise door.BadInput(f"{where} has the label {field!r} instead of one of {', '.join(task.labels)}")
        return field
    try:
        score = float(field)
    except ValueError:
        score = -1
    if not 0 <= score <= HIGHEST:
        raise door.BadInput(f"{where} has the score {field!r} instead of a number from 0 to {HIGHEST}")
    return score / HIGHEST


def published(name, folder):
    """The folder with the task's TSVs, fetched into ``folder``."""
    paths = [
        fetch.fetch(folder / file, facts["mirrors"], facts["size"], facts["sha256"])
        for file, facts in SOURCE[name]["files"].items()
    ]
    unpacked = folder / "unpacked"
    if name == "MRPC":
        split_mrpc(*paths, unpacked / name)
    else:
        fetch.unpack(*paths, unpacked)
    return unpacked / name


def split_mrpc(train, test, dev_ids, folder):
    """GLUE's TSVs of MRPC: its dev set is the rows of the training set whose two IDs are in a list."""
    if folder.is_dir():
        return
    ids = {tuple(line.split()) for line in dev_ids.read_bytes().splitlines()}
    with train.open("rb") as file:
        header, *rest = file
    chosen = {line: tuple(line.split(b"\t")[1:3]) in ids for line in rest}
    with door.whole_folder(folder, train.name) as part:
        for file, in_dev in (("train.tsv", False), ("dev.tsv", True)):
            (part / file).write_bytes(b"".join([header, *(x for x in rest if chosen[x] == in_dev)]))
        shutil.copyfile(test, part / "test.tsv")


def check(folder, task, train_rows):
    """BadInput names what is missing or malformed in a folder of TSVs."""
    for file in task.files.values():
        if not (folder / file).is_file():
            raise door.BadInput(f"{folder / file} is missing: {' '.join(task.files.values())} are needed")
    for split, file in task.files.items():
        if not sum(1 for _ in rows(folder / file, task, split, most(split, train_rows))):
            raise door.BadInput(f"{folder / file} has no rows")


def most(split, train_rows):
    """How many rows of a split are taken; None: all."""
    return train_rows if split == "train" else None


def write_text(folder, task, train_rows, text, source):
    """text/<split>.input<i>.txt and text/<split>.label, a row per line, and rows.json; it appears whole."""
    if text.is_dir():
        return
    counts = {}
    with door.whole_folder(text, source) as part:
        for split, file in task.files.items():
            found = zip(*rows(folder / file, task, split, most(split, train_rows)), strict=True)
            for column, values in zip(columns(task, split), found, strict=True):
                ending = "" if column == "label" else ".txt"
                with (part / f"{split}.{column}{ending}").open("w", encoding="utf-8", newline="\n") as out:
                    out.writelines(f"{value}\n" for value in values)
            counts[split] = len(values)
        (part / "rows.json").write_text(json.dumps(counts) + "\n")
        # fairseq takes it as it is: label i is number i after the four special types, and no madeupwords.
        (part / "labels.txt").write_text("".join(f"{name} 0\n" for name in task.labels))


def encode(text, bpe, workers):
    """text/<split>.input<i> of each .txt; those of an earlier run are kept."""
    for path in sorted(text.glob("*.input?.txt")):
        if not (target := path.with_suffix("")).exists():
            gpt2_bpe.encode(path, target, bpe, workers)


def write_bin(task, text, out, source, dictionary, workers):
    """``out``/bin for fairseq; it appears whole or not at all."""
    print(f"Preparing {out / 'bin'}", flush=True)
    with door.whole_folder(out / "bin", source) as part:
        for column in columns(task, "train"):
            files = {
                split: text / f"{split}.{column}" for split in task.files if column in columns(task, split)
            }
            if column != "label":
                to_binaries(files, part / column, dictionary, out, workers)
            elif task.labels:
                to_binaries(files, part / column, text / "labels.txt", out, workers)
            else:
                (part / column).mkdir()
                for split, path in files.items():
                    shutil.copyfile(path, part / column / f"{split}.label")
        shutil.copyfile(text / "rows.json", part / "rows.json")


def to_binaries(files, folder, dictionary, out, workers):
    """fairseq-preprocess of ``files`` {split: path}, all at once: most of its time is its start."""
    prefixes = []
    for kind in binarise.SPLITS:
        if paths := [str(path) for split, path in files.items() if split.startswith(kind)]:
            prefixes += [f"--{kind}pref", ",".join(paths)]
    run(
        "preprocess",
        ["--only-source", *prefixes, "--srcdict", dictionary, "--destdir", folder, "--workers", workers],
        out / "preprocess.log",
        show=r"(?<=\[None\] ).*",
    )


def made_from(out, source, train_rows):
    """The source as the notes in ``out`` name it; without --from, the one of an earlier run is meant."""
    name, note = source.resolve() if source else "the published files", out / "bin" / door.NOTE
    if source is None and note.exists():
        name = re.sub(r", \d+ training rows$", "", note.read_text().strip())
    return f"{name}, {train_rows} training rows" if train_rows else str(name)


def report(name, out, train_rows):
    """A task's last lines: its rows beside the published ones, and how to train."""
    task, expected = TASKS[name], SOURCE[name]["rows"]
    found = json.loads((out / "bin" / "rows.json").read_text())
    same = ", as published" if found == expected else ""
    print(f"{name}: {', '.join(f'{split} {found[split]:,}' for split in task.files)} rows{same}")
    for split in task.files:
        if found[split] != expected[split]:
            why = " (--train-rows)" if found[split] == most(split, train_rows) else ""
            print(f"{name} {split}: {found[split]:,} rows{why}, published are {expected[split]:,}")
    classes = len(task.labels) or "1 --regression-target"
    flags = f"--task sentence_prediction --num-classes {classes} --user-dir fairseq_lrpe ..."
    print(f"ready: fairseq-train {out / 'bin'} {flags}")


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="glue.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "tasks", nargs="*", metavar="TASK", help=f"from {' '.join(TASKS)} (default: all but WNLI)"
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FOLDER",
        help="GLUE's TSVs, TASK/train.tsv and so on (default: download them)",
    )
    parser.add_argument(
        "--bpe",
        type=Path,
        metavar="FOLDER",
        help="encoder.json, vocab.bpe and dict.txt of GPT-2's byte pairs (default: download them)",
    )
    parser.add_argument("--out", type=Path, default=DATA / "glue", help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="default: %(default)s")
    parser.add_argument(
        "--train-rows", type=int, metavar="N", help="only the first N of each training set, for a trial"
    )
    args = parser.parse_intermixed_args(arguments)
    with door.one_sentence("glue"):
        names = list(dict.fromkeys(args.tasks or DEFAULT))
        for name in names:
            if name not in TASKS:
                raise door.BadInput(f"there is no task {name}: choose from {', '.join(TASKS)}")
        door.check_workers(args.workers)
        if args.train_rows is not None and args.train_rows < 1:
            raise door.BadInput(f"--train-rows must be at least 1, not {args.train_rows}")
        if args.source and not args.source.is_dir():
            raise door.BadInput(f"{args.source} is not a folder: --from takes one with TASK/train.tsv etc.")
        prepare(names, args)
        for name in names:
            report(name, args.out / name, args.train_rows)


def prepare(names, args):
    """OUT/TASK/bin of each task; all are checked before the first is encoded."""
    source = {name: made_from(args.out / name, args.source, args.train_rows) for name in names}
    for name in names:
        door.check_out(args.out / name, source[name])
    folders = {}
    for name in names:
        if binarise.finished(args.out / name):
            print(f"already there: {args.out / name / 'bin'}")
            continue
        folders[name] = args.source / name if args.source else published(name, args.out / name)
        print(f"Checking {folders[name]}", flush=True)
        check(folders[name], TASKS[name], args.train_rows)
    bpe = args.out / "gpt2_bpe"
    if folders:
        gpt2_bpe.provide(bpe, args.bpe)
    for name, folder in folders.items():
        task, out = TASKS[name], args.out / name
        text = out / "text"
        write_text(folder, task, args.train_rows, text, source[name])
        encode(text, bpe, args.workers)
        write_bin(task, text, out, source[name], bpe / "dict.txt", args.workers)


if __name__ == "__main__":
    main()
