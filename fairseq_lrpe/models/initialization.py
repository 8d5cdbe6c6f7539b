"""Initialization of a model's linear layers and embeddings from a normal distribution."""

from torch import nn

INIT_STD_HELP = "standard deviation of initial weights and embeddings (0: the default of each module)"
"""Help text of the flag --init-std of models that call :func:`init_normal`."""


def init_normal(part: nn.Module, std: float) -> None:
    """Initializes the weights of all linear layers and embeddings in ``part`` from N(0, std²).

    The biases of the linear layers and the embeddings of padding are set to 0. Other parameters, such as
    those that encodings define directly, are not changed.
    """
    for module in part.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
            if getattr(module, "padding_idx", None) is not None:
                nn.init.zeros_(module.weight[module.padding_idx])
