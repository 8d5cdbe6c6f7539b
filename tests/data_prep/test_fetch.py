"""Downloads from a real server whose mirrors are good, broken or gone."""

import hashlib
import socket

import pytest
from local_server import CONTENT, Server

from data_prep import fetch

SIZE, SHA256 = len(CONTENT), hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(fetch, "WAIT", 0)
    with Server() as server:
        yield server


@pytest.fixture
def down():
    """The address of a mirror that refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def get(dest, *urls):
    return fetch.fetch(dest, {"mirrors": urls, "size": SIZE, "sha256": SHA256})


def files(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_file_is_fetched_once(server, tmp_path):
    dest = tmp_path / "deep" / "file"
    assert get(dest, server.url("range")) == dest
    assert dest.read_bytes() == CONTENT and files(tmp_path) == ["file"]
    get(dest, server.url("range"))
    assert server.asked == [("/range/file", None)]


def test_a_part_is_continued_with_the_rest_alone(server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    get(tmp_path / "file", server.url("range"))
    assert (tmp_path / "file").read_bytes() == CONTENT and files(tmp_path) == ["file"]
    assert server.asked == [("/range/file", "bytes=1000-")]


def test_a_whole_part_is_only_verified(server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT)
    get(tmp_path / "file", server.url("range"))
    assert (tmp_path / "file").read_bytes() == CONTENT and not server.asked


def test_a_server_without_ranges_gives_everything_anew(server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    get(tmp_path / "file", server.url("plain"))
    assert (tmp_path / "file").read_bytes() == CONTENT and len(server.asked) == 1


def test_a_part_longer_than_the_file_is_thrown_away(server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT + b"more")
    get(tmp_path / "file", server.url("range"))
    assert (tmp_path / "file").read_bytes() == CONTENT and server.asked == [("/range/file", None)]


def test_a_part_of_another_file_is_thrown_away(server, tmp_path):
    (tmp_path / "file.part").write_bytes(b"x" * 1000)
    get(tmp_path / "file", server.url("range"))
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [span for _, span in server.asked] == ["bytes=1000-", None]


def test_a_truncated_answer_is_continued(server, tmp_path):
    get(tmp_path / "file", server.url("breaks"))
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [span for _, span in server.asked] == [None, f"bytes={SIZE // 2}-"]


@pytest.mark.parametrize("bad", ["missing", "wrong", "short"])
def test_the_next_mirror_is_tried(bad, server, tmp_path):
    get(tmp_path / "file", server.url(bad), server.url("range"))
    assert (tmp_path / "file").read_bytes() == CONTENT and files(tmp_path) == ["file"]
    assert server.asked == [(f"/{bad}/file", None), ("/range/file", None)]


def test_a_mirror_of_another_file_leaves_the_part_to_the_next(server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    get(tmp_path / "file", server.url("short"), server.url("range"))
    assert server.asked[-1] == ("/range/file", "bytes=1000-")


def test_a_busy_mirror_is_asked_again(server, down, tmp_path):
    get(tmp_path / "file", down, server.url("busy"), server.url("range"))
    assert [path for path, _ in server.asked] == ["/busy/file"] * fetch.TRIES + ["/range/file"]


def test_a_file_that_was_changed_here_is_replaced(server, tmp_path):
    (tmp_path / "file").write_bytes(b"changed")
    get(tmp_path / "file", server.url("range"))
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_all_mirrors_failing_are_named_with_their_reasons(server, down, tmp_path):
    urls = [server.url("missing"), down, server.url("wrong"), server.url("short")]
    with pytest.raises(fetch.FetchError, match=r"^no mirror provides file: .*$") as refused:
        get(tmp_path / "file", *urls)
    line = str(refused.value)
    for url, reason in zip(urls, ["404", "Connection refused", "SHA-256", "bytes instead of"], strict=True):
        assert reason in line.split(url)[1].split("; ")[0]
    assert files(tmp_path) == []


def test_a_copy_is_verified(tmp_path):
    facts, path = {"size": SIZE, "sha256": SHA256}, tmp_path / "a"
    path.write_bytes(CONTENT)
    assert fetch.verified(path, "c", facts) == path
    path.write_bytes(CONTENT[::-1])
    with pytest.raises(fetch.FetchError, match=rf"^{path} is not the published c: it has SHA-256"):
        fetch.verified(path, "c", facts)
