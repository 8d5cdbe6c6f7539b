"""Registers one architecture per method from the METHODS table."""

from argparse import BooleanOptionalAction
from dataclasses import field, fields, make_dataclass

from fairseq import models
from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import OmegaConf

from fairseq_lrpe.config import check_options
from fairseq_lrpe.methods import ATTENTIONS, METHODS
from fairseq_lrpe.models import memory
from fairseq_lrpe.models.door import FAMILIES, check_machine, check_sharing, check_task
from fairseq_lrpe.programs import one_sentence


def register_family(family: str, model_cls: type, config_cls: type) -> None:
    """Registers ``<attention>_<family>`` and ``<attention>_<family>_<method>`` for a fairseq model.

    Each is a model of its own with its own defaults, so that fairseq-train's --arch and
    fairseq-hydra-train's model._name mean the same and a checkpoint carries every flag of its method.

    ``model_cls.check(cfg)`` raises ValueError where the flags cannot be met, before a model is built as well;
    ``check_data(cfg, args)``, if there is one, where the task's flags or data do not fit, before a training.
    """
    FAMILIES.append(family)
    for attention in ATTENTIONS:
        plain = {"attention": attention}
        _register(family, f"{attention}_{family}", model_cls, config_cls, plain, "everything by flag")
        for name, method in METHODS.items():
            if attention in method.attentions():
                arch, flags = f"{attention}_{family}_{name}", plain | method.flags
                _register(family, arch, model_cls, config_cls, flags, method.source)


def _register(family, arch, model_cls, config_cls, flags, source):
    base = {f.name: f for f in fields(config_cls)}
    defaults = [
        (flag, base[flag].type, field(default=value, metadata=base[flag].metadata))
        for flag, value in flags.items()
    ]
    config = make_dataclass(f"{config_cls.__name__}_{arch}", defaults, bases=(config_cls,))

    def add_args(parser):
        # Of fairseq, a flag that is on by default would turn it off under the same name.
        for f in fields(config):
            if isinstance(f.default, bool):
                flag = "--" + f.name.replace("_", "-")
                parser.add_argument(flag, action=BooleanOptionalAction, help=f.metadata["help"])
        # Of fairseq's models some list theirs by hand.
        models.BaseFairseqModel.add_args.__func__(model, parser)

    def build_model(cls, args, task):
        with one_sentence("fairseq_lrpe"):
            cls.check(args)
        return super(model, cls).build_model(args, task)

    methods = {"add_args": staticmethod(add_args), "build_model": classmethod(build_model)}
    model = type(arch, (model_cls,), {"__doc__": source, "__dataclass": config, **methods})

    def check_request(args):
        # Called when the command line has been read and nothing has been done.
        with one_sentence("fairseq_lrpe"):
            check_task(args.task, family)
            cfg = config.from_namespace(args)
            model_cls.check(cfg)
            check_options(cfg, vars(args))
            if args.task == "memory_lm":
                memory.check_request(cfg, args)
            if hasattr(model_cls, "check_data"):
                model_cls.check_data(cfg, args)
            check_sharing(args, cfg)
            check_machine(args, cfg.linear_backend)

    # What fairseq's register_model does, but for hydra's entry.
    models.MODEL_REGISTRY[arch], models.MODEL_DATACLASS_REGISTRY[arch] = model, config
    models.register_model_architecture(arch, arch)(check_request)
    name = f"{arch}.yaml"
    ConfigStore.instance().repo["model"][name] = _Entry(name, config(_name=arch), "model", None, "fairseq")


class _Entry(ConfigNode):
    """An entry of hydra's store whose DictConfig is made when it is asked for.

    hydra copies its whole store for each command line; with a DictConfig for each architecture that and
    making them would take every command two seconds.
    """

    def __copy__(self):  # what is asked for
        return ConfigNode(self.name, OmegaConf.structured(self.node), self.group, self.package, self.provider)

    def __deepcopy__(self, memo):
        return self
