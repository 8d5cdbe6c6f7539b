"""The corpora for masked_lm, from what a user gives their preparations to what fairseq reads of them."""

import hashlib
import json
import os
import shutil
import zipfile
from argparse import Namespace
from functools import partial

import local_server
import pytest
from fairseq import tasks
from fairseq.data import Dictionary, data_utils, indexed_dataset
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from test_corpora import refused, write_tokens

from data_prep import binarise, books, wikibook, wikitext_bpe

wikitext103 = partial(wikitext_bpe.main, "wikitext103_bpe")
mini = partial(wikitext_bpe.main, "wikitext_mini_bpe")
REAL = pytest.mark.skipif("LRPE_DATA" not in os.environ, reason="LRPE_DATA names no folder of data")


def decoded(folder, split):
    """The text that the byte pairs of a prepared split stand for."""
    bpe = folder.parent / "gpt2_bpe"
    encoder = get_encoder(str(bpe / "encoder.json"), str(bpe / "vocab.bpe"))
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    dataset = data_utils.load_indexed_dataset(str(folder / split), dictionary)
    lines = (dictionary.string(dataset[i]).split() for i in range(len(dataset)))
    return "".join(encoder.decode(map(int, line)) + "\n" for line in lines)


def stripped(path):
    return "".join(line.strip() + "\n" for line in path.read_text().splitlines())


def write_raw(folder):
    write_tokens(folder)
    for path in list(folder.iterdir()):
        path.rename(path.with_suffix(".raw"))
    return folder


def masked_lm(*folders):
    data = ":".join(map(str, folders))
    return tasks.setup_task(Namespace(task="masked_lm", data=data, tokens_per_sample=64, seed=1))


def test_raw_wikitext103_from_a_folder(tiny_bpe, tmp_path, capsys):
    source, out = write_raw(tmp_path / "given"), tmp_path / "out"
    flags = ["--from", str(source), "--bpe", str(tiny_bpe), "--out", str(out), "--workers", "2"]
    wikitext103(flags)
    last = capsys.readouterr().out.splitlines()[-2:]
    assert last[0] == "vocabulary: 265 types with the <mask> of fairseq's masked_lm, not the papers' 50,265"
    assert last[1] == f"ready: fairseq-train {out / 'bin'} --task masked_lm --user-dir fairseq_lrpe ..."
    for split in ("train", "valid", "test"):
        assert decoded(out / "bin", split) == stripped(source / f"wiki.{split}.raw")
    for again in (flags, ["--out", str(out)]):
        wikitext103(again)
        assert f"already there: {out / 'bin'}" in capsys.readouterr().out
    other = write_raw(tmp_path / "other")
    assert f"was made from {source}" in refused(wikitext103, "--from", other, "--out", out)


