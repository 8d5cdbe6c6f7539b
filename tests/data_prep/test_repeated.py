"""Repeated calls of finished preparations, also of those that were killed just after they finished."""

import pytest
from small_corpora import contents, prepare, write_files, write_zip
from support.tiny import write_text

REVIEWS = {
    f"{split}/{label}/{i}.txt": f"a {label} text".encode()
    for split in ("train", "test")
    for label in ("neg", "pos")
    for i in range(6)
}
SENTENCES = {
    f"{split}.{end}": b"a\nb\n" * 4 for split in ("train", "valid") for end in ("input0.txt", "label")
}
OPTIONS = {
    "imdb": ["--from", "reviews.zip"],
    "lra_text": ["--from", "reviews.zip"],
    "sentences": ["--from", "sentences"],
    "listops": ["--depth", 4, "--length", 20, 100, "--rows", 80, 10, 10],
    "text": ["--from", "text", "--sentencepiece", 60],
}


@pytest.mark.parametrize("corpus", OPTIONS)
def test_finished_preparations_are_reported_again(corpus, in_process, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    write_text(tmp_path / "text")
    write_zip(tmp_path / "reviews.zip", REVIEWS)
    write_files(tmp_path / "sentences", SENTENCES)
    out, reports, folders = tmp_path / "out", [], []
    for _ in range(2):
        prepare(corpus, [*OPTIONS[corpus], "--out", out, "--workers", 1])
        lines = capsys.readouterr().out.splitlines()
        reports.append([line for line in lines if line.startswith(("rows", "labels", "vocabulary", "ready"))])
        folders.append((contents(out / "bin"), {path.name for path in out.iterdir()}))
        write_files(out, {"unpacked.part/a.txt": b"of a command that was killed", "prepare.lock": b""})
    assert reports[0] == reports[1] and len(reports[0]) > 1
    assert folders[0] == folders[1]
