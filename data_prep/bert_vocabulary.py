"""WordPiece vocabularies in BERT's format: published ones, and ones learned from text."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from fairseq_lrpe.data.word_pieces import SPECIALS, VOCABULARY, read_types
from fairseq_lrpe.utils.files import read_file

CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = [*sorted(SPECIALS), "[MASK]"]
"""Special tokens of a learned vocabulary."""
MIN_COUNT = 2  # minimum number of occurrences of a character or word piece


def published(name: str) -> tuple[Path, bool]:
    """Returns the vocab.txt of a local folder, or of a model on the Hugging Face hub.

    Returns:
        The path of the file, and whether the tokenizer lower-cases text.

    Raises:
        ValueError: If a file is missing or damaged, or cannot be downloaded.
    """
    if Path(name).exists():
        path, config = Path(name) / VOCABULARY, Path(name) / CONFIG
    else:
        path, config = from_hub(name, VOCABULARY), from_hub(name, CONFIG, required=False)
    read_types(path)
    settings = json.loads(read_file(config)) if config and config.is_file() else {}
    return path, bool(settings.get("do_lower_case", True))


def from_hub(name: str, file: str, required: bool = True) -> Path | None:
    """Downloads a file of a model on the Hugging Face hub.

    Returns:
        The path of the file, or None if it does not exist and is not ``required``.
    """
    from huggingface_hub import errors, hf_hub_download

    print(f"Downloading {file} of {name}", flush=True)
    try:
        return Path(hf_hub_download(name, file))
    except Exception as error:  # any error of the network, hub or package
        is_missing = isinstance(error, errors.EntryNotFoundError)
        if is_missing and not required and not isinstance(error, errors.LocalEntryNotFoundError):
            return None
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    raise ValueError(
        f"{file} of {name} could not be downloaded ({reason}): try again later, "
        "give a folder that contains it with --bert FOLDER, or learn word pieces with --pieces N"
    )


def learn(texts: Iterable[str], count: int, lowercase: bool, target: Path) -> None:
    """Learns a vocabulary of at most ``count`` word pieces and writes it to ``target``.

    The vocabulary contains every character that occurs at least twice in ``texts``. The pieces "##x" of
    single characters are passed as special tokens because the trainer would number them in a random order.

    Raises:
        ValueError: If ``count`` is too small for these characters.
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
    alphabet = sorted(x for x, times in characters.items() if times >= MIN_COUNT)
    required = [*SPECIAL_TOKENS, *alphabet, *(f"##{x}" for x in alphabet if x in inside)]
    if count < len(required):
        kinds = f"{len(alphabet):,} characters that occur twice in the training text"
        raise ValueError(f"--pieces {count} is too few for the {kinds}: pass at least {len(required)}")
    tokenizer.train_from_iterator(
        texts,
        vocab_size=count,
        min_frequency=MIN_COUNT,
        limit_alphabet=len(alphabet),
        initial_alphabet=alphabet,
        special_tokens=required,
        show_progress=False,
    )
    ids = tokenizer.get_vocab()
    target.write_text("".join(f"{piece}\n" for piece in sorted(ids, key=ids.get)), encoding="utf-8")
