"""Decoding of image files."""

import logging

from image_files import colored_image

from fairseq_lrpe.data.image_files import decode


def test_decoding_logs_nothing(caplog):
    """fairseq's import sets the root logger to DEBUG, at which Pillow logs every chunk of a PNG."""
    caplog.set_level(logging.DEBUG)
    decode(colored_image(0, 0, "PNG"))
    assert not caplog.records
