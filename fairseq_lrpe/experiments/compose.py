"""An experiment's YAML, a method and the machine -> the commands that train and evaluate it.

``configs/<experiment>.yaml`` holds the experiment; its comments explain the keys.
"""

import os
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from fairseq_lrpe.methods import ATTENTIONS, METHODS

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIGS = REPOSITORY / "configs"
PRECISIONS = ("fp16", "fp32", "bf16")
BATCH_FLAGS = {"sequences": "batch_size", "tokens": "max_tokens"}


def experiments():
    """The names of all experiments: the YAML files under configs that say how to train."""
    paths = (path for path in CONFIGS.rglob("*.yaml") if path.parent.name not in ("paper", "tables"))
    return sorted(str(path.relative_to(CONFIGS).with_suffix("")) for path in paths)


def load(experiment, overrides=()):
    """The experiment's settings with ``key=value`` overrides; ValueError in one sentence for a wrong one."""
    if experiment not in experiments():
        raise ValueError(f"no experiment {experiment!r} in configs: choose from {', '.join(experiments())}")
    cfg = OmegaConf.load(CONFIGS / f"{experiment}.yaml")
    while base := cfg.pop("defaults", None):
        cfg = OmegaConf.merge(OmegaConf.load(CONFIGS / f"{base}.yaml"), cfg)
    for override in overrides:
        _override(cfg, experiment, override)
    for name in ("updates", "epochs"):
        if cfg.get(name, 1) < 1:  # fairseq would train without end
            raise ValueError(f"{name}={cfg[name]}: at least 1 is needed")
    return cfg


def _override(cfg, experiment, override):
    key, equals, text = override.partition("=")
    *sections, name = key.split(".")
    section = OmegaConf.select(cfg, ".".join(sections)) if sections else cfg
    if not equals or not isinstance(section, DictConfig) or name not in section:
        known = section if isinstance(section, DictConfig) else cfg
        raise ValueError(
            f"{override!r}: {experiment} has no key {key!r}, an override is key=value with a key of "
            f"{'.'.join(sections) if known is not cfg else 'the experiment'}: {', '.join(known)}"
        )
    old, new = section[name], OmegaConf.create({"x": None})
    new.merge_with_dotlist([f"x={text}"])
    value = new.x
    if isinstance(old, DictConfig):
        raise ValueError(f"{override!r}: {key} is a section, override one of its keys: {', '.join(old)}")
    if _kind(old) != _kind(value) and None not in (old, value):
        raise ValueError(f"{override!r}: {key} is {_kind(old)}, such as {old}, not {_kind(value)}")
    section[name] = value
    if section is cfg.train:
        for flags in cfg.by_method.values():  # or the method's own value would hide the new one
            if name in flags:
                flags[name] = value


def _kind(value):
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    return "a text" if isinstance(value, str) else "a list"


FAIRSEQS = {"lm": "transformer_lm", "roberta": "roberta", "transformer": "transformer"}
"""fairseq's own model of each family: the method ``fairseq``, which softmax's ``base`` has to equal."""


def check_method(method, attention):
    """Refuse a method that does not exist, or not in this attention."""
    if attention not in ATTENTIONS:
        raise ValueError(f"no attention {attention!r}: choose from {', '.join(ATTENTIONS)}")
    choices = [name for name in METHODS if attention in METHODS[name].attentions()]
    choices += ["fairseq"] * (attention == "softmax")
    if method not in choices:
        exists = method in METHODS or method == "fairseq"
        what = f"does not exist in {attention} attention" if exists else "does not exist"
        raise ValueError(f"the method {method!r} {what}: choose from {', '.join(choices)}")


def namesakes(method):
    """All methods with the same flags: a run of one is a run of each."""
    if method == "fairseq":
        return [method]
    return [name for name in METHODS if METHODS[name].flags == METHODS[method].flags]


def canonical(method):
    """The first of its namesakes, under whose name tables have their runs."""
    return namesakes(method)[0]


def arch(cfg, method, attention):
    return FAIRSEQS[cfg.family] if method == "fairseq" else f"{attention}_{cfg.family}_{method}"


def unit_of(cfg):
    """What ``cfg.batch`` counts: sequences, or tokens."""
    return cfg.batch.get("unit", "sequences")


def update_freq(cfg, gpus, nodes=1):
    """How many batches one process sums up for an update of the total batch."""
    total, per_gpu, processes = cfg.batch.total, cfg.batch.per_gpu, max(gpus, 1) * nodes
    if min(total, per_gpu) < 1 or total % (per_gpu * processes):
        where = f"{processes} GPU{'s' * (processes > 1)}" if gpus else "one process"
        raise ValueError(
            f"the total batch of {total} {unit_of(cfg)} is no multiple of {where} × {per_gpu} {unit_of(cfg)} "
            f"(batch.per_gpu) = {per_gpu * processes}: change the number of GPUs, or override batch.per_gpu"
        )
    return total // (per_gpu * processes)


