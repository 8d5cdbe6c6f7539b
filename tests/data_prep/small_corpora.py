"""What tests of preparations share: the command in this process, texts as published, binaries read back."""

import io
import json
import tarfile

import numpy as np
import pytest
from fairseq.data import Dictionary, data_utils
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

from data_prep.prepare import main

# With headings and a line that looks like a title, none of them one.
ARTICLE = (
    " \n = {0} = \n \n The {0} is a <unk> thing . \n \n"
    " = = History = = \n \n It was \n = so = \n a thing . \n \n"
    " = = Now = = \n \n It goes on . \n \n"
)


def prepare(name, options):
    """Makes a corpus as ``data_prep/prepare.sh`` does."""
    main([name, *map(str, options)])


def refused(name, *options):
    """The one sentence on stderr with which the preparation ends."""
    with pytest.raises(SystemExit) as ended:
        prepare(name, options)
    assert "\n" not in str(ended.value.code) and str(ended.value.code).startswith(f"prepare {name}: ")
    return str(ended.value.code)


def write_tokens(folder, splits=("train", "valid", "test")):
    """WikiText's word-level files, small, in ``folder``."""
    folder.mkdir(parents=True)
    for split in splits:
        articles = [ARTICLE.format(f"{split} {i}") for i in range(7)]
        (folder / f"wiki.{split}.tokens").write_text("".join(articles) + " four" * 4 + " five" * 5 + " \n")
    return folder


def sentences(out, split):
    """The lines of a prepared split, as fairseq reads them."""
    dictionary = Dictionary.load(str(out / "bin" / "dict.txt"))
    dataset = data_utils.load_indexed_dataset(str(out / "bin" / split), dictionary)
    return [
        dictionary.string(dataset[i], extra_symbols_to_ignore={dictionary.pad()}) for i in range(len(dataset))
    ]


def classified(folder, split):
    """(the text of each input ..., the label's name, None if it is not known) of each row of a split."""
    about = json.loads((folder / "about.json").read_text())
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    inputs = [
        data_utils.load_indexed_dataset(str(folder / f"{split}.input{i}"), dictionary)
        for i in range(about["inputs"])
    ]
    names = [about["labels"][i] if i >= 0 else None for i in np.load(folder / f"{split}.label.npy")]
    assert about["rows"][split] == len(names) and {len(rows) for rows in inputs} == {len(names)}
    return [(*(dictionary.string(rows[i]) for rows in inputs), name) for i, name in enumerate(names)]


def write_files(folder, contents):
    """Files {path: bytes} in ``folder``, and ``folder``."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def write_tar(path, contents):
    """The same files in a .tar.gz."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def contents(folder):
    """{name: bytes} of the files in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def decoded(folder, split):
    """The text that the byte pairs of a prepared split stand for."""
    bpe = folder.parent / "gpt2_bpe"
    encoder = get_encoder(str(bpe / "encoder.json"), str(bpe / "vocab.bpe"))
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    dataset = data_utils.load_indexed_dataset(str(folder / split), dictionary)
    lines = (dictionary.string(dataset[i]).split() for i in range(len(dataset)))
    return "".join(encoder.decode(map(int, line)) + "\n" for line in lines)
