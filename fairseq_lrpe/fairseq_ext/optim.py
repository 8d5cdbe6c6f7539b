"""fairseq's Adam with weight decay for matrices only."""

from fairseq.optim import register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig

NAME = "adam_decay_matrices"


@register_optimizer(NAME, dataclass=FairseqAdamConfig)
class AdamDecayMatrices(FairseqAdam):
    """Adam that does not apply --weight-decay to one-dimensional parameters, such as biases and norms.

    The rule is that of timm 0.3.2, which DeiT and the LRPE paper's code use. DeiT also excludes its position
    embeddings from weight decay; the LRPE paper's code does not.
    """

    supports_flat_params = False  # because matrices cannot be recognized in a flat vector

    def __init__(self, cfg, params):
        matrices = []
        vectors = []
        for parameter in params:
            if parameter.dim() > 1:
                matrices.append(parameter)
            else:
                vectors.append(parameter)
        groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        super().__init__(cfg, [group for group in groups if group["params"]])
