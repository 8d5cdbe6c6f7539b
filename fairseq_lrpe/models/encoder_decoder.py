"""fairseq's Transformer encoder and decoder with this plugin's self-attention and token positions."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import LearnedPositionalEmbedding, SinusoidalPositionalEmbedding
from fairseq.modules.quant_noise import quant_noise
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from fairseq.utils import make_positions
from torch import Tensor, nn

from fairseq_lrpe.attention.fairseq_adapter import (
    AddedArguments,
    FairseqSelfAttention,
    build_attention,
    with_arguments,
)
from fairseq_lrpe.config import part_config
from fairseq_lrpe.fairseq_ext.host_copies import on_both, on_host
from fairseq_lrpe.models.compilation import CompiledLayer
from fairseq_lrpe.models.fingerprint import MethodFingerprint
from fairseq_lrpe.models.layer_stacks import DecoderStack, EncoderStack, padding_mask
from fairseq_lrpe.ops.position_index import random_position_index
from fairseq_lrpe.positions import POSITIONS, build_position
from fairseq_lrpe.utils.errors import UserError, user_errors

UNLIMITED = 10**9
"""Maximum number of positions of models that have no limit."""

COPIED_WEIGHTS = [
    f"{layer}_{kind}" for layer in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias")
]
"""Parameters of an encoder layer of fairseq 0.12.2 that are copies of others."""

INIT_STD_HELP = "standard deviation of initial weights and embeddings (0: the default of each module)"
"""Description of the flag --init-std of models that call :func:`init_normal`."""


def segment_ids(tokens: Tensor, end: int) -> Tensor:
    """Returns segments of tokens (B, L): 0 up to and including the first ``end`` of a row, and 1 after it."""
    ends = tokens.eq(end).int()
    return (ends.cumsum(1) - ends).clamp(max=1)


def transformer_config(args) -> TransformerConfig:
    """Returns a model's flags as the configuration of fairseq's encoder, decoder and layers.

    Its attribute ``args`` has all flags of the model. fairseq's conversion alone would lose those that are
    not fields of TransformerConfig, such as the four of NormFormer.
    """
    cfg = TransformerConfig.from_namespace(args)
    cfg.args = args
    cfg.checkpoint_activations |= cfg.offload_activations
    for name in ("scale_attn", "scale_heads", "scale_fc", "scale_resids"):
        setattr(cfg, name, getattr(args, name, False))
    return cfg


class CustomAttentionLayer(CompiledLayer):
    """Base class of fairseq's layers whose self-attention is created by calling ``self_attention()``."""

    def __init__(self, self_attention, *args):
        self._self_attention = self_attention
        super().__init__(*args)

    def build_self_attention(self, embed_dim, cfg, **_):
        attention = self._self_attention()
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj):
            quant_noise(projection, self.quant_noise, self.quant_noise_block_size)
        return attention


class EncoderLayer(CustomAttentionLayer, TransformerEncoderLayerBase):
    """fairseq's encoder layer with this plugin's self-attention."""

    def __init__(self, *args):
        super().__init__(*args)
        # fairseq 0.12.2 evaluates some layers by a fused operation of torch with copies of their weights. It
        # computes plain softmax attention.
        self.can_use_fastpath = False
        for name in COPIED_WEIGHTS:
            self._parameters.pop(name, None)

    def _load_from_state_dict(self, *args):
        nn.Module._load_from_state_dict(self, *args)  # fairseq 0.12.2 would add the copies

    def forward(self, x, encoder_padding_mask, attn_mask=None, keys=None):
        """Encodes x (L, B, E) like fairseq; keys and values are computed from ``keys`` (L, B, E) if given."""
        if keys is None:
            return super().forward(x, encoder_padding_mask, attn_mask)
        keys = self.self_attn_layer_norm(keys) if self.normalize_before else keys
        with with_arguments(self.self_attn, keys=keys):
            return super().forward(x, encoder_padding_mask, attn_mask)


