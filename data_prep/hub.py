"""Loading of text datasets from the Hugging Face hub with the optional package datasets.

The ``facts`` of a dataset are its entry in sources.yaml: the name of the ``dataset``, the ``name`` of its
configuration if it has several, the ``revision``, and the expected number of ``rows``.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tqdm import tqdm

from data_prep.binarize import split_files

BATCH = 10_000  # rows read at once


def load(facts: dict, alternative: str):
    """Returns the training split of a dataset, downloading it if necessary.

    Raises:
        ValueError: If that fails; the message suggests ``alternative`` as the value of --from.
    """
    try:
        from datasets import load_dataset

        return load_dataset(facts["dataset"], facts.get("name"), revision=facts["revision"], split="train")
    except Exception as error:  # any error of the network, hub or package
        reason = str(error).strip().splitlines() or [type(error).__name__]
        remedy = "run `pip install datasets`" if isinstance(error, ImportError) else "try again later"
        raise ValueError(
            f"{facts['dataset']} could not be loaded ({reason[0]}): "
            f"{remedy}, or give {alternative} with --from"
        ) from error


def write_texts(
    rows,
    facts: dict,
    folder: Path,
    split: Callable[[int, int], str],
    text: Callable[[str], str] = "{}\n".format,
) -> None:
    """Writes the column "text" of a dataset to train.txt, valid.txt and test.txt.

    Row i of n belongs to the split ``split(i, n)``, and is written as ``text(row)``.
    """
    count = len(rows)
    if count != facts["rows"]:
        print(f"{facts['dataset']} has {count:,} rows, expected {facts['rows']:,}", flush=True)
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))
            for name, path in split_files(folder).items()
        }
        bar = stack.enter_context(tqdm(total=count, desc=facts["dataset"], unit="rows", disable=None))
        for start in range(0, count, BATCH):
            batch = rows[start : start + BATCH]["text"]
            for i, row in enumerate(batch, start):
                files[split(i, count)].write(text(row))
            bar.update(len(batch))
