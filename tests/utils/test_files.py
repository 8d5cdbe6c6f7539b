"""Reading with size limits, and atomic writes, also on a full disk."""

import os

import pytest
from matplotlib.figure import Figure
from support.small_disk import full_disk

from fairseq_lrpe.utils.files import (
    read_file,
    read_lines,
    save_figure,
    visible_entries,
    visible_files,
    write_atomic,
)


def test_read_file_limits(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    assert read_file(tmp_path / "file", 7) == b"content"
    with pytest.raises(ValueError, match="file exceeds the limit of 6 bytes"):
        read_file(tmp_path / "file", 6)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name in ("pipe", "device", "."):
        with pytest.raises(ValueError, match="is not a regular file"):
            read_file(tmp_path / name)


def test_visible_files_are_sorted_without_hidden_ones_and_links_are_followed(tmp_path):
    folder, elsewhere = tmp_path / ".cache" / "images", tmp_path / "elsewhere"
    for path in ("b.txt", "._b.txt", "a/x.txt", "a/.DS_Store", "a.txt", "a/.ipynb_checkpoints/x.txt"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    elsewhere.mkdir()
    (elsewhere / "y.txt").touch()
    (folder / "linked").symlink_to(elsewhere)
    (folder / "z.txt").symlink_to(folder / "b.txt")
    os.mkfifo(folder / "pipe")
    found = [str(path.relative_to(folder)) for path in visible_files(folder)]
    assert found == ["a/x.txt", "a.txt", "b.txt", "linked/y.txt", "z.txt"]
    names = [path.name for path in visible_entries(folder)]
    assert names == ["a", "a.txt", "b.txt", "linked", "pipe", "z.txt"]

    (elsewhere / "up").symlink_to(folder)
    with pytest.raises(ValueError, match="linked/up is reached again by a symbolic link in this path"):
        [*visible_files(folder)]
    (elsewhere / "up").unlink()
    (elsewhere / "up").symlink_to("nowhere")
    with pytest.raises(ValueError, match="linked/up is a symbolic link that leads to nothing"):
        [*visible_files(folder)]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("\ufeffa\r\n\r\nb", ["a", "", "b"]),
        ("a\rb\x0bc\x0cd\x1ce\x1ef\x85g\u2028h\u2029i\n", ["a\rb\x0bc\x0cd\x1ce\x1ef\x85g\u2028h\u2029i"]),
        ("a\ufeff\n\ufeffb\r\r\n", ["a\ufeff", "\ufeffb\r"]),
        ("", []),
    ],
)
def test_lines_end_with_newlines_only(content, lines, tmp_path):
    (tmp_path / "text").write_bytes(content.encode())
    assert [*read_lines(tmp_path / "text")] == lines


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ("utf-16", "is not UTF-8 text but UTF-16: convert it to UTF-8, for example with `iconv"),
        ("latin-1", r"is not UTF-8 text \(line 2: .*\): convert it to UTF-8"),
    ],
)
def test_text_in_other_encodings_is_an_error(encoding, message, tmp_path):
    (tmp_path / "text").write_bytes("ein\nfür\n".encode(encoding))
    with pytest.raises(ValueError, match=f"^{tmp_path / 'text'} {message}"):
        [*read_lines(tmp_path / "text")]


def test_failed_save_keeps_the_existing_figure(tmp_path):
    figure, path = Figure(), tmp_path / "plot.png"
    figure.subplots().plot([1, 2, 3])
    save_figure(figure, path)
    before = path.read_bytes()
    with full_disk(), pytest.raises(OSError) as error:
        save_figure(figure, path, dpi=300)
    assert error.value.filename == str(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    with full_disk(), pytest.raises(OSError):
        save_figure(figure, tmp_path / "new" / "folder" / path.name)
    assert list(tmp_path.iterdir()) == [path]


def test_failed_write_keeps_the_existing_file(tmp_path):
    path = tmp_path / "report.html"
    write_atomic(path, "first")
    with full_disk(), pytest.raises(OSError) as error:
        write_atomic(path, "x" * 9000)
    assert error.value.filename == str(path)
    assert path.read_text() == "first" and list(tmp_path.iterdir()) == [path]
