"""What a model needs to know of its data: sizes of dictionaries, labels and inputs."""

from typing import NamedTuple

from omegaconf import DictConfig

from fairseq_lrpe.data import layout
from fairseq_lrpe.data.corpora import prepare_command
from fairseq_lrpe.experiments.definition.kinds import Kind
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import PREPARE, display_path


class Corpus(NamedTuple):
    """The data of a run: sizes of its dictionaries, labels, texts per row, and whether tokens are pixels."""

    types: tuple[int, ...] = ()  # without <mask>
    labels: int = 0
    inputs: int = 1
    pixels: bool = False


CORPORA = {
    "wikitext103": Corpus((267_744,)),
    "wmt14_en_de": Corpus((40_480, 42_720)),
    "squad": Corpus((28_996, 28_996)),  # vocab.txt of bert-base-cased
    "cmrc2018": Corpus((21_128, 21_128)),  # vocab.txt of hfl/chinese-roberta-wwm-ext
    # GPT-2's 50,257 types, 3 that fill them up, and fairseq's four.
    **dict.fromkeys(("wikitext103_bpe", "books", "wikibook", "glue"), Corpus((50_264,))),
    "imagenet": Corpus(labels=1000),
    "listops": Corpus((19,), 10),  # ten digits, four operators, a bracket, and fairseq's four types
    "lra_text": Corpus((260,), 2),  # 256 values of a byte or a pixel, and fairseq's four types
    "lra_retrieval": Corpus((260,), 2, inputs=2),
    "lra_image": Corpus((260,), 10, pixels=True),
    "pathfinder": Corpus((260,), 2, pixels=True),
}
"""The papers' corpora, for estimates before they are prepared."""

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
"""{task: (rows of the training set as published, mean tokens in GPT-2's BPE with separators)}"""


def read_corpus(kind: Kind, cfg: DictConfig) -> Corpus:
    """Returns what is known of a run's data; UserError with the command that prepares it otherwise."""
    if not cfg.data:
        return Corpus()
    folder = kind.folders(cfg)[0]
    about = layout.read_metadata(folder) if (folder / layout.METADATA).is_file() else {}
    if about.get("images"):
        return Corpus(labels=len(about["labels"]))
    names = {
        "translation": [f"dict.{cfg.train.get(side)}.txt" for side in ("source_lang", "target_lang")],
        "question_generation": ["dict.source.txt", "dict.question.txt"],
        "sentence_prediction": ["input0/dict.txt"],
    }
    files = [folder / name for name in names.get(kind.task, ["dict.txt"])]
    if all(path.is_file() for path in files):
        types, labels = tuple(map(layout.vocabulary_size, files)), len(about.get("labels", ()))
        return Corpus(types, labels, about.get("inputs", 1), bool(about.get("pixels")))
    name = cfg.data.removeprefix("data/").partition("/")[0]
    if name not in CORPORA:
        command = prepare_command(display_path(folder)) or PREPARE
        raise UserError(f"the vocabulary is not known before the data is prepared: run `{command}`")
    return CORPORA[name]
