"""fairseq-lrpe: positional encodings for linear and softmax attention, as a fairseq plugin.

``fairseq-train --user-dir fairseq_lrpe`` imports this package, which registers its models.
``fairseq_lrpe.ops`` and ``fairseq_lrpe.encodings`` need torch alone and work without fairseq.
"""

from importlib.util import find_spec

if find_spec("fairseq"):
    from fairseq_lrpe import models  # noqa: F401  (importing registers them)