class DecoderLayer(CustomAttentionLayer, TransformerDecoderLayerBase):
    """fairseq's decoder layer with this plugin's self-attention and an optional memory.

    Attributes:
        memory: the memory of the layer while it processes a segment (:mod:`fairseq_lrpe.models.memory`).
    """

    memory = None

    def __init__(self, *args):
        super().__init__(*args)
        # The decoder requests the weights of attention to the source from the layer whose weights it returns.
        self.need_attn = False

    def __call__(self, x, *args, **kwargs):
        if self.memory is None:
            return super().__call__(x, *args, **kwargs)
        with with_arguments(self.self_attn, **self.memory.arguments(self)):
            out, state, *rest = super().__call__(x, *args, **kwargs)
        self.memory.update(self, x, state)
        return out, None, *rest


class CustomLayers:
    """Mixin for fairseq's encoder and decoder, which builds layers with this plugin's self-attention.

    ``cfg`` is the result of :func:`transformer_config`.
    """

    part: str
    """Which part of a model this is, "encoder" or "decoder"."""

    def __init__(self, cfg, dictionary, embed_tokens, **kwargs):
        sizes, self._shared, self.args = getattr(cfg, self.part), [], cfg.args
        # A pruned model consists of some layers of the trained one, whose encodings can depend on the layer.
        self._layers = getattr(cfg.args, f"{self.part}_layers")
        kept = (
            sorted(map(int, sizes.layers_to_keep.split(","))) if sizes.layers_to_keep else range(self._layers)
        )
        sizes.layers, self._layer_numbers = len(kept), iter([index + 1 for index in kept])
        self.randomized_positions = part_config(cfg.args, self.part).randomized_positions or 0
        super().__init__(cfg, dictionary, embed_tokens, **kwargs)
        self.method = MethodFingerprint(cfg.args)

    def build_layer(self, layer_cls, cfg, max_positions, *args):
        """Returns the next layer, wrapped for --checkpoint-activations and --ddp-backend fully_sharded."""
        sizes = getattr(cfg, self.part)
        self_attention = partial(
            build_attention,
            part_config(self.args, self.part),
            embed_dim=sizes.embed_dim,
            num_heads=sizes.attention_heads,
            causal=self.part == "decoder",
            layer=next(self._layer_numbers),
            layers=self._layers,
            max_positions=self.randomized_positions or max_positions,
            dropout=cfg.attention_dropout,
            shared=self._shared,
        )
        layer = layer_cls(self_attention, cfg, *args)
        if cfg.checkpoint_activations:
            layer.recomputes, layer.offloads = True, cfg.offload_activations
        return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)

    @contextmanager
    def positions_of(self, tokens: Tensor) -> Iterator[None]:
        """Gives tokens (B, L) the same random positions in all layers, if --randomized-positions is given.

        They are drawn for each batch in training, and fixed for each length L otherwise. All rows have the
        same positions; a row with padding uses the first of them.
        """
        if not self.randomized_positions:
            yield
            return
        with user_errors():
            index = random_position_index(
                tokens.size(1), self.randomized_positions, tokens.device, fixed=not self.training
            )
        embeddings = [] if self.embed_positions is None else [self.embed_positions]
        with (
            with_arguments(*self_attentions(self), position_index=index),
            with_arguments(*embeddings, positions=index.query_positions),
        ):
            yield


class Encoder(CustomLayers, EncoderStack):
    """fairseq's encoder with :class:`EncoderLayer`; padding may be on the left or on the right."""

    part = "encoder"

    def build_encoder_layer(self, cfg):
        return self.build_layer(EncoderLayer, cfg, cfg.max_source_positions)

    def forward(self, src_tokens, *rest, **kwargs):
        """Encodes tokens like fairseq, but the first token after padding on the left is at position 0."""
        with self.positions_of(src_tokens):
            if not self._leading_padding(on_host(src_tokens)).any():
                return super().forward(src_tokens, *rest, **kwargs)
            padding = self._leading_padding(src_tokens)
            index = torch.arange(src_tokens.size(1), device=src_tokens.device)
            out = super().forward(on_both(self._without_leading_padding, src_tokens), *rest, **kwargs)
            out = _permute_tokens(out, (index - padding) % len(index))
            return {**out, "encoder_padding_mask": [padding_mask(src_tokens, self.padding_idx)]}

    def _leading_padding(self, tokens):
        """Returns the number of padding tokens on the left of each row of tokens (B, L), as (B, 1)."""
        return tokens.ne(self.padding_idx).int().argmax(1, keepdim=True)

    def _without_leading_padding(self, tokens):
        """Returns tokens (B, L) with all padding on the right."""
        index = torch.arange(tokens.size(1), device=tokens.device)
        return tokens.gather(1, (index + self._leading_padding(tokens)) % len(index))

    def reorder_encoder_out(self, encoder_out, new_order):
        """Reorders rows like fairseq, but copies nothing if each row is replaced by one of the same sentence.

        Every step of beam search reorders the rows of a sentence, which are equal.
        """
        (old,) = encoder_out.get("sentences") or [
            torch.arange(encoder_out["encoder_out"][0].size(1), device=new_order.device)
        ]
        sentences = old.index_select(0, new_order)
        if torch.equal(sentences, old):
            return encoder_out
        return {**super().reorder_encoder_out(encoder_out, new_order), "sentences": [sentences]}


