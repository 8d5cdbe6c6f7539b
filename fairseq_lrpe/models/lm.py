"""Decoder-only language models: fairseq's ``transformer_lm`` with our self-attention."""

from dataclasses import dataclass
from functools import partial

from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig
from omegaconf import II
from torch import nn

from fairseq_lrpe.config import PositionConfig, check_part, flag
from fairseq_lrpe.models.encoder_decoder import Decoder, add_token_positions
from fairseq_lrpe.models.memory import build_memory
from fairseq_lrpe.models.register import register_family
from fairseq_lrpe.tasks.memory_lm import MemoryLMTask
from fairseq_lrpe.utils.cli import exit_on_error


@dataclass
class LMConfig(PositionConfig, TransformerLanguageModelConfig):
    """Flags of fairseq's language model; pre-norm by default, with one width for input and output."""

    decoder_normalize_before: bool = flag(True, "apply layernorm before each decoder block")
    decoder_input_dim: int = flag(II("model.decoder_embed_dim"), "(default: the decoder's embed dim)")
    decoder_output_dim: int = flag(II("model.decoder_embed_dim"), "(default: the decoder's embed dim)")
    init_std: float = flag(
        0.0, "standard deviation of the initial matrices (0: the default initialization of each module)"
    )


class LanguageModel(TransformerLanguageModel):
    """A decoder with the attention and positions of its :class:`LMConfig`."""

    check = staticmethod(partial(check_part, part="decoder"))

    @classmethod
    def build_model(cls, args, task):
        args.decoder_learned_pos |= args.token_positions == "learned"
        args.no_token_positional_embeddings |= args.token_positions == "none"
        with_memory = isinstance(task, MemoryLMTask)
        if with_memory and args.max_target_positions is None:  # for training; an evaluation may remember more
            args.max_target_positions = task.args.memory_length + args.tokens_per_sample
        # fairseq builds every kind of embedding; its decoder is replaced by ours.
        embed_tokens = super().build_model(args, task).decoder.embed_tokens
        cfg = TransformerConfig.from_namespace(args)
        decoder = Decoder(args, cfg, task.target_dictionary, embed_tokens, no_encoder_attn=True)
        add_token_positions(decoder, args, decoder.max_target_positions)
        if args.init_std:
            init_normal(decoder, args.init_std)
        if with_memory:
            with exit_on_error("fairseq_lrpe"):
                decoder.memory = build_memory(decoder, args, task.args)
        return cls(decoder)


def init_normal(decoder: nn.Module, std: float) -> None:
    """Initializes matrices and embeddings from N(0, std²) and biases with 0 as in Transformer-XL's code."""
    for module in decoder.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
            if getattr(module, "padding_idx", None) is not None:
                nn.init.zeros_(module.weight[module.padding_idx])


register_family("lm", LanguageModel, LMConfig)
