"""BookCorpus (Zhu et al. 2015) through the Hugging Face package ``datasets``, which is installed apart."""

import importlib.util

from tqdm import tqdm

from data_prep import door
from data_prep.binarise import SOURCES

SOURCE = SOURCES["bookcorpus"]
ROWS = 10_000  # read at a time


def check():
    """BadInput unless the package ``datasets`` is installed."""
    if importlib.util.find_spec("datasets") is None:
        raise door.BadInput(
            "BookCorpus comes through the package datasets, which is not installed: "
            "run `pip install datasets`, or give a folder of books with --from"
        )


def write(folder):
    """folder/{train,valid,test}.txt: the first 98% of the lines, the next and the last 1%."""
    try:
        from datasets import load_dataset

        corpus = load_dataset(SOURCE["dataset"], revision=SOURCE["revision"], split="train")
    except Exception as error:  # of the network, the hub or the package: whatever it is, only --from helps
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise door.BadInput(
            f"{SOURCE['dataset']} could not be loaded ({reason[0]}): "
            "try again later, or give a folder of books with --from"
        ) from error
    if len(corpus) != SOURCE["lines"]:
        print(f"{SOURCE['dataset']} has {len(corpus):,} lines now, not the {SOURCE['lines']:,} of BookCorpus")
    share = len(corpus) // 100
    spans = {
        "train": range(0, len(corpus) - 2 * share),
        "valid": range(len(corpus) - 2 * share, len(corpus) - share),
        "test": range(len(corpus) - share, len(corpus)),
    }
    for split, span in spans.items():
        with (folder / f"{split}.txt").open("w", encoding="utf-8") as file:
            for start in tqdm(range(span.start, span.stop, ROWS), desc=f"{split}.txt", disable=None):
                rows = corpus[start : min(start + ROWS, span.stop)]["text"]
                file.writelines(f"{line}\n" for line in rows)