def _permute_tokens(out, index):
    """Returns an encoder's output with its tokens in the order ``index`` (B, L)."""
    batch = torch.arange(len(index), device=index.device)
    indices = dict.fromkeys(("encoder_out", "encoder_states"), (index.T, batch))  # (L, B, E)
    # (B, L) and (B, L, E)
    indices |= dict.fromkeys(("encoder_padding_mask", "encoder_embedding"), (batch[:, None], index))
    return {**out, **{name: [x[i] for x in out[name]] for name, i in indices.items()}}


def _pad_left(out):
    """Returns an encoder's output with all padding on the left, so that distances to the target are exact."""
    padding = out["encoder_padding_mask"][0]
    if not _trailing_padding(on_host(padding)).any():
        return out
    index = torch.arange(padding.size(1), device=padding.device)
    return _permute_tokens(out, (index - _trailing_padding(padding)) % len(index))


def _trailing_padding(padding):
    """Returns the number of padding tokens on the right of each row of a mask (B, L), as (B, 1)."""
    return (~padding).flip(1).int().argmax(1, keepdim=True)


class Decoder(CustomLayers, DecoderStack):
    """fairseq's decoder with :class:`DecoderLayer`.

    Attributes:
        memory: the :class:`fairseq_lrpe.models.memory.Memory` of previous segments, or None.
    """

    part = "decoder"
    memory = None

    def build_decoder_layer(self, cfg, no_encoder_attn=False):
        # With --cross-self-attention, the positions of the target follow those of the source.
        positions = cfg.max_target_positions + cfg.cross_self_attention * cfg.max_source_positions
        return self.build_layer(DecoderLayer, cfg, positions, no_encoder_attn)

    def extract_features_scriptable(self, tokens, encoder_out=None, incremental_state=None, *rest, **kwargs):
        """Decodes like fairseq, except that the first call with an incremental state processes all tokens.

        As in every call with a state, only the features of the last token are returned, so that the logits of
        a long prefix take no memory. Raises a UserError for a state with --randomized-positions.
        """
        extract = super().extract_features_scriptable
        if incremental_state is not None and self.training and self.decoder_layerdrop:
            raise UserError(
                "--decoder-layerdrop drops other layers for each token in training, whose states then lack "
                "the token: call eval() before decoding"
            )
        if self.randomized_positions:
            if incremental_state is not None:
                raise UserError(
                    "a model with --randomized-positions cannot decode token by token, because the positions "
                    "depend on the length of the text: generate with `lrpe generate`"
                )
            with self.positions_of(tokens):
                return extract(tokens, encoder_out, None, *rest, **kwargs)
        if self.cross_self_attention:
            encoder_out = _pad_left(encoder_out)
        if incremental_state is None or incremental_state or tokens.size(1) == 1:
            return extract(tokens, encoder_out, incremental_state, *rest, **kwargs)
        # Only attention and token positions receive the state, because with a state fairseq would process
        # only the last token.
        attentions = self_attentions(self)
        positions = [x for x in self.modules() if isinstance(x, TokenPositions)]
        segments = tokens.split(attentions[0].segment_length or tokens.size(1), dim=1)
        with (
            with_arguments(*attentions, incremental_state=incremental_state),
            with_arguments(*positions, prefix_state=incremental_state),
        ):
            for part in segments:
                features, extra = extract(part, encoder_out, None, *rest, **kwargs)
        return features[:, -1:], extra

    def forward(self, prev_output_tokens, *args, segment=None, **kwargs):
        """Decodes like fairseq; a ``segment`` of a text also attends to the memory of previous segments."""
        if self.memory is None or segment is None:
            return super().forward(prev_output_tokens, *args, **kwargs)
        with self.memory.attached(segment, len(prev_output_tokens), self.training):
            return super().forward(prev_output_tokens, *args, **kwargs)

    def reorder_incremental_state_scripting(self, incremental_state, new_order):
        """Reorders the states of all modules like fairseq, which looks for the method in slower ways."""
        for module in self.modules():
            if hasattr(type(module), "reorder_incremental_state"):
                module.reorder_incremental_state(incremental_state, new_order)

    def max_positions(self):
        """Returns the maximum number of tokens of a text, which is unlimited with a memory."""
        return super().max_positions() if self.memory is None else UNLIMITED

    def buffered_future_mask(self, tensor):
        """Returns None, because this plugin's causal attention does not use a mask (L, L)."""
        return None


