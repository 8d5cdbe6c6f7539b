"""fairseq's Transformer decoder with this plugin's self-attention, and optionally a memory."""

from fairseq.modules.transformer_layer import TransformerDecoderLayerBase

from fairseq_lrpe.attention.fairseq_adapter import with_arguments
from fairseq_lrpe.models.encoder import pad_left
from fairseq_lrpe.models.layer_stacks import DecoderStack
from fairseq_lrpe.models.layers import CustomAttentionLayer, CustomLayers, self_attentions
from fairseq_lrpe.models.token_positions import TokenPositions
from fairseq_lrpe.utils.errors import UserError

UNLIMITED = 10**9
"""Maximum number of positions of models that have no limit."""


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
        """Returns the features of the last layer and a dict, as fairseq does.

        Unlike in fairseq, the first call with an incremental state processes all tokens. As in every call
        with a state, only the features of the last token are returned, so that the logits of a long prefix
        take no memory.

        Raises:
            UserError: if there is a state, and the model has --randomized-positions or drops layers in
                training.
        """
        extract = super().extract_features_scriptable
        if incremental_state is not None and self.training and self.decoder_layerdrop:
            raise UserError(
                "--decoder-layerdrop drops other layers for each token in training, so that states lack "
                "tokens: call eval() before decoding"
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
            encoder_out = pad_left(encoder_out)
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
        """Decodes like fairseq, except that a ``segment`` also attends to the memory of previous segments."""
        if self.memory is None or segment is None:
            return super().forward(prev_output_tokens, *args, **kwargs)
        with self.memory.attached(segment, len(prev_output_tokens), self.training):
            return super().forward(prev_output_tokens, *args, **kwargs)

    def reorder_incremental_state_scripting(self, incremental_state, new_order):
        """Reorders the states of all modules like fairseq, but finds the modules faster."""
        for module in self.modules():
            if hasattr(type(module), "reorder_incremental_state"):
                module.reorder_incremental_state(incremental_state, new_order)

    def max_positions(self):
        """Returns the maximum number of tokens of a text, which is unlimited with a memory."""
        return super().max_positions() if self.memory is None else UNLIMITED

    def buffered_future_mask(self, tensor):
        """Returns None, because this plugin's causal attention does not use a mask (L, L)."""
        return None
