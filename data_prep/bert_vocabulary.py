"""BERT's vocabulary of word pieces: published, from a folder or Hugging Face's hub, or learned."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fairseq_lrpe.word_pieces import SPECIALS, VOCABULARY, read_types

CONFIG = "tokenizer_config.json"
BERTS = [*sorted(SPECIALS), "[MASK]"]
"""The special types of a learned vocabulary."""
ENOUGH = 2  # times in the training text


class Vocabulary(NamedTuple):
    """A vocab.txt, and whether its text is lower-cased."""

    path: Path
    lowercase: bool


def published(name: str) -> Vocabulary:
    """Returns the vocabulary of a folder, or of a model of the hub; ValueError says what would work."""
    if Path(name).is_dir():
        path, config = Path(name) / VOCABULARY, Path(name) / CONFIG
        if not path.is_file():
            raise ValueError(f"{path} is missing: --bert takes a folder with BERT's {VOCABULARY}")
    elif Path(name).is_absolute() or Path(name).exists():
        raise ValueError(
            f"{name} is no folder: --bert takes one with BERT's {VOCABULARY}, or a name of the hub"
        )
    else:
        path, config = from_hub(name, VOCABULARY), from_hub(name, CONFIG, needed=False)
    read_types(path)
    try:
        settings = json.loads(config.read_text(encoding="utf-8")) if config and config.is_file() else {}
        return Vocabulary(path, bool(settings.get("do_lower_case", True)))
    except (ValueError, AttributeError):
        raise ValueError(
            f"{config} is not JSON of settings: it says whether BERT's text is lower-cased"
        ) from None


def from_hub(name: str, file: str, needed: bool = True) -> Path | None:
    """Returns a file of a model of Hugging Face's hub, None if it has none that is not needed."""
    from huggingface_hub import constants, errors, hf_hub_download
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # it tells of each try, of which there are some in half a minute
    print(f"Fetching {file} of {name} from {constants.ENDPOINT}", flush=True)
    try:
        return Path(hf_hub_download(name, file, endpoint=constants.ENDPOINT))
    except errors.LocalEntryNotFoundError:
        reason = "it cannot be reached, and no earlier download is there"
    except errors.EntryNotFoundError:
        if not needed:
            return None
        reason = f"the model has no {file}"
    except Exception as error:  # of the network, the hub or the package: whatever it is, only these help
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    raise ValueError(
        f"{file} of {name} could not be had from {constants.ENDPOINT} ({reason}): try again later, give a "
        "folder that has it with --bert FOLDER, or learn word pieces with --pieces N"
    )


def learn(texts: Iterable[str], count: int, lowercase: bool, target: Path) -> None:
    """Writes a vocabulary of ``count`` word pieces, fewer if no two of them stand together twice.

    It has every character that is there twice. The same texts give the same bytes: the trainer numbers what
    is inside a word, "##x", in the order of a table with a random seed, unless it is given as special types.
    """
    from tokenizers import BertWordPieceTokenizer

    print(f"Learning {count:,} word pieces", flush=True)
    texts = list(texts)
    tokenizer = BertWordPieceTokenizer(lowercase=lowercase)
    characters, inside = Counter(), set()
    for text in texts:
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text)):
            characters.update(word)
            inside.update(word[1:])
    alphabet = sorted(x for x, times in characters.items() if times >= ENOUGH)
    given = [*BERTS, *alphabet, *(f"##{x}" for x in alphabet if x in inside)]
    if count < len(given):
        raise ValueError(
            f"--pieces {count} is too few: the training text has {len(alphabet):,} characters twice or more, "
            f"{len(given):,} pieces with those that go on a word and with BERT's own"
        )
    tokenizer.train_from_iterator(
        texts,
        vocab_size=count,
        min_frequency=ENOUGH,
        limit_alphabet=len(alphabet),
        initial_alphabet=alphabet,
        special_tokens=given,
        show_progress=False,
    )
    ids = tokenizer.get_vocab()
    target.write_text("".join(f"{piece}\n" for piece in sorted(ids, key=ids.get)), encoding="utf-8")
