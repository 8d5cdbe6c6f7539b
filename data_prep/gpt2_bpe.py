"""Text in GPT-2's byte pairs, on all cores: ``python -m data_prep.gpt2_bpe TEXT ENCODED --bpe FOLDER``."""

import argparse
import hashlib
import logging
import os
import re
import signal
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path

from tqdm import tqdm

from data_prep import door, fetch
from data_prep.binarise import SOURCES

FILES = SOURCES["gpt2_bpe"]["files"]
LINES = 1000  # that a process encodes at a time
WORDS = 500_000  # that a process remembers
_encoder = None  # of a process


def provide(folder, given=None):
    """encoder.json, vocab.bpe and dict.txt verified in ``folder``, from the folder ``given`` or fetched."""
    for name, facts in FILES.items():
        if given is None:
            fetch.fetch(folder / name, facts["mirrors"], facts["size"], facts["sha256"])
        else:
            content = published(given / name, facts)
            folder.mkdir(parents=True, exist_ok=True)
            part = folder / f"{name}.part"
            part.write_bytes(content)
            os.replace(part, folder / name)


def published(path, facts):
    """The bytes of the published file of which ``path`` is a copy; FetchError if it is none.

    A dict.txt is also taken with more madeupwords at its end, which other releases of fairseq's models have
    (51,196 lines): they are cut off, the types before them are the same.
    """
    if path.is_file() and path.name == "dict.txt":
        head, rest = (content := path.read_bytes())[: facts["size"]], content[facts["size"] :]
        if hashlib.sha256(head).hexdigest() == facts["sha256"] and re.fullmatch(
            rb"(madeupword\d+ 0\n)*", rest
        ):
            return head
    return fetch.verified(path, path.name, facts["size"], facts["sha256"]).read_bytes()


def encode(source, target, folder, workers):
    """``target``: the lines of ``source`` as byte pairs' numbers, blank ones blank; it appears whole.

    The same bytes as fairseq's examples/roberta writes with --keep-empty, whatever the number of ``workers``.
    """
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # its import tells of packages for speech
    import fairseq.data.encoders.gpt2_bpe_utils  # noqa: F401  here, once: each process has it from this one

    files = str(folder / "encoder.json"), str(folder / "vocab.bpe")
    part = target.with_name(target.name + ".part")
    size = source.stat().st_size
    bar = tqdm(total=size, unit="B", unit_scale=True, desc=target.name, disable=None)
    pool = ProcessPoolExecutor(workers, initializer=_start, initargs=files)
    with source.open(encoding="utf-8") as lines, part.open("w", encoding="utf-8") as out, pool, bar:
        waiting = deque()

        def write_first():
            encoded, read = waiting.popleft().result()
            out.write(encoded)
            bar.update(read)

        try:
            while batch := list(islice(lines, LINES)):
                waiting.append(pool.submit(_encode, batch))
                if len(waiting) > 2 * workers:  # the whole text does not fit into memory
                    write_first()
            while waiting:
                write_first()
        except BrokenProcessPool:
            raise door.BadInput(
                f"a process that encoded {source} was killed, perhaps for its memory: try fewer --workers"
            ) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    os.replace(part, target)


def _start(*files):
    from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

    global _encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _encoder = get_encoder(*files)


def _encode(lines):
    """(the lines encoded, without the blanks at their ends; the bytes they had)."""
    if len(_encoder.cache) > WORDS:
        _encoder.cache.clear()  # it has no bound of its own, and there are many processes
    encoded = (" ".join(map(str, _encoder.encode(line.strip()))) + "\n" for line in lines)
    return "".join(encoded), sum(len(line.encode()) for line in lines)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="gpt2_bpe", description=__doc__)
    parser.add_argument("text", type=Path, metavar="TEXT")
    parser.add_argument("encoded", type=Path, metavar="ENCODED")
    parser.add_argument(
        "--bpe", type=Path, required=True, metavar="FOLDER", help="with encoder.json and vocab.bpe"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="default: %(default)s")
    args = parser.parse_args(arguments)
    with door.one_sentence("gpt2_bpe"):
        door.check_workers(args.workers)
        for name in ("encoder.json", "vocab.bpe"):
            published(args.bpe / name, FILES[name])
        door.check_text(args.text)
        encode(args.text, args.encoded, args.bpe, args.workers)


if __name__ == "__main__":
    main()