def test_raw_wikitext103_from_its_archive(tiny_bpe, tmp_path, monkeypatch, capsys):
    path, out = tmp_path / "archive.zip", tmp_path / "out"
    with zipfile.ZipFile(path, "w") as archive:
        for file in write_raw(tmp_path / "zipped").iterdir():
            archive.write(file, f"wikitext-103-raw/{file.name}")
    content = path.read_bytes()
    flags = ["--bpe", str(tiny_bpe), "--out", str(out), "--workers", "1"]
    with local_server.Server() as server:
        server.files["archive"] = content
        facts = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for key, value in {**facts, "mirrors": [server.url("gone"), server.url("archive")]}.items():
            monkeypatch.setitem(wikitext_bpe.RAW, key, value)
        with monkeypatch.context() as patch:
            patch.setattr(books, "binarise_bpe", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(SystemExit) as ended:
                wikitext103(flags)
        assert ended.value.code == 130 and not (out / "bin").exists()
        asked, before = len(server.asked), (out / "train.bpe").stat().st_mtime_ns
        wikitext103(["--from", str(path), *flags])
        assert len(server.asked) == asked and (out / "train.bpe").stat().st_mtime_ns == before
    assert decoded(out / "bin", "test") == stripped(tmp_path / "zipped" / "wiki.test.raw")


def test_the_small_corpus(text_folder, tiny_bpe, tmp_path, capsys):
    source, out = write_tokens(tmp_path / "wikitext-103"), tmp_path / "out"
    mini([str(x) for x in ("--from", source, "--bpe", tiny_bpe, "--out", out, "--workers", 1)])
    assert decoded(out / "bin", "train") == stripped(source / "wiki.test.tokens")
    assert decoded(out / "bin", "test").startswith("= valid 4 =\n")
    assert wikitext_bpe.check_mini(text_folder) == text_folder
    texts = wikitext_bpe.mini_texts(text_folder, tmp_path / "cut already", text_folder)
    assert all(path.read_bytes() == (text_folder / path.name).read_bytes() for path in texts.values())


def test_wikitext_that_cannot_be_used(tiny_bpe, tmp_path, capsys):
    out = tmp_path / "out"

    def message(main, source, *flags):
        return refused(main, "--from", source, "--out", out, "--bpe", tiny_bpe, *flags)

    (tmp_path / "page.zip").write_text("<html>")
    for main, archive in ((wikitext103, "wikitext-103-raw-v1.zip"), (mini, "wikitext-103-v1.zip")):
        assert "nowhere is missing: --from takes" in message(main, tmp_path / "nowhere")
        assert f"page.zip is not the published {archive}" in message(main, tmp_path / "page.zip")
        assert "--workers must be at least 1" in message(main, tmp_path, "--workers", 0)
    assert "wiki.train.raw is missing" in message(wikitext103, write_tokens(tmp_path / "tokens"))
    raw = write_raw(tmp_path / "raw")
    assert "tokens is missing" in message(mini, raw)
    assert "encoder.json is missing" in message(wikitext103, raw, "--bpe", tmp_path)
    (raw / "wiki.test.raw").write_bytes(b"\xff")
    assert "wiki.test.raw is not UTF-8" in message(wikitext103, raw)
    (tmp_path / "train.txt").touch()
    assert "needs all of train.txt, valid.txt and test.txt" in message(mini, tmp_path)
    assert not out.exists()


def write_documents(folder, count=20):
    """A folder with text for wikibook, documents of one to three lines."""
    folder.mkdir()
    for split, number in (("train", count), ("valid", 2)):
        documents = ["".join(f"the {split} {i} {j}\n" for j in range(i % 3 + 1)) for i in range(number)]
        (folder / f"{split}.txt").write_text("\n".join(documents))
    return folder


def test_text_in_shards(tiny_bpe, tmp_path, monkeypatch, capsys):
    source, out = write_documents(tmp_path / "given"), tmp_path / "out"
    flags = ["--from", str(source), "--bpe", str(tiny_bpe), "--out", str(out), "--workers", "1"]
    made, binarise_bpe = [], books.binarise_bpe

    def interrupted(*arguments):
        if made:
            raise KeyboardInterrupt
        made.append(binarise_bpe(*arguments))

    with monkeypatch.context() as patch:
        patch.setattr(books, "binarise_bpe", interrupted)
        with pytest.raises(SystemExit) as ended:
            wikibook.main([*flags, "--shards", "2"])
    assert ended.value.code == 130 and binarise.shards(out) == [out / "bin", out / "bin1"]
    assert not (out / "bin").exists()
    before = (out / "bin1" / "train.bin").stat().st_mtime_ns
    assert "given in 2 shards" in refused(wikibook.main, *flags)
    wikibook.main([*flags, "--shards", "2"])
    assert (out / "bin1" / "train.bin").stat().st_mtime_ns == before
    shards = [out / "bin", out / "bin1"]
    data = ":".join(map(str, shards))
    assert capsys.readouterr().out.endswith(
        f"ready: fairseq-train {data} --task masked_lm --user-dir fairseq_lrpe ...\n"
    )

    texts = [decoded(shard, "train") for shard in shards]
    whole = (source / "train.txt").read_text()
    assert "".join(texts) == whole and all(text.endswith("\n\n") for text in texts[:-1])
    assert all(0.4 < len(text) / len(whole) < 0.6 for text in texts)
    assert decoded(out / "bin", "valid") == (source / "valid.txt").read_text()
    wikibook.main(["--out", str(out)])
    assert f"already there: {out / 'bin'}" in (printed := capsys.readouterr().out) and data in printed

    task = masked_lm(*shards)
    task.load_dataset("valid")
    for epoch, shard in enumerate((*shards, shards[0]), 1):  # a shard each, then the first again
        task.load_dataset("train", epoch=epoch)
        blocks = task.datasets["train"]  # with <s> before each
        tokens = sum(int(block["net_input.src_lengths"]) - 1 for block in blocks)
        assert tokens == data_utils.load_indexed_dataset(str(shard / "train")).sizes.sum()


def test_text_in_one_folder(tiny_bpe, tmp_path, capsys):
    source, out = write_documents(tmp_path / "given"), tmp_path / "out"
    shutil.copy(source / "valid.txt", source / "test.txt")
    wikibook.main([str(x) for x in ("--from", source, "--bpe", tiny_bpe, "--out", out, "--workers", 2)])
    assert binarise.shards(out) == [out / "bin"]
    assert decoded(out / "bin", "train") == (source / "train.txt").read_text()
    assert decoded(out / "bin", "test") == (source / "test.txt").read_text()


class Hub(local_server.Mirrors):
    """Hugging Face's listing and files, by their whole paths; those that ``breaks`` names end early once."""

    breaks = frozenset()

    def do_GET(self):
        path, span = self.path, self.headers.get("Range")
        self.server.asked.append((path, span))
        if path in self.server.files:
            self.answer(self.server.files[path], span, cut=path in self.breaks and not span)
        else:
            self.send_error(404)


@pytest.fixture
def binaries(tiny_bpe, tmp_path):
    """A folder with three shards called as the published ones."""
    folder = tmp_path / "published"
    source = write_documents(tmp_path / "text")
    encoder = get_encoder(str(tiny_bpe / "encoder.json"), str(tiny_bpe / "vocab.bpe"))
    dictionary = Dictionary.load(str(tiny_bpe / "dict.txt"))
    lines = (source / "train.txt").read_text().splitlines()
    for i in range(3):
        shard = folder / f"bin-shard{i}-8"
        shard.mkdir(parents=True)
        shutil.copy(tiny_bpe / "dict.txt", shard)
        part = lines[i * 20 : (i + 1) * 20 if i < 2 else None]
        for split, text in (("train", part), ("valid", lines[:5])):
            builder = indexed_dataset.make_builder(str(shard / f"{split}.bin"), "mmap", len(dictionary))
            for line in text:
                encoded = " ".join(map(str, encoder.encode(line)))
                builder.add_item(dictionary.encode_line(encoded, add_if_not_exist=False))
            builder.finalize(str(shard / f"{split}.idx"))
    return folder


@pytest.fixture
def hub(binaries, monkeypatch):
    """A server that publishes ``binaries``."""
    monkeypatch.setattr(local_server, "Mirrors", Hub)
    api = "/api/datasets/{dataset}/tree/{revision}?recursive=true".format(**wikibook.SOURCE)
    with local_server.Server() as server:
        listed = [{"type": "directory", "path": "bin-shard0-8", "size": 0}]
        for path in binaries.rglob("*.*"):
            content, name = path.read_bytes(), str(path.relative_to(binaries))
            server.files["/datasets/{dataset}/resolve/{revision}/".format(**wikibook.SOURCE) + name] = content
            entry = {"type": "file", "path": name, "size": len(content), "oid": "of git"}
            if path.suffix in (".bin", ".idx"):
                entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}
            listed.append(entry)
        server.files[api] = json.dumps(listed).encode()
        monkeypatch.setitem(wikibook.SOURCE, "host", server.url("").removesuffix("//file"))
        monkeypatch.setitem(wikibook.SOURCE, "shards", 3)
        yield server