def self_attentions(module: nn.Module) -> list[FairseqSelfAttention]:
    """Returns the self-attention of each layer of an encoder or decoder."""
    return [x for x in module.modules() if isinstance(x, FairseqSelfAttention)]


def add_token_positions(module, args, max_positions):
    """Sets ``embed_positions`` to what the flags select; exits if --randomized-positions does not fit it."""
    count, embedding = module.randomized_positions, module.embed_positions
    if count:
        check_number_of_positions(count, max_positions, embedding)
    if args.token_positions in POSITIONS:
        attentions = self_attentions(module)
        position = build_position(
            args.token_positions,
            embed_dim=getattr(module.args, f"{module.part}_embed_dim"),
            vocab_size=len(module.dictionary),
            max_positions=count or max_positions,
            padding_idx=module.padding_idx,
            causal=module.part == "decoder",
            layers=len(attentions),
        )
        project = getattr(module, "project_in_dim", None)
        module.embed_positions = TokenPositions(
            position, module.embed_tokens, module.embed_scale, attentions, project
        )
    elif isinstance(embedding, SinusoidalPositionalEmbedding):
        module.embed_positions = SinusoidalPositions(embedding, count)
    elif count and isinstance(embedding, LearnedPositionalEmbedding):
        module.embed_positions = LearnedPositions(embedding)


def check_number_of_positions(count: int, max_positions: int, embedding: nn.Module | None) -> None:
    """Raises a UserError if ``count`` positions are too few for the model, or too many for its table."""
    if count < max_positions:
        raise UserError(
            f"--randomized-positions {count} is below the maximum length of {max_positions} tokens: pass at "
            f"least {max_positions}, or a smaller maximum length"
        )
    if isinstance(embedding, LearnedPositionalEmbedding) and embedding.max_positions < count:
        raise UserError(
            f"--randomized-positions {count} exceeds the table of {embedding.max_positions} learned token "
            f"positions: set the maximum length of the model to {count}"
        )


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


class SinusoidalPositions(AddedArguments, SinusoidalPositionalEmbedding):
    """fairseq's sinusoidal positions, except that the positions (L,) of tokens (B, L) can be given.

    Beyond the table, each decoding step computes one row; fairseq computes the whole table again. The values
    are the same.
    """

    def __init__(self, original: SinusoidalPositionalEmbedding, count: int = 0):
        rows = max(len(original.weights), original.padding_idx + 1 + count)
        super().__init__(original.embedding_dim, original.padding_idx, rows)

    def forward(self, input, incremental_state=None, timestep=None, positions=None):
        if positions is not None:
            return self.weights[position_rows(input, self.padding_idx, positions)]
        row = self.padding_idx + input.size(1)
        if incremental_state is None or timestep is not None or row < len(self.weights):
            return super().forward(input, incremental_state, timestep, positions)
        half = self.embedding_dim // 2
        frequencies = torch.exp(torch.arange(half, dtype=torch.float32) * -(math.log(10000) / (half - 1)))
        angles = row * frequencies
        position = torch.cat([angles.sin(), angles.cos(), angles.new_zeros(self.embedding_dim % 2)])
        return position.to(self.weights).expand(len(input), 1, -1)


