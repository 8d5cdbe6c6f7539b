"""Wikipedia and BookCorpus, published or of a user's text, to what fairseq's masked_lm reads of them."""

import hashlib
import json
import shutil
from argparse import Namespace

import local_server
import pytest
from fairseq import tasks
from fairseq.data import Dictionary, data_utils, indexed_dataset
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from small_corpora import decoded, prepare, refused

from data_prep.corpora import wikibook
from fairseq_lrpe.data import layout


def masked_lm(*folders):
    data = ":".join(map(str, folders))
    return tasks.setup_task(Namespace(task="masked_lm", data=data, tokens_per_sample=64, seed=1))


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
    made, write_bin = [], wikibook.WikiBook.write_bin

    def interrupted(*arguments):
        if made:
            raise KeyboardInterrupt
        made.append(write_bin(*arguments))

    with monkeypatch.context() as patch:
        patch.setattr(wikibook.WikiBook, "write_bin", interrupted)
        with pytest.raises(SystemExit) as ended:
            prepare("wikibook", [*flags, "--shards", "2"])
    assert ended.value.code == 130 and layout.shards(out / "bin") == [out / "bin", out / "bin1"]
    assert not (out / "bin").exists()
    before = (out / "bin1" / "train.bin").stat().st_mtime_ns
    assert "given in 2 shards" in refused("wikibook", *flags)
    prepare("wikibook", [*flags, "--shards", "2"])
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
    prepare("wikibook", ["--out", str(out)])
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
    prepare("wikibook", [str(x) for x in ("--from", source, "--bpe", tiny_bpe, "--out", out, "--workers", 2)])
    assert layout.shards(out / "bin") == [out / "bin"]
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
        monkeypatch.setitem(wikibook.SOURCE, "host", server.url("").removesuffix("/"))
        monkeypatch.setitem(wikibook.SOURCE, "shards", 3)
        yield server


def test_the_published_folders_are_fetched(hub, binaries, tiny_bpe, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    flags = ["--bpe", str(tiny_bpe), "--out", str(out)]
    path = next(x for x in hub.files if x.endswith("bin-shard1-8/train.bin"))
    content = hub.files.pop(path)
    (out / "bin.part").mkdir(parents=True)
    (out / "bin.part" / "test.bin").touch()  # of another source
    assert f"{path} answers 404" in refused("wikibook", *flags)
    assert not (out / "bin").exists() and not (out / "bin.part" / "test.bin").exists()

    hub.files[path] = content
    monkeypatch.setattr(Hub, "breaks", {path})
    monkeypatch.setattr("data_prep.fetch.WAIT", 0)
    hub.asked.clear()
    prepare("wikibook", flags)
    spans = [span for asked, span in hub.asked if asked == path]
    assert spans == [None, f"bytes={len(content) // 2}-"]
    assert not any("bin-shard0-8" in asked for asked, _ in hub.asked)
    shards = [out / "bin", out / "bin1", out / "bin2"]
    assert layout.shards(out / "bin") == shards
    assert capsys.readouterr().out.count(":".join(map(str, shards))) == 1
    for i, shard in enumerate(shards):
        for file in ("dict.txt", "train.bin", "train.idx", "valid.bin", "valid.idx"):
            assert (shard / file).read_bytes() == (binaries / f"bin-shard{i}-8" / file).read_bytes()
    assert not list(out.glob("*.part"))
    prepare("wikibook", flags)
    assert "already there" in capsys.readouterr().out
    assert "was made from princeton-nlp" in refused("wikibook", "--from", binaries, *flags)


def test_a_list_that_lacks_the_files(hub, tiny_bpe, tmp_path, capsys):
    flags = ["--bpe", tiny_bpe, "--out", tmp_path / "out"]
    api = next(path for path in hub.files if path.startswith("/api"))
    hub.files[api] = b"[]"
    assert "no longer contains bin-shard0-8/train.bin" in refused("wikibook", *flags)
    hub.files[api] = b"<html>"
    assert "provides no list of files" in refused("wikibook", *flags)
    del hub.files[api]
    assert "404" in refused("wikibook", *flags)


def test_a_copy_of_the_published_folders(binaries, tiny_bpe, tmp_path, monkeypatch, capsys):
    flags = ["--bpe", str(tiny_bpe), "--workers", "1", "--out"]
    blob = tmp_path / "blob"  # as in a cache of Hugging Face
    (binaries / "bin-shard1-8" / "train.bin").rename(blob)
    (binaries / "bin-shard1-8" / "train.bin").symlink_to(blob)
    prepare("wikibook", ["--from", str(binaries), *flags, str(tmp_path / "out")])
    shards = [tmp_path / "out" / name for name in ("bin", "bin1", "bin2")]
    assert "".join(decoded(shard, "train") for shard in shards) == (tmp_path / "text/train.txt").read_text()
    assert (shards[1] / "train.bin").samefile(blob) and not (shards[1] / "train.bin").is_symlink()

    def another_disk(*_):
        raise OSError

    monkeypatch.setattr(wikibook.os, "link", another_disk)
    one = binaries / "bin-shard0-8"
    with (one / "dict.txt").open("a") as file:
        file.write("madeupword0003 0\n")
    prepare("wikibook", ["--from", str(one), *flags, str(tmp_path / "one")])
    assert (
        decoded(tmp_path / "one" / "bin", "train") + decoded(shards[1], "train")
        in (tmp_path / "text/train.txt").read_text()
    )
    assert layout.vocabulary_size(tmp_path / "one" / "bin" / "dict.txt") == 264
    assert not (tmp_path / "one" / "bin" / "train.bin").samefile(one / "train.bin")


def test_wikibooks_that_cannot_be_used(binaries, tiny_bpe, tmp_path, capsys):
    out = tmp_path / "out"

    def message(source, *flags):
        return refused("wikibook", "--from", source, "--out", out, "--bpe", tiny_bpe, *flags)

    text = tmp_path / "text"
    assert "blob is not a folder: --from takes" in message(tmp_path / "blob")
    assert "train.txt is missing: --from takes" in message(tmp_path)
    assert "--shards requires a folder with text" in message(binaries, "--shards", 2)
    assert "--shards requires a folder with text" in refused("wikibook", "--out", out, "--shards", 2)
    (text / "valid.txt").write_text(" \n")
    assert "valid.txt is empty" in message(text)
    (text / "valid.txt").unlink()
    assert "valid.txt is missing" in message(text)

    shard = binaries / "bin-shard2-8"
    whole = (shard / "train.bin").read_bytes()
    for content in (whole[:-100], b"version https://git-lfs.github.com/spec/v1\n"):
        (shard / "train.bin").write_bytes(content)
        assert "train.bin and .idx are no complete fairseq binaries" in message(binaries)
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
    assert "too few documents (separated by blank lines) for --shards 3" in refused("wikibook", *flags)
    assert not (out / "text").exists()
