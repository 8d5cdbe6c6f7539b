"""Imports fairseq, before all other imports of it, without its changes of the root logger."""

from fairseq_lrpe.utils.root_logger import unchanged_root_logger

with unchanged_root_logger():
    import fairseq  # noqa: F401