def train_command(
    cfg,
    method,
    attention,
    seed,
    gpus=0,
    nodes=1,
    *,
    save_dir="checkpoints",
    cpu=False,
    precision="fp32",
    rendezvous=None,
    more=(),
):
    """The arguments of fairseq-train, with torchrun before it where that starts the processes.

    ``gpus`` counts those of one node, 0 is one process on the CPU; with ``cpu`` it counts CPU processes.
    """
    check_method(method, attention)
    flags = {
        "user_dir": "fairseq_lrpe",
        "task": cfg.task,
        "arch": arch(cfg, method, attention),
        **cfg.train,
        **(cfg.by_method.get(method) or {}),
    }
    return fairseq_train(
        os.pathsep.join(shards(cfg.data)),
        flags,
        cfg,
        updates=cfg.updates,
        seed=seed,
        save_dir=save_dir,
        gpus=gpus,
        nodes=nodes,
        cpu=cpu,
        precision=precision,
        rendezvous=rendezvous,
        more=more,
    )


def shards(data):
    """The data folder and those that data_prep/wikibook.sh numbers after it: fairseq takes one an epoch."""
    count = 1
    while (REPOSITORY / f"{data}{count}").is_dir():
        count += 1
    return [data, *(f"{data}{i}" for i in range(1, count))]


def fairseq_train(
    data,
    flags,
    cfg,
    *,
    updates,
    seed,
    save_dir,
    gpus=0,
    nodes=1,
    cpu=False,
    precision="fp32",
    rendezvous=None,
    more=(),
):
    """fairseq-train with ``flags`` and those of ``cfg``'s batches and of the machine; see train_command."""
    flags = {
        **flags,
        "max_update": updates,
        BATCH_FLAGS[unit_of(cfg)]: cfg.batch.per_gpu,
        "update_freq": update_freq(cfg, gpus, nodes),
        # fairseq would drop a last batch whose size is no multiple of 8.
        "required_batch_size_multiple": 1,
        "seed": seed,
        "save_dir": save_dir,
        "log_format": "json",
        # fairseq's default is the number of GPUs it sees.
        "distributed_world_size": max(gpus, 1) * nodes,
    }
    if precision != "fp32":
        flags[precision] = True
    launcher = []
    if cpu or not gpus:
        flags["cpu"] = True
    if cpu and gpus * nodes > 1:
        # The only flags with which fairseq's CPU processes train together.
        flags.update(
            distributed_init_method="env://",
            distributed_rank=-1,
            distributed_no_spawn=True,
            distributed_backend="gloo",
            ddp_backend="legacy_ddp",
        )
    if nodes > 1:
        launcher = ["--nnodes", nodes, "--rdzv_backend", "c10d", "--rdzv_endpoint", rendezvous]
    elif cpu and gpus > 1:
        launcher = ["--standalone"]
    if launcher:
        start = ["torchrun", *launcher, "--nproc_per_node", gpus, "-m", "fairseq_cli.train"]
    else:
        start = ["fairseq-train"]
    return [str(x) for x in (*start, data, *as_flags(flags), *more)]


EVALUATIONS = {  # of a task: fairseq's program and its flag for the split
    "language_modeling": ("fairseq-eval-lm", "gen_subset"),
    "masked_lm": ("fairseq-validate", "valid_subset"),
    "translation": ("fairseq-generate", "gen_subset"),
}
EVALUATION_SEED = 1
"""Of the tokens that a masked language model's evaluation hides: the same ones for every run."""


def evaluate_command(cfg, split, *, save_dir="checkpoints", cpu=False):
    """The arguments of fairseq's command that evaluates one split: one process, in single precision."""
    flags = {
        "user_dir": "fairseq_lrpe",
        "path": f"{save_dir}/{cfg.evaluate.checkpoint}",
        **cfg.evaluate.flags,
        # With more, each process would evaluate a part of the split and report it alone.
        "distributed_world_size": 1,
    }
    program, subset = EVALUATIONS[cfg.task]
    flags[subset] = split
    if cfg.task == "masked_lm":
        flags.update(task=cfg.task, seed=EVALUATION_SEED, log_format="json")
    if cpu:
        flags["cpu"] = True
    return [program, *map(str, (cfg.data, *as_flags(flags)))]


def data_files(cfg):
    """The names of the files that a training and its evaluation read in the folder ``cfg.data``."""
    splits = dict.fromkeys(["train", "valid", *cfg.evaluate.splits])
    if cfg.task != "translation":
        return ["dict.txt", *(f"{split}.bin" for split in splits)]
    pair = cfg.train.source_lang, cfg.train.target_lang
    texts = [f"{split}.{'-'.join(pair)}.{language}.bin" for split in splits for language in pair]
    return [*(f"dict.{language}.txt" for language in pair), *texts]


def as_flags(flags):
    """{"max_update": 5, "cpu": True, "x": None} -> ["--max-update", 5, "--cpu"]"""
    words = []
    for name, value in flags.items():
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(value)
    return words
