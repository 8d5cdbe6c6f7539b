"""Replacement of the positions of a model of Transformers by an encoding, and reading of such models."""

import json
from functools import cache
from pathlib import Path

import torch
import transformers
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.utils import CONFIG_NAME

from fairseq_lrpe.encodings import Encoding, build_encoding
from fairseq_lrpe.hf.attention import NAME, encode

LAYERS = {
    "gpt2": ("h", "attn"),
    "gpt_neox": ("layers", "attention"),
    "llama": ("layers", "self_attn"),
    "mistral": ("layers", "self_attn"),
    "qwen2": ("layers", "self_attn"),
    "qwen3": ("layers", "self_attn"),
}
"""{model type: attribute of the layers, and of the attention in a layer}"""
PREFIX = "Encoded"
"""Beginning of the names of classes of models with an encoding."""
_OF_MODEL = ("num_heads", "head_dim", "causal", "layer", "layers", "axes")
"""Arguments of encodings that the model determines."""
_OF_HUB = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")
"""Arguments of from_pretrained that also apply to the configuration."""


class Encoded:
    """Mixin for classes of Transformers, whose attention has an encoding in each layer.

    ``config.encoding`` has the arguments of :func:`fairseq_lrpe.encodings.build_encoding`.
    """

    def __init__(self, config, *args, **kwargs):
        config._attn_implementation = NAME
        super().__init__(config, *args, **kwargs)
        self.attach_encodings()

    def attach_encodings(self) -> None:
        """Switches off the model's own positions and adds an encoding to each layer."""
        config = self.config
        config._attn_implementation = NAME
        # This entry, which the property of the same name hides, is only for config.json: the classes of
        # Transformers refuse a folder with an implementation that they do not know.
        vars(config)["_attn_implementation"] = NAME
        base = self.base_model
        if config.model_type == "gpt2":
            base.wpe = NoEmbedding()
        else:
            base.rotary_emb = NoRotation()
        attentions = _attentions(self)
        for number, attention in enumerate(attentions, 1):
            attention.encoding = _new_encoding(config, number)
        # In half precision, from_pretrained does not round angles.
        names = attentions[0].encoding.float32_parameters
        self._keep_in_fp32_modules_strict = {f"encoding.{name}" for name in names}

    def initialize_weights(self):
        """Initializes the weights that a checkpoint lacks, also those of encodings."""
        for module in self.modules():
            if isinstance(module, Encoding):
                weights = module.state_dict(keep_vars=True).values()
                if not all(getattr(weight, "_is_hf_initialized", False) for weight in weights):
                    new = _new_encoding(self.config, module.layer).to(self.dtype)
                    module.load_state_dict(new.state_dict(), assign=True)
                for part in module.modules():
                    part._is_hf_initialized = True
        super().initialize_weights()

    def set_attn_implementation(self, attn_implementation):
        raise ValueError("the model has an encoding, which other implementations of attention would omit")


class NoEmbedding(nn.Module):
    """Replacement of GPT-2's embedding of positions by 0."""

    def forward(self, position_ids: Tensor) -> Tensor:
        _check_consecutive(position_ids)
        return torch.zeros((), device=position_ids.device)  # without a dimension, also for bfloat16


