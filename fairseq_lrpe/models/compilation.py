"""Compilation of the layers of a model by torch.compile, which ``--compile`` selects.

Each layer is compiled in place, so that checkpoints do not depend on the compilation. Only training is
compiled, because texts have many lengths in evaluation, and the state of decoding changes in each step.
"""

from typing import NamedTuple

from fairseq.modules.checkpoint_activations import _checkpointed_forward
from torch import nn

from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.suggest import check_flag

MODES = {"layers": "default", "reduce-overhead": "reduce-overhead"}
"""{value of --compile: ``mode`` of torch.compile}"""
BACKEND = "inductor"
MAX_GRAPHS = 8
"""Maximum number of compiled graphs of a layer, beyond which further shapes are not compiled.

torch compiles the first length of a text for this length, and the second one for all lengths.
"""


class Compilation(NamedTuple):
    """How a layer is compiled: a value of --compile, the layer's name, and the number of layers."""

    mode: str
    name: str
    layers: int


class CompiledLayer:
    """Mixin for layers that can be compiled in training, and whose activations can be recomputed.

    Attributes:
        compilation: how the layer is compiled in training, or None.
        recomputes: whether the backward pass recomputes the activations in the layer.
        offloads: whether the inputs of a layer whose activations are recomputed stay on the CPU until the
            backward pass.
    """

    compilation: Compilation | None = None
    recomputes = offloads = False

    def __call__(self, *args, **kwargs):
        call = super().__call__
        if self.compilation is not None:
            call = self._compiled_call if self.training else self._call_impl
        if self.recomputes:
            # torch.compile cannot trace fairseq's recomputation, which therefore surrounds the layer.
            return _checkpointed_forward(call, self.offloads, *args, **kwargs)
        return call(*args, **kwargs)

    def _compiled_call(self, *args, **kwargs):
        from torch._dynamo import config, exc  # not at the start, because it takes seconds

        mode, name, layers = self.compilation
        if self._compiled_call_impl is None:
            # All layers of a class share one limit, and encodings can differ from layer to layer.
            config.recompile_limit = max(config.recompile_limit, MAX_GRAPHS * layers)
            config.accumulated_recompile_limit = max(
                config.accumulated_recompile_limit, config.recompile_limit
            )
            # Gradients are sent while earlier layers are computed, so that splitting layers gains nothing.
            config.optimize_ddp = False
            self.compile(mode=MODES[mode], backend=BACKEND)
        try:
            return super().__call__(*args, **kwargs)
        except exc.TorchDynamoException as error:
            reason = str(error).strip().partition("\n")[0]
            raise UserError(f"--compile {mode} failed in the layer {name} ({reason}): omit it") from error


def compile_layers(model: nn.Module, mode: str) -> None:
    """Makes all layers of a model compile themselves in training; does nothing if ``mode`` is empty."""
    layers = {name: x for name, x in model.named_modules() if isinstance(x, CompiledLayer)}
    for name, layer in layers.items():
        layer.compilation = Compilation(mode, name, len(layers)) if mode else None


def check_compilation(args, cfg) -> None:
    """Raises a UserError if --compile has an unknown value, or does not support another flag."""
    if not cfg.compile:
        return
    check_flag("compile mode", cfg.compile, MODES)
    flag = f"--compile {cfg.compile}"
    for name in ("quant_noise_pq", "quant_noise_scalar"):
        if getattr(cfg, name, 0):
            raise UserError(f"{flag} does not support --{name.replace('_', '-')}: omit one")
    if args.ddp_backend == "fully_sharded":
        raise UserError(
            f"{flag} does not support --ddp-backend fully_sharded: pass pytorch_ddp or legacy_ddp"
        )
    if getattr(cfg, "encoder_norm", "layer") == "batch" and args.distributed_world_size > 1:
        raise UserError(
            f"{flag} does not support --encoder-norm batch in several processes, which exchange statistics: "
            "omit one, or pass --encoder-norm layer"
        )
