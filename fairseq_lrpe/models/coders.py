"""Builds fairseq's encoder and decoder out of our layers."""

from functools import partial
from itertools import count

import torch
from fairseq import utils
from fairseq.dataclass import ChoiceEnum
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from torch import Tensor, nn

from fairseq_lrpe.attention import SelfAttention, build_attention
from fairseq_lrpe.config import part_flags
from fairseq_lrpe.models.stamp import MethodStamp

ACTIVATIONS = ChoiceEnum(utils.get_available_activation_fns())


def halves(tokens: Tensor, end: int) -> Tensor:
    """Returns 0 up to the first ``end`` of each row of tokens (B, L), and 1 after it."""
    ends = tokens.eq(end).int()
    return (ends.cumsum(1) - ends).clamp(max=1)


class OurAttention:
    """Lets a layer of fairseq's take its self-attention from ``self_attention()``."""

    def __init__(self, self_attention, *args):
        self._self_attention = self_attention
        super().__init__(*args)

    def build_self_attention(self, embed_dim, cfg, **_):
        return self._self_attention()


class EncoderLayer(OurAttention, TransformerEncoderLayerBase):
    """Puts our self-attention into fairseq's encoder layer."""


class DecoderLayer(OurAttention, TransformerDecoderLayerBase):
    """Puts our self-attention into fairseq's decoder layer.

    ``memory`` (M, B, E) are inputs of this layer at the positions before, which attention sees as well.
    """

    memory = inputs = None
    remembers = False

    def forward(self, x, *args, **kwargs):
        if self.remembers:
            self.inputs = x
        if self.memory is not None:
            norm = self.self_attn_layer_norm if self.normalize_before else nn.Identity()
            self.self_attn.before = norm(self.memory)
        try:
            return super().forward(x, *args, **kwargs)
        finally:
            self.self_attn.before = None


class OurLayers:
    """Lets an encoder or decoder of fairseq's, the ``part``, be made of our layers and carry its method.

    ``args`` has our flags and ``cfg`` fairseq's, which is a TransformerConfig and holds no others.
    """

    part: str

    def __init__(self, args, cfg, dictionary, embed_tokens, **kwargs):
        self._layer_numbers, self._shared, self.args = count(1), [], args
        super().__init__(cfg, dictionary, embed_tokens, **kwargs)
        self.method = MethodStamp(args)

    def build_layer(self, layer_cls, cfg, max_positions, *args):
        """Returns the next layer, wrapped as --checkpoint-activations and --ddp-backend fully_sharded ask."""
        sizes = getattr(cfg, self.part)
        self_attention = partial(
            build_attention,
            part_flags(self.args, self.part),
            embed_dim=sizes.embed_dim,
            num_heads=sizes.attention_heads,
            causal=self.part == "decoder",
            layer=next(self._layer_numbers),
            layers=sizes.layers,
            max_positions=max_positions,
            dropout=cfg.attention_dropout,
            shared=self._shared,
        )
        layer = layer_cls(self_attention, cfg, *args)
        if cfg.checkpoint_activations:
            layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
        return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)

    def upgrade_state_dict_named(self, state_dict, name):
        """Ends the program where an embedding has not as many rows in ``state_dict`` as here."""
        side = {"encoder": "source", "decoder": "target"}[self.part]
        types, flag = "in its vocabulary", "--max-positions" if side == "source" else "--max-target-positions"
        if hasattr(self.args, "encoding_in"):  # a model of two languages
            types, flag = f"of the {side} language", f"--max-{side}-positions"
        dictionary = f"types {types}", "prepare the data with the dictionary of the checkpoint"
        for embedding, what, remedy in (
            ("embed_tokens", *dictionary),
            ("embed_tokens.embedding", *dictionary),
            ("embed_positions", "learned positions", f"give the {flag} of its training"),
            (
                "layers.0.self_attn.encoding.positions",
                "positions in attention",
                f"give the {flag} of its training",
            ),
        ):
            stored = state_dict.get(f"{name}.{embedding}.weight")
            ours = self.state_dict().get(f"{embedding}.weight")
            if stored is not None and ours is not None and len(stored) != len(ours):
                sizes = f"the checkpoint has {len(stored):,} {what} and the model {len(ours):,}"
                raise SystemExit(f"fairseq_lrpe: {sizes}: {remedy}")
        return super().upgrade_state_dict_named(state_dict, name)


