"""BookCorpus (Zhu et al. 2015) through the Hugging Face package ``datasets``, which is installed apart."""

import importlib.util
from pathlib import Path

from tqdm import tqdm

from data_prep.binarise import SPLITS
from data_prep.fetch import SOURCES

SOURCE = SOURCES["bookcorpus"]
ROWS = 10_000  # read at a time


def check() -> None:
    """Raises ValueError unless the package ``datasets`` is installed."""
    if importlib.util.find_spec("datasets") is None:
        raise ValueError(
            "BookCorpus comes through the package datasets, which is not installed: "
            "run `pip install datasets`, or give a folder of books with --from"
        )


def write(folder: Path) -> None:
    """Writes train.txt, the first 98% of the lines, valid.txt, the next 1%, and test.txt, the last."""
    try:
        from datasets import load_dataset

        corpus = load_dataset(SOURCE["dataset"], revision=SOURCE["revision"], split="train")
    except Exception as error:  # of the network, the hub or the package: whatever it is, only --from helps
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(
            f"{SOURCE['dataset']} could not be loaded ({reason[0]}): "
            "try again later, or give a folder of books with --from"
        ) from error
    if len(corpus) != SOURCE["lines"]:
        print(f"{SOURCE['dataset']} has {len(corpus):,} lines now, not the {SOURCE['lines']:,} of BookCorpus")
    share = len(corpus) // 100
    ends = [0, len(corpus) - 2 * share, len(corpus) - share, len(corpus)]
    for split, first, end in zip(SPLITS, ends[:-1], ends[1:], strict=True):
        with (folder / f"{split}.txt").open("w", encoding="utf-8") as file:
            for start in tqdm(range(first, end, ROWS), desc=f"{split}.txt", disable=None):
                rows = corpus[start : min(start + ROWS, end)]["text"]
                file.writelines(f"{line}\n" for line in rows)
