"""Properties of the papers' corpora, for estimates before the corpora are prepared."""

from typing import NamedTuple

from omegaconf import DictConfig

from fairseq_lrpe.data import layout
from fairseq_lrpe.data.corpora import prepare_command
from fairseq_lrpe.experiments.definition.kinds import Kind
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import PREPARE, display_path, file_exists


class Corpus(NamedTuple):
    """Properties of a run's data from which its model is built."""

    types: tuple[int, ...] = ()  # sizes of the dictionaries, without <mask>
    labels: int = 0
    inputs: int = 1  # texts per row
    pixels: bool = False  # whether tokens are pixels


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
"""{folder in data: properties of the papers' corpus}"""

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
    """Returns the properties of a run's data, from its files or, if it is not prepared, from ``CORPORA``.

    Raises:
        UserError: if the data is neither prepared nor in ``CORPORA``.
    """
    folders = kind.folders(cfg)
    if not folders:
        return Corpus()
    files = kind.data(cfg)
    dictionaries = [path for path in files if path.name.startswith("dict.")]
    metadata = [path for path in files if path == folders[0] / layout.METADATA]
    if all(map(file_exists, [*dictionaries, *metadata])):
        types = tuple(map(layout.vocabulary_size, dictionaries))
        content = layout.read_metadata(folders[0]) if metadata else {}
        labels = len(content.get("labels", ()))
        return Corpus(types, labels, content.get("inputs", 1), "pixels" in content)
    name = cfg.data.removeprefix("data/").partition("/")[0]
    if name not in CORPORA:
        command = prepare_command(display_path(folders[0])) or PREPARE
        raise UserError(f"the vocabulary is not known before the data is prepared: run `{command}`")
    return CORPORA[name]
