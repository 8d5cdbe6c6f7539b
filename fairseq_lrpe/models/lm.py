"""Registers decoder-only language models: fairseq's ``transformer_lm`` with our self-attention."""

from dataclasses import dataclass
from functools import partial

from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig
from omegaconf import II
from torch import nn

from fairseq_lrpe.config import PositionConfig, check_part, flag
from fairseq_lrpe.models.coders import Decoder
from fairseq_lrpe.models.memory import memory_of
from fairseq_lrpe.models.register import register_family
from fairseq_lrpe.models.token_positions import place_tokens
from fairseq_lrpe.programs import one_sentence
from fairseq_lrpe.tasks.memory_lm import MemoryLMTask


@dataclass
class LMConfig(PositionConfig, TransformerLanguageModelConfig):
    """Declares fairseq's language model flags; layers are pre-norm, and one width serves input and output."""

    decoder_normalize_before: bool = flag(
        True, "apply layernorm before each decoder block, as every published run did"
    )
    decoder_input_dim: int = flag(II("model.decoder_embed_dim"), "(default: the decoder's embed dim)")
    decoder_output_dim: int = flag(II("model.decoder_embed_dim"), "(default: the decoder's embed dim)")
    init_std: float = flag(
        0.0, "deviation of the normal distribution that all matrices start from (0: each as its module does)"
    )


class LanguageModel(TransformerLanguageModel):
    """Builds a decoder whose attention and position are given by the flags of :class:`LMConfig`."""

    check = staticmethod(partial(check_part, part="decoder"))

    @classmethod
    def build_model(cls, args, task):
        args.decoder_learned_pos |= args.token_positions == "learned"
        args.no_token_positional_embeddings |= args.token_positions == "none"
        remembers = isinstance(task, MemoryLMTask)
        if remembers and args.max_target_positions is None:  # of training: an evaluation may remember more
            args.max_target_positions = task.args.memory_length + args.tokens_per_sample
        # fairseq knows every kind of embedding; its decoder around them gives way to ours.
        embed_tokens = super().build_model(args, task).decoder.embed_tokens
        cfg = TransformerConfig.from_namespace(args)
        decoder = Decoder(args, cfg, task.target_dictionary, embed_tokens, no_encoder_attn=True)
        place_tokens(decoder, args, decoder.max_target_positions)
        if args.init_std:
            start_normal(decoder, args.init_std)
        if remembers:
            with one_sentence("fairseq_lrpe"):
                decoder.memory = memory_of(decoder, args, task.args)
        return cls(decoder)


def start_normal(decoder: nn.Module, std: float) -> None:
    """Draws every matrix and embedding from N(0, std) and sets biases to 0, as Transformer-XL's code does."""
    for module in decoder.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
            if getattr(module, "padding_idx", None) is not None:
                nn.init.zeros_(module.weight[module.padding_idx])


register_family("lm", LanguageModel, LMConfig)
