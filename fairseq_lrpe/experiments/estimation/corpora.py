"""What an estimate needs to know of a run's data: vocabularies, lengths, labels and numbers of rows.

It is read from the data folder if the data is prepared, and taken from the tables below otherwise. Lengths
that are in neither are the longest that the model accepts, so that the estimate is an upper limit.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from fairseq_lrpe.data import layout
from fairseq_lrpe.data.corpora import prepare_command
from fairseq_lrpe.data.glue_tasks import get_task
from fairseq_lrpe.experiments.spec.kinds import Kind
from fairseq_lrpe.utils.files import PREPARE, display_path

GPT2 = (50_264,)
"""GPT-2's 50,257 types, 3 that fill them up, and fairseq's four; checked by data_prep (sources.yaml)."""
BYTES = (260,)
"""256 values of a byte or a pixel, and fairseq's four types."""

VOCABULARIES = {
    "wikitext103": (267_744,),  # checked by data_prep (sources.yaml)
    "wmt14_en_de": (40_480, 42_720),  # likewise
    "squad": (28_996, 28_996),  # vocab.txt of bert-base-cased
    "cmrc2018": (21_128, 21_128),  # vocab.txt of hfl/chinese-roberta-wwm-ext
    "wikipedia": (32_001,),  # 32,000 pieces include <unk>, <s> and </s>, and fairseq adds four types
    "imdb_lm": (8_000,),  # likewise, without pieces that do not occur, rounded up to a multiple of 8
    "listops": (19,),  # ten digits, four operators, a bracket, and fairseq's four types
    "listops_mini": (19,),
    **dict.fromkeys(("wikitext103_bpe", "books", "wikibook", "glue"), GPT2),
    **dict.fromkeys(("wikitext_mini_bpe", "glue_mini"), (8_004,)),  # 8,000, and fairseq's four types
    **dict.fromkeys(("lra_text", "lra_retrieval", "lra_retrieval_mini"), BYTES),
    **dict.fromkeys(("lra_image", "lra_image_mini", "pathfinder", "pathfinder_mini"), BYTES),
}
"""{corpus: sizes of its dictionaries in fairseq, without <mask>}"""

TEXTS = ("lra_text", "lra_retrieval", "lra_retrieval_mini", "listops", "listops_mini")
PIXELS = ("lra_image", "lra_image_mini", "pathfinder", "pathfinder_mini")
PAIRS = ("lra_retrieval", "lra_retrieval_mini")
LABELS = {
    "imagenet": 1000,
    **dict.fromkeys(("cifar10_mini", "lra_image", "lra_image_mini", "listops", "listops_mini"), 10),
    **dict.fromkeys(("lra_text", "pathfinder", "pathfinder_mini", *PAIRS), 2),
}
"""{corpus: number of labels}"""

GLUE = {
    "MNLI": (392_702, 39),
    "QNLI": (104_743, 51),
    "QQP": (363_846, 31),
    "RTE": (2_490, 70),
    "SST-2": (67_349, 15),
    "MRPC": (3_668, 53),
    "CoLA": (8_551, 11),
    "STS-B": (5_749, 28),
    "WNLI": (635, 37),
}
"""{task: (rows of the training set as published, mean tokens in GPT-2's BPE with separators)}

The means are of 2,000 rows of the training sets, or of MNLI's and QNLI's development sets; QQP's is assumed.
"""

LONGEST = "the longest texts that the model accepts: an upper limit"
SENTENCE = 30
"""Assumed mean tokens of a sentence of a translation."""


@dataclass(frozen=True)
class Corpus:
    """The data of a run.

    Args:
        types: sizes of the dictionaries, of the source and of the target if it has its own.
        lengths: mean tokens of a source and of a target; None: the longest that the model accepts.
        labels: number of labels.
        inputs: number of texts in a row.
        pixels: whether the tokens are values of pixels.
        rows: number of rows of the training set, if the number of updates depends on it.
        note: what is assumed because the data is not prepared.
    """

    types: tuple[int, ...] = ()
    lengths: tuple[float | None, float | None] = (None, None)
    labels: int = 0
    inputs: int = 1
    pixels: bool = False
    rows: int | None = None
    note: str = ""


