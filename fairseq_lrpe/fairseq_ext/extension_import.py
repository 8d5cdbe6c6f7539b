"""Imports extensions, whose encodings get their flags when :mod:`fairseq_lrpe.config` is imported afterwards.

fairseq's commands exit with a message of one line if an extension cannot be imported.
"""

from fairseq_lrpe import extensions
from fairseq_lrpe.fairseq_ext import (
    fairseq_import,  # noqa: F401  (an extension may import fairseq)
    one_line_errors,
)

one_line_errors.run(extensions.load)
