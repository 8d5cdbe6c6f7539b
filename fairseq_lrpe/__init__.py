"""fairseq-lrpe: positional encodings for linear and softmax attention, as a fairseq plugin.

``fairseq-train --user-dir fairseq_lrpe`` imports this package, which registers its models. Without
fairseq, or before it is imported, ``fairseq_lrpe.ops`` and ``fairseq_lrpe.encodings`` need torch alone.
"""

import sys

if "fairseq" in sys.modules:  # fairseq's commands, not a person who is after an op
    from fairseq_lrpe import models  # noqa: F401