def read_corpus(kind: Kind, cfg: DictConfig) -> Corpus:
    """Returns what is known of a run's data; ValueError with the command that prepares it otherwise."""
    if not cfg.data:
        return Corpus()
    folder, parts = kind.folders(cfg)[0], Path(cfg.data).parts
    name = parts[1] if parts[0] == "data" else ""
    read = {
        "sentence_prediction": _read_sentences,
        "translation": _read_pairs,
        "question_generation": _read_pairs,
        "classification": _read_labelled,
        "image_classification": _read_labelled,
    }
    if kind.task in read:
        return read[kind.task](folder, name, cfg)
    return Corpus(_types(name, folder / "dict.txt"))


def _read_sentences(folder, name, cfg):
    (rows, length), note = GLUE[cfg.task], "published numbers of rows, and mean lengths of samples"
    if (folder / "rows.json").is_file():
        rows = json.loads((folder / "rows.json").read_text())["train"]
        length, note = 1 + sum(map(_mean_length, folder.glob("input*/train.idx"))), ""
    types = _types(name, folder / "input0" / "dict.txt")
    return Corpus(types, (length, None), len(get_task(cfg.task).labels) or 1, rows=rows, note=note)


def _read_pairs(folder, name, cfg):
    source, target = cfg.train.get("source_lang", "source"), cfg.train.get("target_lang", "question")
    types = _types(name, *(folder / f"dict.{language}.txt" for language in (source, target)))
    files = [folder / f"train.{source}-{target}.{language}.idx" for language in (source, target)]
    if all(path.is_file() for path in files):
        return Corpus(types, tuple(map(_mean_length, files)))
    if target == "question":
        return Corpus(types, note=LONGEST)
    return Corpus(types, (SENTENCE, SENTENCE), note=f"sentences of {SENTENCE} tokens")


def _read_labelled(folder, name, cfg):
    if not (folder / layout.METADATA).is_file():
        if name not in LABELS:
            raise _unknown(folder)
        note = LONGEST if name in TEXTS else ""
        types, inputs = VOCABULARIES.get(name, ()), 1 + (name in PAIRS)
        return Corpus(types, labels=LABELS[name], inputs=inputs, pixels=name in PIXELS, note=note)
    about = layout.read_metadata(folder)
    labels, inputs = len(about["labels"]), about["inputs"]
    if about.get("images"):
        return Corpus(labels=labels)
    lengths = [_mean_length(folder / f"train.input{i}.idx", cfg.train.max_positions) for i in range(inputs)]
    length = max(lengths) if inputs == 1 or cfg.train.get("pairs") == "apart" else sum(lengths) + 3
    types = _types(name, folder / "dict.txt")
    return Corpus(types, (length, None), labels, inputs, bool(about.get("pixels")))


def _types(name, *dictionaries):
    """Returns the sizes of dictionaries."""
    if all(path.is_file() for path in dictionaries):
        return tuple(map(layout.vocabulary_size, dictionaries))
    if name not in VOCABULARIES:
        raise _unknown(dictionaries[0].parent)
    return VOCABULARIES[name]


def _unknown(folder):
    command = prepare_command(display_path(folder)) or PREPARE
    return ValueError(f"the vocabulary is not known before the data is prepared: run `{command}`")


def _mean_length(index, limit=None):
    """Returns the mean length of the rows of a binarized text, truncated to ``limit``."""
    from fairseq.data.indexed_dataset import MMapIndexedDataset  # takes seconds

    return float(MMapIndexedDataset.Index(str(index)).sizes.clip(max=limit).mean())
