"""Registration of one architecture per method of the METHODS table."""

from argparse import BooleanOptionalAction
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields

from fairseq import models
from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import OmegaConf

from fairseq_lrpe.config import with_defaults
from fairseq_lrpe.config_validation import check_options
from fairseq_lrpe.methods import ATTENTIONS, METHODS
from fairseq_lrpe.models.argument_validation import check_machine, check_shared_encoding, check_task
from fairseq_lrpe.models.compilation import check_compilation, compile_layers
from fairseq_lrpe.models.fingerprint import without_encoding
from fairseq_lrpe.utils.cli import file_errors
from fairseq_lrpe.utils.errors import UserError

_checks_arguments = ContextVar("checks_arguments", default=True)


@contextmanager
def unchecked_arguments() -> Iterator[None]:
    """Parses fairseq's commands in the block without checking them against their data and this machine."""
    token = _checks_arguments.set(False)
    try:
        yield
    finally:
        _checks_arguments.reset(token)


def register_family(family: str, model_cls: type, config_cls: type) -> None:
    """Registers the architectures ``<attention>_<family>`` and ``<attention>_<family>_<method>`` of a family.

    Each architecture is a model with its own default flags, so that fairseq-train's --arch and
    fairseq-hydra-train's model._name are equivalent and checkpoints contain every flag of their method.

    ``model_cls.check(cfg)`` raises a UserError for invalid flags, and the optional method
    ``model_cls.check_data(cfg, args)`` for flags that do not match the task or its data.
    """
    for attention in ATTENTIONS:
        plain = {"attention": attention}
        _register(family, f"{attention}_{family}", model_cls, config_cls, plain, "configured by flags")
        for name, method in METHODS.items():
            if attention in method.attentions():
                arch = f"{attention}_{family}_{name}"
                flags = plain | method.flags
                _register(family, arch, model_cls, config_cls, flags, method.source)


def _register(family, arch, model_cls, config_cls, flags, source):
    config = with_defaults(config_cls, **flags)

    def add_args(parser):
        # For a boolean that is True by default, fairseq alone would add a flag that sets it to False.
        for f in fields(config):
            if isinstance(f.default, bool):
                flag = "--" + f.name.replace("_", "-")
                parser.add_argument(flag, action=BooleanOptionalAction, help=f.metadata["help"])
        # The method is that of the base class, because some of fairseq's models override it with own flags.
        models.BaseFairseqModel.add_args.__func__(model, parser)

    def build_model(cls, args, task):
        cls.check(args)
        built = super(model, cls).build_model(args, task)
        built.drops_encoding = args.drop_encoding
        compile_layers(built, args.compile)
        return built

    def load_state_dict(self, state_dict, *args, **kwargs):
        if self.drops_encoding:
            state_dict = without_encoding(state_dict, self)
        try:
            return super(model, self).load_state_dict(state_dict, *args, **kwargs)
        except RuntimeError as error:  # the message is a title, followed by lines with mismatched parameters
            reason = str(error).splitlines()[1].strip().removesuffix(".")
            raise UserError(
                f"the checkpoint does not match the model: {reason}: pass the flags and "
                "data that it was trained with"
            ) from None

    methods = {"add_args": staticmethod(add_args), "build_model": classmethod(build_model)}
    methods |= {"__doc__": source, "__dataclass": config, "load_state_dict": load_state_dict}
    model = type(arch, (model_cls,), methods)

    def check_arguments(args):
        # fairseq calls this function after parsing the command line, before it writes anything.
        if not _checks_arguments.get():
            return
        check_task(args.task, family)
        cfg = config.from_namespace(args)
        model_cls.check(cfg)
        check_options(cfg, vars(args))
        if hasattr(model_cls, "check_data"):
            with file_errors():
                model_cls.check_data(cfg, args)
        check_shared_encoding(args, cfg)
        check_machine(args, cfg.linear_backend)
        check_compilation(args, cfg)

    # Equivalent to fairseq's register_model except for the entry in hydra's store.
    models.MODEL_REGISTRY[arch] = model
    models.MODEL_DATACLASS_REGISTRY[arch] = config
    models.register_model_architecture(arch, arch)(check_arguments)
    name = f"{arch}.yaml"
    ConfigStore.instance().repo["model"][name] = _LazyNode(name, config(_name=arch), "model", None, "fairseq")


class _LazyNode(ConfigNode):
    """A node of hydra's store that creates its DictConfig on access.

    hydra copies its whole store for each command line. Creating and copying a DictConfig per architecture
    would add two seconds to every command.
    """

    def __copy__(self):  # called on access
        return ConfigNode(self.name, OmegaConf.structured(self.node), self.group, self.package, self.provider)

    def __deepcopy__(self, memo):
        return self