def test_the_published_folders_are_fetched(hub, binaries, tiny_bpe, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    flags = ["--bpe", str(tiny_bpe), "--out", str(out)]
    path = next(x for x in hub.files if x.endswith("bin-shard1-8/train.bin"))
    content = hub.files.pop(path)
    (out / "bin.part").mkdir(parents=True)
    (out / "bin.part" / "test.bin").touch()  # of another source
    assert f"{path} answers 404" in refused(wikibook.main, *flags)
    assert not (out / "bin").exists() and not (out / "bin.part" / "test.bin").exists()

    hub.files[path] = content
    monkeypatch.setattr(Hub, "breaks", {path})
    monkeypatch.setattr("data_prep.fetch.WAIT", 0)
    hub.asked.clear()
    wikibook.main(flags)
    spans = [span for asked, span in hub.asked if asked == path]
    assert spans == [None, f"bytes={len(content) // 2}-"]
    assert not any("bin-shard0-8" in asked for asked, _ in hub.asked)
    shards = [out / "bin", out / "bin1", out / "bin2"]
    assert binarise.shards(out) == shards
    assert capsys.readouterr().out.count(":".join(map(str, shards))) == 1
    for i, shard in enumerate(shards):
        for file in ("dict.txt", "train.bin", "train.idx", "valid.bin", "valid.idx"):
            assert (shard / file).read_bytes() == (binaries / f"bin-shard{i}-8" / file).read_bytes()
    assert not list(out.glob("*.part"))
    wikibook.main(flags)
    assert "already there" in capsys.readouterr().out
    assert "was made from princeton-nlp" in refused(wikibook.main, "--from", binaries, *flags)


def test_a_list_that_lacks_the_files(hub, tiny_bpe, tmp_path, capsys):
    flags = ["--bpe", tiny_bpe, "--out", tmp_path / "out"]
    api = next(path for path in hub.files if path.startswith("/api"))
    hub.files[api] = b"[]"
    assert "has no bin-shard0-8/train.bin" in refused(wikibook.main, *flags)
    hub.files[api] = b"<html>"
    assert "gives no list of files" in refused(wikibook.main, *flags)
    del hub.files[api]
    assert "404" in refused(wikibook.main, *flags)


def test_a_copy_of_the_published_folders(binaries, tiny_bpe, tmp_path, monkeypatch, capsys):
    flags = ["--bpe", str(tiny_bpe), "--workers", "1", "--out"]
    blob = tmp_path / "blob"  # as in a cache of Hugging Face
    (binaries / "bin-shard1-8" / "train.bin").rename(blob)
    (binaries / "bin-shard1-8" / "train.bin").symlink_to(blob)
    wikibook.main(["--from", str(binaries), *flags, str(tmp_path / "out")])
    shards = [tmp_path / "out" / name for name in ("bin", "bin1", "bin2")]
    assert "".join(decoded(shard, "train") for shard in shards) == (tmp_path / "text/train.txt").read_text()
    assert (shards[1] / "train.bin").samefile(blob) and not (shards[1] / "train.bin").is_symlink()

    def another_disk(*_):
        raise OSError

    monkeypatch.setattr(wikibook.os, "link", another_disk)
    one = binaries / "bin-shard0-8"
    with (one / "dict.txt").open("a") as file:
        file.write("madeupword0003 0\n")
    wikibook.main(["--from", str(one), *flags, str(tmp_path / "one")])
    assert (
        decoded(tmp_path / "one" / "bin", "train") + decoded(shards[1], "train")
        in (tmp_path / "text/train.txt").read_text()
    )
    assert binarise.vocabulary_size(tmp_path / "one" / "bin") == 264
    assert not (tmp_path / "one" / "bin" / "train.bin").samefile(one / "train.bin")


def test_wikibooks_that_cannot_be_used(binaries, tiny_bpe, tmp_path, capsys):
    out = tmp_path / "out"

    def message(source, *flags):
        return refused(wikibook.main, "--from", source, "--out", out, "--bpe", tiny_bpe, *flags)

    text = tmp_path / "text"
    assert "blob is not a folder: --from takes" in message(tmp_path / "blob")
    assert "train.txt is missing: --from takes" in message(tmp_path)
    assert "--shards must be at least 1" in message(text, "--shards", 0)
    assert "--shards is for a folder with text" in message(binaries, "--shards", 2)
    assert "--shards is for" in refused(wikibook.main, "--out", out, "--shards", 2)
    (text / "valid.txt").write_text(" \n")
    assert "valid.txt is empty" in message(text)
    (text / "valid.txt").unlink()
    assert "valid.txt is missing" in message(text)

    shard = binaries / "bin-shard2-8"
    whole = (shard / "train.bin").read_bytes()
    for content in (whole[:-100], b"version https://git-lfs.github.com/spec/v1\n"):
        (shard / "train.bin").write_bytes(content)
        assert "train.bin and .idx are not fairseq's binaries, or not whole" in message(binaries)
    (shard / "train.bin").write_bytes(whole)
    (shard / "train.idx").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert "git lfs" in message(binaries)
    (shard / "train.idx").unlink()
    assert "train.idx is missing" in message(binaries)
    (shard / "dict.txt").write_text("the 1\n")
    assert "dict.txt is not the published dict.txt" in message(binaries)
    assert not out.exists()


def test_more_shards_than_documents(tiny_bpe, tmp_path, capsys):
    source, out = write_documents(tmp_path / "given", count=2), tmp_path / "out"
    flags = ["--from", source, "--out", out, "--bpe", tiny_bpe, "--shards", 3]
    assert "too few documents, which blank lines end, for --shards 3" in refused(wikibook.main, *flags)
    assert not (out / "text").exists()


@REAL
def test_masked_lm_finds_the_papers_vocabulary(published, tmp_path, capsys):
    source, bpe = published / "wikitext-mini", published / "gpt2_bpe"
    mini([str(x) for x in ("--from", source, "--bpe", bpe, "--out", tmp_path, "--workers", 2)])
    assert "vocabulary: 50,265 types with the <mask> of fairseq's masked_lm, as in the papers" in (
        capsys.readouterr().out
    )
    assert decoded(tmp_path / "bin", "valid") == stripped(source / "valid.txt")
    task = masked_lm(tmp_path / "bin")
    assert len(task.source_dictionary) == 50_265 and task.mask_idx == 50_264
    task.load_dataset("valid")
    item = task.datasets["valid"][0]
    assert task.mask_idx in item["net_input.src_tokens"]
    known = item["target"].ne(task.source_dictionary.pad())
    assert 0 < known.sum() < len(known)