class LearnedPositions(AddedArguments, LearnedPositionalEmbedding):
    """fairseq's learned positions, except that the positions (L,) of tokens (B, L) can be given."""

    def __init__(self, original: LearnedPositionalEmbedding):
        super().__init__(original.num_embeddings, original.embedding_dim, original.padding_idx)
        self.weight = original.weight

    def forward(self, input, incremental_state=None, positions=None):
        if positions is None:
            return super().forward(input, incremental_state)
        return nn.Embedding.forward(self, position_rows(input, self.padding_idx, positions))


def position_rows(tokens: Tensor, padding_idx: int, positions: Tensor | None = None) -> Tensor:
    """Returns the row of each token (B, L) in fairseq's tables of positions: 1 + ``padding_idx`` + position.

    Token n of a text, not counting padding, is at ``positions[n]``, by default n. Padding has the row
    ``padding_idx``.
    """
    rows = make_positions(tokens, padding_idx)
    if positions is None:
        return rows
    given = positions[(rows - padding_idx - 1).clamp(min=0)] + padding_idx + 1
    return torch.where(tokens == padding_idx, rows, given)


class TokenPositions(AddedArguments, FairseqIncrementalState, nn.Module):
    """Replacement for the module ``embed_positions``, whose output fairseq adds to the scaled embeddings.

    If the position embedding is not additive (see ``AbsolutePosition.additive``), this module also computes
    the scaled embeddings x, which ``project`` maps to the model's dimension if it differs, and returns the
    difference between x with positions and x. Positions in ``every_layer`` are added to the inputs of the
    ``attentions`` of the layers instead, and 0 is returned.
    """

    max_positions = int(1e5)

    def __init__(self, position, embed_tokens, scale, attentions, project=None):
        super().__init__()
        self.position = position
        self.embed_tokens, self.project = embed_tokens, project
        self.scale = scale
        if position.every_layer:
            for layer, attention in enumerate(attentions):
                attention.register_forward_pre_hook(partial(self._add_part, layer), with_kwargs=True)
        self.parts = [None] * len(attentions)

    def forward(self, tokens, incremental_state=None, prefix_state=None, positions=None):
        """Returns the term to add (B, L, E) for tokens (B, L), or (B, 1, E) for the last one in decoding.

        If tokens are a prefix that is decoded in one call, ``prefix_state`` is the incremental state of the
        calls that follow. ``positions`` (L,) replace the positions 0, 1, ..
        """
        has_state = incremental_state is not None or prefix_state is not None
        if has_state and self.training and self.position.draws_noise:
            raise UserError(
                f"{self.position.name} positions draw other noise for each token in training: call eval() "
                "before decoding"
            )
        padding_idx = self.position.padding_idx
        positions = position_rows(tokens, padding_idx, positions) - padding_idx - 1
        if incremental_state is None:
            return self._offsets(tokens, positions, prefix_state)
        # fairseq passes all previous tokens, too.
        last = 1 if self.position.left_context == math.inf else self.position.left_context + 1
        return self._offsets(tokens[:, -last:], positions[:, -last:], incremental_state)[:, -1:]

    def _offsets(self, tokens, positions, incremental_state):
        if self.position.additive:
            like = next(self.embed_tokens.parameters())  # those of the position can be kept in float32
            p = self.position(like.new_zeros(*tokens.shape, self.position.width), positions, tokens)
            if self.position.every_layer:
                self.parts = list(p.transpose(0, 1).chunk(len(self.parts), dim=-1))
                return p.new_zeros(1, 1, 1)
            return p
        x = self.scale * self.embed_tokens(tokens)
        x = x if self.project is None else self.project(x)
        if incremental_state is None or self.position.left_context != math.inf:
            return self.position(x, positions, tokens) - x
        state = self.get_incremental_state(incremental_state, "position")
        out, state = self.position.step(x, positions, tokens, state)
        self.set_incremental_state(incremental_state, "position", state)
        return out - x

    def _add_part(self, layer, _, args, kwargs):
        part, self.parts[layer] = self.parts[layer], None
        query = kwargs["query"]
        return args, kwargs | {"query": query + part.to(query.dtype)}

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        """Replaces batch row i of the state by row ``new_order[i]``, for beam search."""
        state = self.get_incremental_state(incremental_state, "position")
        if state is not None:
            state = state.index_select(0, new_order)
            self.set_incremental_state(incremental_state, "position", state)
