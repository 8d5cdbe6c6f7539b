"""Decoder-only language models, which are fairseq's ``transformer_lm`` with this plugin's self-attention."""

from dataclasses import dataclass
from functools import partial

from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig
from omegaconf import II

from fairseq_lrpe.config import PositionConfig, flag
from fairseq_lrpe.config_validation import check_part
from fairseq_lrpe.models.decoder import Decoder
from fairseq_lrpe.models.initialization import INIT_STD_HELP, init_normal
from fairseq_lrpe.models.layers import transformer_config
from fairseq_lrpe.models.memory import build_memory
from fairseq_lrpe.models.register import register_family
from fairseq_lrpe.models.token_positions import add_token_positions
from fairseq_lrpe.tasks.memory_lm import MemoryLMTask


@dataclass
class LMConfig(PositionConfig, TransformerLanguageModelConfig):
    """Flags of fairseq's language model, with pre-norm layers and equal embedding dimensions by default."""

    decoder_normalize_before: bool = flag(True, "apply layernorm before each decoder block")
    decoder_input_dim: int = flag(II("model.decoder_embed_dim"), "token embedding dim (default: embed dim)")
    decoder_output_dim: int = flag(II("model.decoder_embed_dim"), "output embedding dim (default: embed dim)")
    init_std: float = flag(0.0, INIT_STD_HELP)


class LanguageModel(TransformerLanguageModel):
    """Language model with the attention and positions that :class:`LMConfig` selects."""

    check = staticmethod(partial(check_part, part="decoder"))

    @classmethod
    def build_model(cls, args, task):
        args.decoder_learned_pos |= args.token_positions == "learned"
        args.no_token_positional_embeddings |= args.token_positions == "none"
        with_memory = isinstance(task, MemoryLMTask)
        if with_memory and args.max_target_positions is None:
            # This is the length in training; the memory of an evaluation can be longer.
            args.max_target_positions = task.args.memory_length + args.tokens_per_sample
        # Only the embeddings of fairseq's model are used, whose kind fairseq chooses. Its layers are built
        # nevertheless, because their initial values advance torch's random state, from which those of the
        # decoder below are drawn: without them, a seed would not give the numbers of the recorded runs.
        layers = args.decoder_layers  # fairseq replaces it if --decoder-layers-to-keep is given
        embed_tokens = super().build_model(args, task).decoder.embed_tokens
        args.decoder_layers = layers
        cfg = transformer_config(args)
        decoder = Decoder(cfg, task.target_dictionary, embed_tokens, no_encoder_attn=True)
        if args.init_std:
            init_normal(decoder, args.init_std)
        # Added afterwards, because the positions of this project have their own initialization.
        add_token_positions(decoder, args, decoder.max_target_positions)
        if with_memory:
            decoder.memory = build_memory(decoder, args, task.args)
        return cls(decoder)


register_family("lm", LanguageModel, LMConfig)
