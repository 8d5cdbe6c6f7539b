"""What an estimate needs to know of a run's data: vocabulary sizes, lengths, labels and the number of rows.

It is read from the data folder if the data is prepared, and otherwise taken from the tables below. Lengths that
are not known without the data are the longest that the model accepts, so that estimates are upper limits.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from fairseq_lrpe.data import layout
from fairseq_lrpe.data.corpora import prepare_command
from fairseq_lrpe.data.glue_tasks import get_task
from fairseq_lrpe.utils.files import REPOSITORY, display_path

GPT2, BYTES, PIXELS = 50_264, 260, 260
"""Dictionaries in fairseq: GPT-2's BPE without <mask>; 256 bytes or values of a pixel, and 4 special types."""

VOCABULARIES = {
    # Checked by data_prep, see data_prep/sources.yaml.
    "wikitext103": (267_744,),
    **dict.fromkeys(("wikitext103_bpe", "wikitext_mini_bpe", "books", "wikibook", "glue"), (GPT2,)),
    "glue_mini": (GPT2,),
    "wmt14_en_de": (40_480, 42_720),
    # The vocab.txt of bert-base-cased and of hfl/chinese-roberta-wwm-ext.
    "squad": (28_996, 28_996),
    "cmrc2018": (21_128, 21_128),
    # SentencePiece's 32,000 pieces include <unk>, <s> and </s>, and fairseq adds four types.
    "wikipedia": (32_001,),
    **dict.fromkeys(("lra_text", "lra_retrieval", "lra_retrieval_mini"), (BYTES,)),
    **dict.fromkeys(("lra_image", "lra_image_mini", "pathfinder", "pathfinder_mini"), (PIXELS,)),
    # Ten digits, four operators and the closing bracket.
    **dict.fromkeys(("listops", "listops_mini"), (19,)),
}
"""{corpus: sizes of its dictionaries}"""

LABELS = {
    "imagenet": 1000,
    **dict.fromkeys(("cifar10_mini", "lra_image", "lra_image_mini", "listops", "listops_mini"), 10),
    **dict.fromkeys(("lra_text", "lra_retrieval", "lra_retrieval_mini"), 2),
    **dict.fromkeys(("pathfinder", "pathfinder_mini"), 2),
}
"""{corpus: number of labels}"""

GLUE = {
    "MNLI": (392_702, 40),
    "QNLI": (104_743, 52),
    "QQP": (363_846, 32),
    "RTE": (2_490, 76),
    "SST-2": (67_349, 14),
    "MRPC": (3_668, 56),
    "CoLA": (8_551, 12),
    "STS-B": (5_749, 33),
}
"""{task: (rows of the training set, mean tokens of a row)}"""

SENTENCE = 30
"""Mean tokens of a sentence in translation if the data is not prepared."""


@dataclass(frozen=True)
class Corpus:
    """The data of a run.

    Args:
        types: sizes of the dictionaries, of the source and of the target if it has its own.
        lengths: mean tokens of a source and of a target; None: the longest that the model accepts.
        labels: number of labels.
        inputs: number of texts in a row.
        pixels: whether the tokens are values of pixels.
        rows: number of rows of the training set, if the updates depend on it.
    """

    types: tuple[int, ...] = ()
    lengths: tuple[float | None, float | None] = (None, None)
    labels: int = 0
    inputs: int = 1
    pixels: bool = False
    rows: int | None = None


def read_corpus(kind, cfg) -> Corpus:
    """Returns what is known of a run's data; ValueError with the command that prepares it if that is too little."""
    if not cfg.data:
        return Corpus()
    folder = kind.folders(cfg)[0]
    name = Path(cfg.data).parts[1] if Path(cfg.data).parts[0] == "data" else ""
    read = {"sentence_prediction": _read_sentences, "translation": _read_pairs, "question_generation": _read_pairs}
    read |= dict.fromkeys(("classification", "image_classification"), _read_labelled)
    return read.get(kind.task, _read_text)(folder, name, cfg)


def _read_text(folder, name, cfg):
    return Corpus(_types(name, folder / "dict.txt"))


def _read_sentences(folder, name, cfg):
    rows, length = GLUE.get(cfg.task, (None, None))
    if (folder / "rows.json").is_file():
        rows = json.loads((folder / "rows.json").read_text())["train"]
        length = 1 + sum(_mean_length(path) for path in folder.glob("input*/train.idx"))
    types = _types(name, folder / "input0" / "dict.txt")
    return Corpus(types, (length, None), labels=len(get_task(cfg.task).labels) or 1, rows=rows)


def _read_pairs(folder, name, cfg):
    languages = cfg.train.get("source_lang", "source"), cfg.train.get("target_lang", "question")
    types = _types(name, *(folder / f"dict.{language}.txt" for language in languages))
    files = [folder / f"train.{'-'.join(languages)}.{language}.idx" for language in languages]
    lengths = (None, None) if languages == ("source", "question") else (SENTENCE, SENTENCE)
    return Corpus(types, tuple(map(_mean_length, files)) if all(x.is_file() for x in files) else lengths)


def _read_labelled(folder, name, cfg):
    length, joined = None, cfg.train.get("pairs", "joined") == "joined"
    if (folder / layout.METADATA).is_file():
        about = layout.read_metadata(folder)
        labels, inputs, pixels = len(about["labels"]), about["inputs"], bool(about.get("pixels"))
        if not about.get("images"):
            means = [_mean_length(folder / f"train.input{i}.idx", cfg.train.max_positions) for i in range(inputs)]
            length = sum(means) + 3 if joined and inputs > 1 else max(means)
    elif name in LABELS:
        labels, inputs, pixels = LABELS[name], 1 + name.startswith("lra_retrieval"), VOCABULARIES.get(name) == (PIXELS,)
        pixels = pixels and name.startswith(("lra_image", "pathfinder"))
    else:
        raise _unknown(folder)
    types = _types(name, folder / "dict.txt") if "max_positions" in cfg.train else ()
    return Corpus(types, (length, None), labels, inputs, pixels)


def _types(name, *dictionaries):
    if all(path.is_file() for path in dictionaries):
        return tuple(map(layout.vocabulary_size, dictionaries))
    if name not in VOCABULARIES:
        raise _unknown(dictionaries[0].parent)
    return VOCABULARIES[name]


def _unknown(folder):
    command = prepare_command(display_path(folder)) or "bash data_prep/prepare.sh"
    return ValueError(f"the size of the vocabulary is not known before `{command}`")


def _mean_length(index, limit=None):
    """Returns the mean length of the rows of a binarized text, truncated to ``limit``."""
    from fairseq.data.indexed_dataset import MMapIndexedDataset  # takes seconds

    sizes = MMapIndexedDataset.Index(str(index)).sizes.clip(max=limit)
    return float(sizes.mean())
