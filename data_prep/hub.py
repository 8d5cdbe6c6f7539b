"""Text datasets of the Hugging Face hub, through the optional package datasets.

The facts of a dataset, as in sources.yaml: ``dataset``, its configuration ``name`` if it has several,
``revision``, and the expected number of ``rows``.
"""

import contextlib
import importlib.util
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from data_prep.binarize import split_files

BATCH = 10_000  # rows


def check_package(facts: dict, alternative: str) -> None:
    """Raises ValueError if the package datasets is not installed; ``alternative`` describes --from."""
    if importlib.util.find_spec("datasets") is None:
        raise ValueError(
            f"{facts['dataset']} comes through the package datasets, which is not installed: "
            f"run `pip install datasets`, or give {alternative} with --from"
        )


def write_texts(
    facts: dict,
    folder: Path,
    alternative: str,
    split: Callable[[int, int], str],
    text: Callable[[str], str] = "{}\n".format,
) -> None:
    """Writes train.txt, valid.txt and test.txt: row i of n becomes ``text(row)`` in ``split(i, n)``."""
    try:
        from datasets import load_dataset

        corpus = load_dataset(facts["dataset"], facts.get("name"), revision=facts["revision"], split="train")
    except Exception as error:  # any error of the network, hub or package
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(
            f"{facts['dataset']} could not be loaded ({reason[0]}): "
            f"try again later, or give {alternative} with --from"
        ) from error
    rows = len(corpus)
    if rows != facts["rows"]:
        print(f"{facts['dataset']} has {rows:,} rows, expected {facts['rows']:,}", flush=True)
    with contextlib.ExitStack() as stack:
        files = {
            name: stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))
            for name, path in split_files(folder).items()
        }
        bar = stack.enter_context(tqdm(total=rows, desc=facts["dataset"], unit="rows", disable=None))
        for start in range(0, rows, BATCH):
            batch = corpus[start : start + BATCH]["text"]
            for i, row in enumerate(batch, start):
                files[split(i, rows)].write(text(row))
            bar.update(len(batch))
