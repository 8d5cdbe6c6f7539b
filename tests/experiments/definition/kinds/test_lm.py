"""The maximum length of a trained language model: the rule matches the models."""

import math

import pytest
import torch
from fairseq import checkpoint_utils, tasks
from fairseq.models import MODEL_DATACLASS_REGISTRY
from omegaconf import OmegaConf

import fairseq_lrpe.models  # noqa: F401
from fairseq_lrpe.experiments.definition.language_model import ModelFlags
from fairseq_lrpe.methods import METHODS
from fairseq_lrpe.positions import POSITIONS
from fairseq_lrpe.utils.errors import UserError

TRAINED, LONGER = 32, 96
CASES = [(f"softmax_lm_{name}", {}) for name in ("base", "nope", "t5", "xl", "lfhc", "tupe_a", "roper")]
CASES += [(f"linear_lm_{name}", {}) for name in ("tmlr_type1", "tmlr_type3", "per", "spe", "cosformer")]
CASES += [("softmax_lm", {"token_positions": name}) for name in ("learned", *POSITIONS)]
CASES += [("softmax_lm", {"encoding": "lrpe", "lrpe_theta_type": "b", "lrpe_learn_theta": True})]
CASES += [
    ("softmax_lm", {"decoder_learned_pos": True}),
    ("softmax_lm", {"no_token_positional_embeddings": True}),
]


def save_checkpoint(path, trained, arch, flags):
    """Writes a copy of the checkpoint ``trained`` with another model, and returns its task."""
    sizes = {"layers": 2, "embed_dim": 32, "ffn_embed_dim": 32, "attention_heads": 4}
    sizes = {f"decoder_{name}": size for name, size in sizes.items()}
    state = torch.load(trained, weights_only=True)
    cfg = OmegaConf.create(state["cfg"])
    cfg.model = OmegaConf.structured(MODEL_DATACLASS_REGISTRY[arch](**sizes, **flags))
    cfg.model._name = arch
    task = tasks.setup_task(cfg.task)
    state["model"] = task.build_model(cfg.model).state_dict()
    torch.save({**state, "cfg": OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)}, path)
    return task


@torch.no_grad()
def reads_longer(path, task):
    """Whether the checkpoint can be loaded for LONGER, with the same outputs up to TRAINED."""
    tokens = torch.randint(4, 40, (2, LONGER))
    outputs = []
    for overrides in ({}, {"max_target_positions": LONGER}):
        try:
            [model], _ = checkpoint_utils.load_model_ensemble([path], arg_overrides=overrides, task=task)
        except (RuntimeError, UserError):  # a parameter has another size
            return False
        outputs.append(model.eval()(tokens[:, :TRAINED])[0])
    assert model.max_positions() >= LONGER
    return torch.allclose(*outputs, atol=1e-5) and bool(model(tokens)[0].isfinite().all())


@pytest.mark.parametrize("arch, flags", CASES)
def test_rule_matches_the_models(arch, flags, checkpoint, tmp_path):
    path = tmp_path / "checkpoint.pt"
    task = save_checkpoint(path, checkpoint, arch, flags)
    limit, reason = ModelFlags(torch.load(path, weights_only=True)["cfg"]["model"]).max_length()
    assert (limit > TRAINED) == reads_longer(str(path), task), reason
    assert limit >= TRAINED and reason


def test_limits_of_all_methods():
    flags = {"decoder_learned_pos": False, "no_token_positional_embeddings": False, "tokens_per_sample": 512}
    flags |= {"max_target_positions": None, "token_positions": "sinusoidal", "lrpe_learn_theta": False}
    flags |= {"lrpe_core": "orthogonal", "lrpe_theta_type": "a", "encoding": "none"}
    limits = {name: ModelFlags(flags | method.flags).max_length()[0] for name, method in METHODS.items()}
    limited = [name for name, limit in limits.items() if limit == 512]
    assert limited == ["tupe_a", "tupe_r", "liere", "liere_8", "cosformer"]
    assert [name for name, limit in limits.items() if limit == math.inf] == ["nope"]
