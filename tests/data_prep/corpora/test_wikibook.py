"""Wikipedia and BookCorpus, published or from the user's text, to what fairseq's masked_lm reads."""

import hashlib
import json
import shutil
from argparse import Namespace

import local_server
import pytest
from fairseq import tasks
from fairseq.data import Dictionary, data_utils, indexed_dataset
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from small_corpora import decoded, error_of, prepare

from data_prep.corpora import wikibook
from fairseq_lrpe.data import layout


def masked_lm(*folders):
    data = ":".join(map(str, folders))
    return tasks.setup_task(Namespace(task="masked_lm", data=data, tokens_per_sample=64, seed=1))


def write_documents(folder, count=20):
    """Writes text for wikibook, documents of one to three lines, and returns the folder."""
    folder.mkdir()
    for split, number in (("train", count), ("valid", 2)):
        documents = ["".join(f"the {split} {i} {j}\n" for j in range(i % 3 + 1)) for i in range(number)]
        (folder / f"{split}.txt").write_text("\n".join(documents))
    return folder


def test_text_in_shards(tiny_bpe, tmp_path, monkeypatch, capsys):
    source, out = write_documents(tmp_path / "given"), tmp_path / "out"
    flags = ["--from", source, "--bpe", tiny_bpe, "--out", out, "--workers", 1]
    made, write_bin = [], wikibook.WikiBook.write_bin

    def interrupted(*arguments):
        if made:
            raise KeyboardInterrupt
        made.append(write_bin(*arguments))

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as exit_info:
        patch.setattr(wikibook.WikiBook, "write_bin", interrupted)
        prepare("wikibook", [*flags, "--shards", 2])
    assert exit_info.value.code == 130 and layout.shards(out / "bin") == [out / "bin", out / "bin1"]
    assert not (out / "bin").exists()
    before = (out / "bin1" / "train.bin").stat().st_mtime_ns
    assert "given in 2 shards" in error_of("wikibook", *flags)
    prepare("wikibook", [*flags, "--shards", 2])
    assert (out / "bin1" / "train.bin").stat().st_mtime_ns == before
    shards = [out / "bin", out / "bin1"]
    data = ":".join(map(str, shards))
    ready = f"ready: fairseq-train {data} --task masked_lm --user-dir fairseq_lrpe ...\n"
    assert capsys.readouterr().out.endswith(ready)

    texts = [decoded(shard, "train") for shard in shards]
    whole = (source / "train.txt").read_text()
    assert "".join(texts) == whole and all(text.endswith("\n\n") for text in texts[:-1])
    assert all(0.4 < len(text) / len(whole) < 0.6 for text in texts)
    assert decoded(out / "bin", "valid") == (source / "valid.txt").read_text()
    prepare("wikibook", ["--out", out])
    assert f"already prepared: {out / 'bin'}" in (printed := capsys.readouterr().out) and data in printed

    task = masked_lm(*shards)
    task.load_dataset("valid")
    for epoch, shard in enumerate((*shards, shards[0]), 1):  # one shard each, then the first again
        task.load_dataset("train", epoch=epoch)
        blocks = task.datasets["train"]  # with <s> before each
        tokens = sum(int(block["net_input.src_lengths"]) - 1 for block in blocks)
        assert tokens == data_utils.load_indexed_dataset(str(shard / "train")).sizes.sum()


def test_text_with_a_test_set_in_one_folder(tiny_bpe, tmp_path):
    source, out = write_documents(tmp_path / "given"), tmp_path / "out"
    shutil.copy(source / "valid.txt", source / "test.txt")
    prepare("wikibook", ["--from", source, "--bpe", tiny_bpe, "--out", out, "--workers", 2])
    assert layout.shards(out / "bin") == [out / "bin"]
    for split in ("train", "test"):
        assert decoded(out / "bin", split) == (source / f"{split}.txt").read_text()


class Hub(local_server.Mirrors):
    """The hub's list of files and the files, by their full paths; ``interrupted`` ends early once."""

    interrupted = None

    def do_GET(self):
        path, span = self.path, self.headers.get("Range")
        self.server.requests.append((path, span))
        if path in self.server.files:
            self.answer(self.server.files[path], span, cut=path == self.interrupted and not span)
        else:
            self.send_error(404)


@pytest.fixture
def binaries(tiny_bpe, tmp_path):
    """A folder with three shards that are named like the published ones."""
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
    facts = wikibook.WikiBook("wikibook").facts
    api = "/api/datasets/{dataset}/tree/{revision}?recursive=True&expand=False".format(**facts)
    with local_server.Server(Hub) as server:
        listed = [{"type": "directory", "path": "bin-shard0-8", "size": 0, "oid": ""}]
        for path in binaries.rglob("*.*"):
            content, name = path.read_bytes(), str(path.relative_to(binaries))
            server.files["/datasets/{dataset}/resolve/{revision}/".format(**facts) + name] = content
            entry = {"type": "file", "path": name, "size": len(content), "oid": "of git"}
            if path.suffix in (".bin", ".idx"):
                sha256 = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 1}
            listed.append(entry)
        server.files[api] = json.dumps(listed).encode()
        monkeypatch.setitem(facts, "host", server.url("").removesuffix("/"))
        monkeypatch.setitem(facts, "shards", 3)
        yield server


