"""fairseq's Adam for models in which not all parameters decay."""

from fairseq.optim import register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig

NAME = "adam_decay_matrices"


@register_optimizer(NAME, dataclass=FairseqAdamConfig)
class AdamDecayMatrices(FairseqAdam):
    """Adam whose --weight-decay leaves out parameters of one dimension: biases, norms.

    As in timm 0.3.2, which DeiT and the LRPE paper's code use; there DeiT names its position table to be left
    out as well, and the paper's code does not.
    """

    supports_flat_params = False  # of one long vector nothing would decay

    def __init__(self, cfg, params):
        params = list(params)
        matrices, vectors = ([p for p in params if (p.dim() > 1) == many] for many in (True, False))
        groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        super().__init__(cfg, [group for group in groups if group["params"]])


def check_request(args) -> None:
    """Refuses, by ValueError, parameters in one long vector, in which none are matrices."""
    apart = args.fp16_no_flatten_grads or args.memory_efficient_fp16
    if args.optimizer == NAME and args.fp16 and not apart:
        raise ValueError(f"--optimizer {NAME} needs parameters apart: give --fp16-no-flatten-grads, too")
