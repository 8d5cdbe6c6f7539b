"""fairseq-lrpe: positional encodings for linear and softmax attention, as a fairseq plugin.

``fairseq-train --user-dir fairseq_lrpe`` imports this package and then its ``models``, which registers
every architecture; in Python, ``import fairseq_lrpe.models`` does. ``fairseq_lrpe.ops`` and
``fairseq_lrpe.encodings`` need torch alone.
"""