def test_published_folders_are_downloaded(hub, binaries, tiny_bpe, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    flags = ["--bpe", tiny_bpe, "--out", out]
    path = next(x for x in hub.files if x.endswith("bin-shard1-8/train.bin"))
    content = hub.files.pop(path)
    (out / "bin.part").mkdir(parents=True)
    (out / "bin.part" / "test.bin").touch()  # from another source
    assert f"{path} returned HTTP error 404" in error_of("wikibook", *flags)
    assert not (out / "bin").exists() and not (out / "bin.part" / "test.bin").exists()

    hub.files[path] = content
    monkeypatch.setattr(Hub, "interrupted", path)
    monkeypatch.setattr("data_prep.fetch.WAIT", 0)
    hub.requests.clear()
    prepare("wikibook", flags)
    spans = [span for asked, span in hub.requests if asked == path]
    assert spans == [None, f"bytes={len(content) // 2}-"]
    assert not any("bin-shard0-8" in asked for asked, _ in hub.requests)
    shards = [out / "bin", out / "bin1", out / "bin2"]
    assert layout.shards(out / "bin") == shards
    assert capsys.readouterr().out.count(":".join(map(str, shards))) == 1
    for i, shard in enumerate(shards):
        for file in ("dict.txt", "train.bin", "train.idx", "valid.bin", "valid.idx"):
            assert (shard / file).read_bytes() == (binaries / f"bin-shard{i}-8" / file).read_bytes()
    assert not list(out.glob("*.part"))
    prepare("wikibook", flags)
    assert "already prepared" in capsys.readouterr().out
    assert "was made from princeton-nlp" in error_of("wikibook", "--from", binaries, *flags)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", "does not contain bin-shard0-8/train.bin: try again later, or give a copy to --from"),
        (b"<html>", "cannot list the files of "),
        (None, "(404"),
    ],
)
def test_an_incomplete_list_of_files_is_an_error(content, message, hub, tiny_bpe, tmp_path):
    api = next(path for path in hub.files if path.startswith("/api"))
    hub.files.pop(api) if content is None else hub.files.update({api: content})
    assert message in error_of("wikibook", "--bpe", tiny_bpe, "--out", tmp_path / "out")


def test_a_copy_of_the_published_folders(binaries, tiny_bpe, tmp_path, monkeypatch):
    flags = ["--bpe", tiny_bpe, "--workers", 1, "--out"]
    blob = tmp_path / "blob"  # as in the cache of Hugging Face
    (binaries / "bin-shard1-8" / "train.bin").rename(blob)
    (binaries / "bin-shard1-8" / "train.bin").symlink_to(blob)
    prepare("wikibook", ["--from", binaries, *flags, tmp_path / "out"])
    shards = [tmp_path / "out" / name for name in ("bin", "bin1", "bin2")]
    text = (tmp_path / "text/train.txt").read_text()
    assert "".join(decoded(shard, "train") for shard in shards) == text
    assert (shards[1] / "train.bin").samefile(blob) and not (shards[1] / "train.bin").is_symlink()

    def another_disk(*_):
        raise OSError

    monkeypatch.setattr(wikibook.os, "link", another_disk)
    one = binaries / "bin-shard0-8"
    with (one / "dict.txt").open("a") as file:
        file.write("madeupword0003 0\n")
    prepare("wikibook", ["--from", one, *flags, tmp_path / "one"])
    assert decoded(tmp_path / "one" / "bin", "train") + decoded(shards[1], "train") in text
    assert layout.vocabulary_size(tmp_path / "one" / "bin" / "dict.txt") == 264
    assert not (tmp_path / "one" / "bin" / "train.bin").samefile(one / "train.bin")


POINTER = b"version https://git-lfs.github.com/spec/v1\n"


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("train.bin", lambda content: content[:-100], "train.bin and .idx are incomplete or damaged"),
        ("train.bin", lambda _: POINTER, "train.bin and .idx are incomplete or damaged"),
        ("train.idx", lambda _: POINTER, "git lfs"),
        ("train.idx", None, "train.bin and .idx are incomplete or damaged"),
        ("dict.txt", lambda _: b"the 1\n", "dict.txt is not the published dict.txt"),
    ],
)
def test_invalid_binaries_are_errors(file, change, message, binaries, tiny_bpe, tmp_path):
    path, out = binaries / "bin-shard2-8" / file, tmp_path / "out"
    path.write_bytes(change(path.read_bytes())) if change else path.unlink()
    assert message in error_of("wikibook", "--from", binaries, "--out", out, "--bpe", tiny_bpe)
    assert not out.exists()


@pytest.mark.parametrize(
    ("source", "shards", "message"),
    [
        ("published", 2, "--shards requires a folder with text"),
        (None, 2, "--shards requires a folder with text"),
        (".", 1, "train.txt is missing: --from takes"),
        ("text", 50, "too few documents, which blank lines separate, for --shards 50"),
    ],
)
def test_invalid_shards_are_errors(source, shards, message, binaries, tiny_bpe, tmp_path):
    given = ["--from", tmp_path / source] if source else []
    flags = ["--out", tmp_path / "out", "--bpe", tiny_bpe, "--shards", shards]
    assert message in error_of("wikibook", *given, *flags)
    assert not (tmp_path / "out" / "text").exists()
