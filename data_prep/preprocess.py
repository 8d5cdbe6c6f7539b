"""fairseq-preprocess, changed so that its worker processes end when it is killed.

Text is divided into lines as by ``fairseq_lrpe.utils.files.read_lines``.
"""

import os

from fairseq import file_chunker_utils
from fairseq_cli.preprocess import cli_main

from fairseq_lrpe.utils.subprocesses import die_with_parent


def open_text(path, mode, encoding):
    """Returns an opened file of UTF-8 text, without a byte order mark; only newlines end a line.

    ``encoding`` is ignored.
    """
    return open(path, mode, encoding="utf-8-sig", newline="\n")


file_chunker_utils.open = open_text

if __name__ == "__main__":
    os.register_at_fork(after_in_child=die_with_parent())
    cli_main()