class NoRotation(nn.Module):
    """Replacement of the cosines and sines of RoPE by 1 and 0."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        _check_consecutive(position_ids)
        return x.new_ones(1, 1, 1), x.new_zeros(1, 1, 1)


def replace_positions(
    model: PreTrainedModel, encoding: str, *, attention: str = "softmax", **options: object
) -> PreTrainedModel:
    """Replaces the positions of a model by an encoding, whose weights are trained with the model.

    The model is changed in place; its other weights stay. Its class gets the prefix "Encoded". A model of
    half precision keeps the ``float32_parameters`` of the encoding in float32.

    Args:
        model: a model of Transformers of a type in ``LAYERS``, such as a ``LlamaForCausalLM``.
        encoding: name of an encoding of queries and keys, such as "lrpe", of a bias of the scores, such as
            "alibi", or of both; "none" or "nope" only switches off the model's own positions.
        attention: "softmax"; linear attention would need another cache than those of Transformers.
        **options: options of the encoding, and ``max_positions``, by default the length in the model's
            configuration, max_position_embeddings.

    Returns:
        The model.

    Raises:
        TypeError: if ``model`` is not a model of Transformers.
        ValueError: for another type of model, a model whose positions were replaced before, or an encoding
            or an option that is unknown or not supported.
    """
    _check_model(model)
    if attention != "softmax":
        raise ValueError(
            f"the caches of Transformers are those of softmax attention, not of {attention!r}: omit "
            "attention, or use fairseq_lrpe.LinearAttention in a model of your own"
        )
    for option in _OF_MODEL:
        if option in options:
            raise ValueError(f"the model determines {option}: omit it")
    config = model.config
    name = "none" if encoding == "nope" else encoding  # the name of the method
    arguments = {"name": name, "max_positions": config.max_position_embeddings, **options}
    _check_encoding(config, arguments)
    config.encoding = arguments
    dtype = model.dtype
    model.__class__ = encoded_class(type(model))
    model.attach_encodings()
    for module in _attentions(model):
        device = next(module.parameters()).device
        module.encoding.to(device, dtype).train(model.training)
    return model


def from_pretrained(folder: str | Path, **options: object) -> PreTrainedModel:
    """Returns a model with an encoding that ``save_pretrained`` has written, in evaluation mode.

    Args:
        folder: the folder, or the name OWNER/MODEL of a model of the hub.
        **options: arguments of ``from_pretrained`` of Transformers' models, such as ``dtype``.

    Raises:
        OSError: if there is no such model.
        ValueError: if the model was not saved with an encoding, or if weights are missing.
    """
    _check_source(folder, options.get("subfolder") or "")
    of_hub = {name: options[name] for name in _OF_HUB if name in options}
    content, _ = PretrainedConfig.get_config_dict(folder, **of_hub)
    [architecture] = content.get("architectures") or [""]
    base = getattr(transformers, architecture.removeprefix(PREFIX), None)
    if "encoding" not in content or not architecture.startswith(PREFIX) or base is None:
        raise ValueError(
            f"{folder} has no model that replace_positions has changed, but "
            f"{architecture or 'another model'}: load it with Transformers"
        )
    config = AutoConfig.from_pretrained(folder, **of_hub)
    cls = encoded_class(base)
    model, found = cls.from_pretrained(folder, config=config, output_loading_info=True, **options)
    if missing := sorted(found["missing_keys"]):
        more = f" and {len(missing) - 1} other weights" if len(missing) > 1 else ""
        raise ValueError(f"{folder} lacks {missing[0]}{more}: save the model again")
    return model


@cache
def encoded_class(cls: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """Returns the subclass of a class of Transformers whose attention has an encoding."""
    return type(PREFIX + cls.__name__, (Encoded, cls), {"__module__": __name__, "__doc__": Encoded.__doc__})


def __getattr__(name):
    """Returns a class of :func:`encoded_class`, which pickle looks up by its name."""
    base = getattr(transformers, name.removeprefix(PREFIX), None)
    if not name.startswith(PREFIX) or base is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return encoded_class(base)


def _check_source(folder, subfolder):
    """Raises a FileNotFoundError for a path without a model, for which Transformers would ask the hub."""
    remedy = "pass a folder that save_pretrained has written, or the name OWNER/MODEL of a model of the hub"
    path = Path(folder, subfolder)
    if Path(folder).exists():
        if not (path / CONFIG_NAME).is_file():
            raise FileNotFoundError(f"{path} is not a folder with a {CONFIG_NAME}: {remedy}")
    elif not _can_be_on_hub(folder):
        raise FileNotFoundError(f"the folder {folder} does not exist: {remedy}")


def _can_be_on_hub(name):
    """Returns whether the hub can have a model with this name that has an encoding."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return "/" in name  # only models that are older than this package have no owner


def _attentions(model):
    layers, attention = LAYERS[model.config.model_type]
    return [getattr(layer, attention) for layer in getattr(model.base_model, layers)]


def _new_encoding(config, layer):
    heads = config.num_attention_heads
    return build_encoding(
        **config.encoding,
        num_heads=heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        causal=True,
        layer=layer,
        layers=config.num_hidden_layers,
    )


def _check_model(model):
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"model must be a model of Transformers, not {type(model).__name__}")
    if isinstance(model, Encoded):
        name = model.config.encoding["name"]
        raise ValueError(f"the positions were already replaced by {name!r}: load the original model again")
    config = model.config
    if config.model_type not in LAYERS:
        raise ValueError(f"{config.model_type} is not one of {', '.join(LAYERS)}: use one of these models")
    expected = {"gpt2": {"scale_attn_weights": True}}.get(config.model_type, {})
    others = ("add_cross_attention", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn")
    expected = dict.fromkeys(others, False) | expected
    for name, value in expected.items():
        if getattr(config, name, value) != value:
            raise ValueError(f"{name}={getattr(config, name)} is not supported: use {name}={value}")


def _check_encoding(config, arguments):
    """Raises a ValueError if an encoding cannot be used in a model with this configuration."""
    name = arguments["name"]
    try:
        json.dumps(arguments)
    except TypeError:
        raise ValueError(f"options must be numbers, texts or truth values, not {arguments}") from None
    settings = type(config).from_dict(config.to_dict())
    settings.encoding = arguments
    encoding = _new_encoding(settings, 1)
    if encoding.shared_across_layers:
        raise ValueError(f"{name} is shared by all layers: use an encoding of each layer, such as t5 or lrpe")
    has_window = "sliding_attention" in (getattr(config, "layer_types", None) or [])
    if config.model_type == "mistral":
        has_window = config.sliding_window is not None
    if has_window and (encoding.uses_absolute_positions or encoding.draws_noise):
        raise ValueError(f"{name} depends on all preceding tokens, but the model has sliding windows")
    x = torch.zeros(1, encoding.num_heads, 2, encoding.head_dim)
    try:
        encode(encoding, x, x, torch.arange(2), torch.arange(2))
    except ValueError as error:
        reason = str(error).partition(":")[0]
        raise ValueError(
            f"{reason}: use an encoding of queries and keys, such as lrpe, or a bias, such as alibi"
        ) from None


def _check_consecutive(position_ids):
    """Raises a ValueError for gaps between positions, which the positions of encodings do not have.

    A model calls this once in a forward pass. A compiled model does not read the positions.
    """
    if not torch.compiler.is_compiling() and (position_ids.diff(dim=-1) > 1).any():
        raise ValueError("position_ids with gaps have no effect on encodings: omit them")
