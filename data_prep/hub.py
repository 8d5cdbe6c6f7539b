"""Texts of Hugging Face's hub, through its package datasets, which is installed apart.

The facts of one, as sources.yaml has them: its ``dataset``, the ``name`` of its part if it has several, its
``revision``, and how many ``rows`` it has.
"""

import contextlib
import importlib.util
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from data_prep.binarise import texts_in

READ = 10_000  # rows at a time


def check_package(facts: dict, instead: str) -> None:
    """Raises ValueError if the package datasets is not installed; ``instead`` is what --from takes."""
    if importlib.util.find_spec("datasets") is None:
        raise ValueError(
            f"{facts['dataset']} comes through the package datasets, which is not installed: "
            f"run `pip install datasets`, or give {instead} with --from"
        )


def write_texts(
    facts: dict,
    folder: Path,
    instead: str,
    split: Callable[[int, int], str],
    text: Callable[[str], str] = "{}\n".format,
) -> None:
    """Writes train.txt, valid.txt and test.txt: row i of n goes to ``split(i, n)``, as ``text`` of it."""
    try:
        from datasets import load_dataset

        corpus = load_dataset(facts["dataset"], facts.get("name"), revision=facts["revision"], split="train")
    except Exception as error:  # of the network, the hub or the package: whatever it is, only --from helps
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(
            f"{facts['dataset']} could not be loaded ({reason[0]}): "
            f"try again later, or give {instead} with --from"
        ) from error
    rows = len(corpus)
    if rows != facts["rows"]:
        print(f"{facts['dataset']} has {rows:,} rows now, not the {facts['rows']:,} that it had", flush=True)
    with contextlib.ExitStack() as stack:
        files = {
            name: stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))
            for name, path in texts_in(folder).items()
        }
        bar = stack.enter_context(tqdm(total=rows, desc=facts["dataset"], unit="rows", disable=None))
        for start in range(0, rows, READ):
            batch = corpus[start : start + READ]["text"]
            for i, row in enumerate(batch, start):
                files[split(i, rows)].write(text(row))
            bar.update(len(batch))
