"""The table of all corpora, with their data folders and the commands that prepare them."""

import re
from pathlib import Path
from typing import NamedTuple

from fairseq_lrpe.utils.files import PREPARE


class Row(NamedTuple):
    implementation: str  # "module:class" in the package data_prep.corpora
    description: str
    origin: str  # where the data comes from
    folder: str = "data/{name}/bin"  # data folder; TASK is a placeholder for the name of a task
    options: str = ""  # options that are required to prepare the corpus, or with which experiments use it


CORPORA = {
    "wikitext103": Row("wikitext:WikiText103", "WikiText-103 at word level", "downloaded"),
    "wikitext103_bpe": Row("wikitext:RawBytePairs", "raw WikiText-103 in GPT-2 BPE", "downloaded"),
    "wikitext_mini": Row("wikitext:Mini", "small corpus from WikiText-103", "downloaded"),
    "wikitext_mini_chars": Row(
        "wikitext:MiniCharacters", "small corpus from WikiText-103 in characters", "downloaded"
    ),
    "wikitext_mini_bpe": Row(
        "wikitext:MiniBytePairs",
        "small corpus from WikiText-103 in GPT-2 BPE",
        "downloaded",
        options="--bpe-types 8000",
    ),
    "books": Row("text:Books", "BookCorpus or other books in GPT-2 BPE", "datasets package"),
    "wikibook": Row("text:WikiBook", "Wikipedia and BookCorpus in GPT-2 BPE", "downloaded, 22 GB"),
    "wikipedia": Row("text:Wikipedia", "English Wikipedia in SentencePiece", "datasets package"),
    "glue": Row("glue:Glue", "GLUE tasks in GPT-2 BPE", "downloaded", "data/{name}/TASK/bin"),
    "glue_words": Row("glue:GlueWords", "GLUE tasks in words", "downloaded", "data/{name}/TASK/bin"),
    "imdb": Row("imdb:ByWords", "IMDB reviews in words", "downloaded"),
    "imdb_lm": Row("imdb:RunningText", "IMDB reviews as running text in SentencePiece", "downloaded"),
    "snli": Row("nli:Snli", "SNLI sentence pairs in words", "downloaded"),
    "sentences": Row("sentences:Sentences", "your own labeled texts in words", "needs --from"),
    "squad": Row("questions:Questions", "SQuAD questions in BERT word pieces", "downloaded"),
    "cmrc2018": Row("questions:Questions", "CMRC 2018 questions (Chinese) in BERT word pieces", "downloaded"),
    "lra_text": Row("imdb:ByBytes", "Long-Range Arena Text, IMDB by bytes", "downloaded"),
    "lra_image": Row("lra_image:Cifar10", "Long-Range Arena Image, CIFAR-10 in grayscale", "downloaded"),
    "lra_retrieval": Row("lra_retrieval:Papers", "Long-Range Arena Retrieval, by bytes", "needs --from"),
    "lra_retrieval_mini": Row(
        "lra_retrieval:Segments",
        "Long-Range Arena Retrieval with segments of WikiText",
        "needs --from",
        options="--from data/wikitext_mini/text",
    ),
    "imagenet": Row("image_folders:ImageNet", "ImageNet or your own images", "needs --from"),
    "cifar10": Row("image_folders:ClassFolders", "CIFAR-10 or other images in class folders", "needs --from"),
    "listops": Row("listops:ListOps", "Long-Range Arena ListOps", "generated"),
    "pathfinder": Row("pathfinder:Pathfinder", "Long-Range Arena Pathfinder", "generated"),
    "wmt14_en_de": Row("translation:Translation", "WMT 2014 English-German", "downloaded"),
    "multi30k": Row("translation:Translation", "English-German image captions", "needs --from"),
    "text": Row("own_text:OwnText", "your own text", "included, or --from"),
}

MINI = {
    "glue_mini": "glue TASK --train-rows 8000 --bpe-types 8000",
    "glue_words_mini": "glue_words TASK --train-rows 8000",
    "snli_mini": "snli --from snli_dev.jsonl --cut 8000 921 921",
    "mnli_mini": "snli --from mnli_dev_matched.jsonl --cut 8000 907 908",
    "squad_mini": "squad --from dev-v2.0.json --cut 2400 500 --pieces 4000 --longest 192",
    "cmrc2018_mini": "cmrc2018 --from cmrc2018_dev.json --cut 2700 500 --pieces 4000 --longest 192",
    "lra_image_mini": "lra_image --size 16",
    "cifar10_mini": "cifar10 --from cifar10-jpeg.tar.gz --train-rows 10000",
    "listops_mini": "listops --length 20 100 --depth 4 --rows 8000 1000 1000",
}
"""{small version of a corpus: arguments of ``lrpe prepare`` that prepare it, without --out}"""


def data_folder(name: str) -> str:
    return CORPORA[MINI.get(name, name).split()[0]].folder.format(name=name)


def prepare_arguments(name: str) -> str:
    if name in MINI:
        return f"{MINI[name]} --out data/{name}"
    row = CORPORA[name]
    options = row.options or ("--from FOLDER" if row.origin == "needs --from" else "")
    return f"{name} {'TASK ' if 'TASK' in row.folder else ''}{options}".strip()


def prepare_command(folder: Path) -> str | None:
    """Returns the command that prepares ``folder``, relative to the repository; None if no corpus has it."""
    for name in (*CORPORA, *MINI):
        if match := re.fullmatch(data_folder(name).replace("TASK", "([^/]+)"), folder.as_posix()):
            task = match[match.lastindex or 0]
            return f"{PREPARE} {prepare_arguments(name).replace('TASK', task)}"
    return None
