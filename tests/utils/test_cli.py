"""Reading standard input, messages after Ctrl-C, and logging."""

import io
from contextlib import nullcontext

import pytest
from support.tiny import BIN, REPOSITORY, run_command, succeeded

from fairseq_lrpe.utils.cli import exit_on_error, read_stdin_lines, resumable


def standard_input(content, encoding="utf-8"):
    return io.TextIOWrapper(io.BytesIO(content), encoding=encoding, errors="surrogateescape")


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_lines_are_utf8_in_every_locale(encoding, monkeypatch):
    content = "\ufeffcaf\u00e9\r\n\n a\rb\u2028c\x85d\n".encode()
    monkeypatch.setattr("sys.stdin", standard_input(content, encoding))
    assert read_stdin_lines() == ["caf\u00e9", "", " a\rb\u2028c\x85d"]


def test_invalid_bytes_are_rejected(monkeypatch):
    monkeypatch.setattr("sys.stdin", standard_input("caf\u00e9\n".encode("latin-1")))
    with pytest.raises(ValueError, match=r"standard input is not UTF-8 .*0xe9 in position 3.*: convert "):
        read_stdin_lines()


@pytest.mark.parametrize(("block", "end"), [(nullcontext, ""), (lambda: resumable("go on"), "; go on")])
def test_ctrl_c_gives_advice_only_where_work_can_be_continued(block, end, capsys):
    with pytest.raises(SystemExit) as ended, exit_on_error("x"), block():
        raise KeyboardInterrupt
    assert ended.value.code == 130 and capsys.readouterr().err == f"\nx: interrupted{end}\n"


IMPORT_FAIRSEQ = """
import logging
from fairseq_lrpe.cli import main
main(["--help"])
import fairseq.data
logging.getLogger("matplotlib").debug("not shown")
logging.getLogger("matplotlib").info("not shown")
logging.getLogger("matplotlib").warning("shown")
"""


def test_commands_that_import_fairseq_show_only_warnings():
    """In a new process, because fairseq configures the root logger when it is imported first."""
    assert succeeded(run_command(BIN / "python", "-c", IMPORT_FAIRSEQ)).stderr == "shown\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_commands_run_with_closed_standard_streams(closed, tmp_path):
    """The next file that a program opens must not get the number of a closed stream."""
    code = "from fairseq_lrpe.cli import main; main(['methods'])\n"
    code += "with open('file', 'w') as file: file.write(str(file.fileno()))"
    words = ["-c", f'exec "$0" -c "$1" {closed}', BIN / "python", code]
    succeeded(run_command("/bin/bash", *words, folder=tmp_path, PYTHONPATH=str(REPOSITORY)))
    assert int((tmp_path / "file").read_text()) > 2


def test_python_without_docstrings_is_an_error():
    done = run_command(BIN / "python", "-m", "fairseq_lrpe", "methods", PYTHONOPTIMIZE="2")
    assert done.returncode == 1
    assert (
        done.stderr
        == "lrpe: python -OO removes texts that lrpe shows: unset PYTHONOPTIMIZE, or set it to 1\n"
    )


def test_a_deleted_folder_is_an_error(tmp_path):
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$0" -m fairseq_lrpe prepare'
    words = ["-c", script, BIN / "python"]
    done = run_command("/bin/bash", *words, folder=tmp_path, PYTHONPATH=str(REPOSITORY))
    assert done.returncode == 1
    assert done.stderr == "lrpe: the current folder has been deleted: change to an existing folder\n"


def test_warnings_of_torch_and_fairseq_are_no_errors():
    words = ["-m", "fairseq_lrpe", "generate", "/nowhere"]  # imports both
    done = run_command(BIN / "python", *words, PYTHONWARNINGS="error")
    expected = "pass a run's folder, such as results/lm/mini/linear_rope/seed-1, or a checkpoint file"
    assert done.stderr == f"generate: /nowhere does not exist: {expected}\n"


def test_plots_need_no_backend_of_matplotlib(tmp_path):
    words = ["results", "--results", "docs/results", "--table", "quickstart", "--plot", tmp_path / "a.png"]
    command = [BIN / "python", "-m", "fairseq_lrpe", *words]
    succeeded(run_command(*command, MPLBACKEND="nonsense"))
    assert (tmp_path / "a.png").exists()
