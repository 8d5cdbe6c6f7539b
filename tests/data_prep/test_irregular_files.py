"""Devices in place of source files; pipes and sockets are refused alike, but reading them would wait."""

import pytest
from small_corpora import SPLITS, error_of, write_files
from support.tiny import write_text

ENDS = ("txt", "en", "de", "input0.txt", "label")
NAMES = (
    *(f"{split}.{end}" for split in SPLITS for end in ENDS),
    *(f"new_aan_pairs.{split}.tsv" for split in ("train", "eval", "test")),
    *("CoLA/train.tsv", "basic_train.tsv", "metadata/0.npy", "dict.txt", "encoder.json", "train-v2.0.json"),
    *("ILSVRC2012_img_train.tar", "training-parallel-europarl-v7.tgz"),
)
LABELED = {f"{split}.{end}": b"a\nb\n" * 4 for split in SPLITS for end in ("input0.txt", "label")}


@pytest.mark.parametrize(("words", "name"), [
    ("text --from {devices}", "devices/train.txt"),
    ("books --from {devices}", "devices/train.txt"),
    ("books --from {text} --bpe {devices}", "devices/encoder.json"),
    ("wikibook --from {devices}", "devices/dict.txt"),
    ("wikitext103 --from /dev/null", "/dev/null"),
    ("wikitext_mini --from {devices}", "devices/train.txt"),
    ("glue CoLA --from {devices}", "devices/CoLA/train.tsv"),
    ("glue_words --from /dev/null", "/dev/null"),
    ("sentences --from {devices}", "devices/train.input0.txt"),
    ("sentences --from {labeled} --vectors /dev/null", "/dev/null"),
    ("snli --from /dev/null --cut 1 1 1", "/dev/null"),
    ("squad --from /dev/null --cut 1 1", "/dev/null"),
    ("squad --from {devices} --pieces 60", "devices/train-v2.0.json"),
    ("multi30k --from {devices}", "devices/train.en"),
    ("wmt14_en_de --from {devices}", "devices/training-parallel-europarl-v7.tgz"),
    ("lra_retrieval --from {devices}", "devices/new_aan_pairs.train.tsv"),
    ("lra_retrieval_mini --from {devices}", "devices/train.txt"),
    ("listops --from {devices}", "devices/basic_train.tsv"),
    ("pathfinder --from {devices}", "devices/metadata/0.npy"),
    ("imagenet --from {devices}", "devices/ILSVRC2012_img_train.tar"),
    ("cifar10 --from /dev/null", "/dev/null"),
    ("imdb --from /dev/null", "/dev/null"),
])  # fmt: skip
def test_devices_are_errors(words, name, tiny_bpe, tmp_path):
    places = {place: tmp_path / place for place in ("devices", "text", "labeled")}
    for file in NAMES:
        link = places["devices"] / file
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to("/dev/null")
    places["text"].mkdir()
    write_text(places["text"])
    write_files(places["labeled"], LABELED)
    corpus, *options = words.format(**places).split()
    if corpus in ("books", "glue") and "--bpe" not in options:
        options += ["--bpe", tiny_bpe]
    message = error_of(corpus, *options, "--out", tmp_path / "out", "--workers", 1)
    assert f"{name} is not a regular file: replace it with a regular file" in message
    assert not {path.name for path in tmp_path.glob("out/*")} & {"bin", "text"}
