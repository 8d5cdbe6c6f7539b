"""Wikipedia and BookCorpus, published in binarized shards."""

import os
import re
import shutil
from pathlib import Path

from data_prep import gpt2_bpe
from data_prep.binarize import split_files
from data_prep.corpus import recorded_folder
from data_prep.text_corpus import BytePairCorpus, copy_texts
from fairseq_lrpe.data import layout

SHARD = r"bin-shard(\d+)-8"  # pattern of the names of the published folders


class WikiBook(BytePairCorpus):
    """Wikipedia and BookCorpus in GPT-2 BPE, for fairseq's masked_lm.

    Without --from, the binarized data published by Wettig et al. (2022) is downloaded: 22 GB in 16 shards,
    which contain the text twice. fairseq reads one shard per epoch. --from accepts a copy of this data, or a
    folder with train.txt, valid.txt and optionally test.txt, in which a blank line ends a document.
    """

    accepts = (
        "a folder with train.txt, valid.txt and optionally test.txt, or a copy of the published folders "
        "or of one of them (default: download them)"
    )

    def check(self, args):
        if args.bpe_types and not (args.source and not find_shards(args.source)):
            raise ValueError("--bpe-types requires a folder with text: binarized data has all types")

    def write_text(self, args, folder):
        texts = split_files(args.source)
        if not texts["test"].exists():
            del texts["test"]
        copy_texts(texts, folder)

    def prepare(self, args, folder):
        shards = find_shards(args.source or self.download(args.out / "published"))
        if not shards:
            return super().prepare(args, folder)
        for shard in shards:
            gpt2_bpe.published(shard / "dict.txt", shard / "dict.txt")
        gpt2_bpe.provide(args.out / "gpt2_bpe", args.bpe)
        first, *others = shards
        for i, shard in enumerate(others, 1):  # the first shard last: it marks completion
            if not (args.out / f"bin{i}").is_dir():
                with recorded_folder(args.out / f"bin{i}", self.record(args)) as part:
                    copy_shard(shard, args.out / "gpt2_bpe" / "dict.txt", part)
        copy_shard(first, args.out / "gpt2_bpe" / "dict.txt", folder)

    def download(self, folder: Path) -> Path:
        """Downloads the published shards into a folder, which it returns."""
        from huggingface_hub import snapshot_download  # takes a second to import

        name, patterns = self.facts["dataset"], "bin-shard*-8/*"
        options = {"revision": self.facts["revision"], "local_dir": folder, "allow_patterns": patterns}
        return Path(snapshot_download(name, repo_type="dataset", **options))


def copy_shard(folder: Path, dictionary: Path, part: Path) -> None:
    """Hard-links the binarized data of ``folder`` into ``part``, or copies it from another disk."""
    shutil.copyfile(dictionary, part / "dict.txt")
    for path in (path for end in layout.SUFFIXES for path in folder.glob(f"*{end}")):
        try:
            os.link(path.resolve(), part / path.name)
        except OSError:
            shutil.copyfile(path, part / path.name)


def find_shards(folder: Path) -> list[Path]:
    """Returns the folders with binarized data: ``folder`` itself, or its shards, sorted by number."""
    if (folder / "dict.txt").is_file():
        return [folder]
    numbers = {path: re.fullmatch(SHARD, path.name) for path in folder.iterdir()}
    return sorted((path for path, match in numbers.items() if match), key=lambda path: int(numbers[path][1]))
