"""Loading of text datasets from the Hugging Face hub with the optional package datasets.

The ``facts`` of a dataset are its entry in sources.yaml: the name of the ``dataset``, the ``name`` of its
configuration if it has several, the ``revision``, and the expected number of ``rows``.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from data_prep.binarize import split_files
from data_prep.progress import progress

BATCH = 10_000  # rows read at once


def load(facts: dict):
    """Returns the training split of a dataset, downloading it if necessary.

    Raises:
        ValueError: If the package datasets is missing.
    """
    try:
        from datasets import load_dataset
    except ImportError:
        remedy = "run `pip install datasets`, or give a folder of text files with --from"
        raise ValueError(f"{facts['dataset']} requires the package datasets: {remedy}") from None
    return load_dataset(facts["dataset"], facts.get("name"), revision=facts["revision"], split="train")


def write_texts(
    facts: dict, folder: Path, split: Callable[[int, int], str], text: Callable[[str], str] = "{}\n".format
) -> None:
    """Writes the column "text" of a dataset to train.txt, valid.txt and test.txt.

    Row i of n belongs to the split ``split(i, n)``, and is written as ``text(row)``.
    """
    rows = load(facts)
    if (count := len(rows)) != facts["rows"]:
        print(f"{facts['dataset']} has {count:,} rows, expected {facts['rows']:,}", flush=True)
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))
            for name, path in split_files(folder).items()
        }
        for start in progress(range(0, count, BATCH), facts["dataset"], "batches"):
            for i, row in enumerate(rows[start : start + BATCH]["text"], start):
                files[split(i, count)].write(text(row))
