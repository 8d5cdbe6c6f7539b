"""Names of architectures, and the check that the method of a checkpoint is registered."""

from pathlib import Path

from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.methods import ATTENTIONS, METHODS
from fairseq_lrpe.tasks import FAMILIES
from fairseq_lrpe.utils.errors import UserError


def split_architecture(arch: str) -> tuple[str, str, str] | None:
    """Returns the attention, the family and the method of the name of an architecture.

    The result is None for architectures of fairseq, and for those that have no method.
    """
    attention, _, rest = arch.partition("_")
    families = [name for name in FAMILIES.values() if rest.startswith(f"{name}_")]
    if attention not in ATTENTIONS or not families:
        return None
    family = max(families, key=len)  # the name of a family can start with that of another one
    return attention, family, rest.removeprefix(f"{family}_")


def check_registered(checkpoint: Path | str, model: dict) -> None:
    """Raises a UserError if the method or the encoding of a checkpoint has not been registered.

    Args:
        checkpoint: path of the checkpoint, or what a message calls it.
        model: the settings of the model in the checkpoint.
    """
    arch = str(model.get("_name"))
    encoding = model.get("encoding", "none")
    parts = split_architecture(arch)
    missing = None
    if encoding not in ENCODINGS:
        missing = f"encoding {encoding!r}"
    elif parts and parts[2] not in METHODS and arch not in ARCH_MODEL_REGISTRY:
        missing = f"method {parts[2]!r}"
    if missing:
        raise UserError(
            f"the {missing} of {checkpoint} is not registered: import the module that registers it, with "
            "--import of `lrpe`, LRPE_IMPORT for fairseq's commands, or an import in Python"
        )
