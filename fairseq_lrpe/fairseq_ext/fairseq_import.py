"""Imports fairseq without its changes of the root logger; imported before everything that imports fairseq."""

from fairseq_lrpe.utils.root_logger import unchanged_root_logger

with unchanged_root_logger():
    import fairseq  # noqa: F401