class Encoder(OurLayers, TransformerEncoderBase):
    """Makes fairseq's encoder of :class:`EncoderLayer`; padding may be on either side."""

    part = "encoder"

    def build_encoder_layer(self, cfg):
        return self.build_layer(EncoderLayer, cfg, cfg.max_source_positions)

    def forward(self, src_tokens, *rest, **kwargs):
        """Encodes as fairseq's does, every sentence from position 0 on, whatever padding stands before it."""
        before = src_tokens.ne(self.padding_idx).int().argmax(1, keepdim=True)
        if before.any():
            places = torch.arange(src_tokens.size(1), device=src_tokens.device)
            there, back = ((places + sign * before) % len(places) for sign in (1, -1))
            out = super().forward(src_tokens.gather(1, there), *rest, **kwargs)
            return _moved(out, back)
        return super().forward(src_tokens, *rest, **kwargs)

    def reorder_encoder_out(self, encoder_out, new_order):
        """Reorders as fairseq's does, but copies no rows within a sentence, as every step of a search asks.

        They were copied from one another, so that nothing changes while every row stays in its sentence.
        """
        (before,) = encoder_out.get("sentences") or [
            torch.arange(encoder_out["encoder_out"][0].size(1), device=new_order.device)
        ]
        sentences = before.index_select(0, new_order)
        if torch.equal(sentences, before):
            return encoder_out
        return {**super().reorder_encoder_out(encoder_out, new_order), "sentences": [sentences]}


def _moved(out, places):
    """Returns an encoder's output in another order of the tokens; ``places`` (B, L)."""
    batch = torch.arange(len(places), device=places.device)
    places_of = dict.fromkeys(("encoder_out", "encoder_states"), (places.T, batch))  # (L, B, E)
    # (B, L) and (B, L, E)
    places_of |= dict.fromkeys(("encoder_padding_mask", "encoder_embedding"), (batch[:, None], places))
    return {**out, **{name: [x[index] for x in out[name]] for name, index in places_of.items()}}


def _joined(parts):
    """Returns a decoder's features of several parts of a text as those of the whole."""
    if len(parts) == 1:
        return parts[0]
    features, more = zip(*parts, strict=True)
    states = zip(*(found["inner_states"] for found in more), strict=True)
    return torch.cat(features, dim=1), {**more[-1], "inner_states": [torch.cat(layer) for layer in states]}


ENDLESS = 10**9
"""More positions than any text has."""


class Decoder(OurLayers, TransformerDecoderBase):
    """Makes fairseq's decoder of :class:`DecoderLayer`."""

    part = "decoder"

    def build_decoder_layer(self, cfg, no_encoder_attn=False):
        return self.build_layer(DecoderLayer, cfg, cfg.max_target_positions, no_encoder_attn)

    def extract_features_scriptable(self, tokens, encoder_out=None, incremental_state=None, *rest, **kwargs):
        """Decodes as fairseq's does, but a first call with a state reads all its tokens at once."""
        extract = super().extract_features_scriptable
        if incremental_state is None or incremental_state or tokens.size(1) == 1:
            return extract(tokens, encoder_out, incremental_state, *rest, **kwargs)
        # fairseq, given a state, would read the last token alone: only attention is told of it.
        attentions = [module for module in self.modules() if isinstance(module, SelfAttention)]
        for attention in attentions:
            attention.prefix_state = incremental_state
        try:
            segments = tokens.split(attentions[0].segment or tokens.size(1), dim=1)
            return _joined([extract(part, encoder_out, None, *rest, **kwargs) for part in segments])
        finally:
            for attention in attentions:
                attention.prefix_state = None

    memory = None
    """The :class:`fairseq_lrpe.models.memory.Memory` of a model that has one."""

    def forward(self, prev_output_tokens, *args, segment=None, **kwargs):
        """Decodes as fairseq's does; of a ``segment`` of a text, after those that were read before it."""
        if self.memory is None or segment is None:
            return super().forward(prev_output_tokens, *args, **kwargs)
        with self.memory.around(segment, len(prev_output_tokens), self.training):
            return super().forward(prev_output_tokens, *args, **kwargs)

    def max_positions(self):
        """Returns the length of the longest text that can be decoded; with a memory none is too long."""
        return super().max_positions() if self.memory is None else ENDLESS

    def buffered_future_mask(self, tensor):
        """Returns None: attention knows that it is causal; an n × n mask is what linear attention avoids."""
        return None
