"""Trained language models of the plugin as models of Transformers, which :func:`lrpe export` writes.

The model in a folder is fairseq's decoder with this plugin's attention, so that fairseq has to be installed.
"""

import torch
from fairseq.data import Dictionary
from fairseq.models import build_model
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from omegaconf import OmegaConf
from torch import Tensor
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

import fairseq_lrpe.models  # noqa: F401  (registers the architectures)
from fairseq_lrpe.attention import SelfAttention
from fairseq_lrpe.fairseq_ext.architecture import check_registered
from fairseq_lrpe.models.sampling import check_learned_positions
from fairseq_lrpe.ops.precision import Float32Parameters

_IGNORED = ("cache_position", "return_dict")
"""Arguments of forward that Transformers passes and that have no effect on the outputs."""


class ExportedConfig(PretrainedConfig):
    """Configuration of an :class:`ExportedLanguageModel`.

    Args:
        flags: the flags of fairseq's model.
        shared_weights: {name of a weight: name of the weight that it is}, of the model's weights.
        vocab_size: number of tokens.
        **kwargs: see Transformers' ``PretrainedConfig``.
    """

    model_type = "fairseq_lrpe"

    def __init__(
        self,
        flags: dict | None = None,
        shared_weights: dict[str, str] | None = None,
        vocab_size: int = 4,
        **kwargs: object,
    ):
        self.flags = flags or {}
        self.shared_weights = shared_weights or {}
        self.vocab_size = vocab_size
        super().__init__(**{"tie_word_embeddings": False, "use_cache": False} | kwargs)


class DecodingCache:
    """What a model has computed for the previous tokens, in place of Transformers' cache.

    Attributes:
        tokens: the previous tokens (B, n), or None.
        state: fairseq's incremental state.
    """

    def __init__(self):
        self.tokens = None
        self.state = {}

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if self.tokens is None else self.tokens.size(1)


class ExportedLanguageModel(PreTrainedModel, GenerationMixin):
    """A trained language model of the plugin with the interface of Transformers.

    Attributes:
        model: fairseq's model, the one that ``load_model(RUN).model`` is.
    """

    config_class = ExportedConfig
    _is_stateful = True  # Transformers prepares no cache, and refuses searches that would roll it back

    def __init__(self, config: ExportedConfig):
        super().__init__(config)
        self.loss_type = "ForCausalLM"  # which Transformers otherwise infers from the name of the class
        dictionary = Dictionary()
        for number in range(config.vocab_size - len(dictionary)):
            dictionary.add_symbol(str(number))
        task = LanguageModelingTask(LanguageModelingConfig(), dictionary)
        check_registered("the exported model", config.flags)
        self.model = build_model(OmegaConf.create(config.flags), task, from_checkpoint=True)
        self._tied_weights_keys = list(config.shared_weights)
        self.post_init()
        self._keep_in_fp32_modules_strict = set()  # post_init accepts no names of parameters
        for name, module in self.named_modules():
            if isinstance(module, Float32Parameters):
                self._keep_in_fp32_modules_strict |= {f"{name}.{key}" for key in module.float32_parameters}

    def _init_weights(self, module):
        """Does nothing, because a folder has all weights."""

    def tie_weights(self):
        for name, original in self.config.shared_weights.items():
            holder, _, key = name.rpartition(".")
            source, _, source_key = original.rpartition(".")
            setattr(self.get_submodule(holder), key, getattr(self.get_submodule(source), source_key))

    def get_input_embeddings(self):
        return self.model.decoder.embed_tokens

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: DecodingCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **kwargs: object,
    ) -> CausalLMOutputWithPast:
        """Computes the logits of the next tokens, log probabilities if the model has an adaptive softmax.

        Args:
            input_ids: tokens (B, L), which follow those of ``past_key_values``.
            attention_mask: 0 at padding, which precedes or follows the tokens of a row, (B, L), or (B, n + L)
                with n previous tokens.
            past_key_values: the cache of an earlier call.
            labels: the tokens, and -100 where there is no loss, for the loss of predicting each token.
            use_cache: whether to return a cache for the next call. There is none with random positions, and
                none after padding if the model has absolute positions.
            logits_to_keep: number of last tokens whose logits are returned; 0 means all.

        Raises:
            ValueError: for arguments that the model does not support, padding between tokens, and too long
                texts.
        """
        for name, value in kwargs.items():
            if name not in _IGNORED and value is not None and value is not False:
                raise ValueError(f"the model does not support {name}: omit it")
        use_cache = self.config.use_cache if use_cache is None else use_cache
        tokens = input_ids
        if attention_mask is not None:
            hidden = attention_mask[:, attention_mask.size(1) - tokens.size(1) :] == 0
            tokens = tokens.masked_fill(hidden, self.config.pad_token_id)
        cache = past_key_values
        if cache is not None and cache.tokens is not None:
            tokens = torch.cat([cache.tokens, tokens], dim=1)
        self._check(tokens)
        if cache is None and not (use_cache and self._supports_cache(tokens)):
            logits = self._logits_of_rows(tokens)
        else:
            cache = cache or DecodingCache()
            logits = self._decode(tokens, cache, logits_to_keep)
        logits = logits[:, -logits_to_keep:]
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)

    def _supports_cache(self, tokens):
        """Returns whether the outputs of steps are those of a whole text.

        Random positions depend on the length. Absolute positions in a step count the padding before the text.
        """
        decoder = self.model.decoder
        if decoder.randomized_positions:
            return False
        is_absolute = decoder.embed_positions is not None
        for module in self.modules():
            if isinstance(module, SelfAttention):
                is_absolute |= module.encoding.uses_absolute_positions or module.encoding.draws_noise
        return not (is_absolute and (tokens[:, 0] == self.config.pad_token_id).any())

    def _decode(self, tokens, cache, logits_to_keep):
        """Returns the logits of the tokens (B, n) that are not in the cache, and adds them to the cache."""
        past = cache.get_seq_length()
        cache.tokens = tokens
        if past == 0:
            last = self._logits(tokens, cache.state)
            return last if logits_to_keep == 1 else self._logits(tokens)
        steps = [self._logits(tokens[:, :end], cache.state) for end in range(past + 1, tokens.size(1) + 1)]
        return torch.cat(steps, dim=1)

    def _logits_of_rows(self, tokens):
        """Returns the logits of all tokens, for which padding before a row is moved after it."""
        length = tokens.size(1)
        padding = (tokens == self.config.pad_token_id).long().cumprod(1).sum(1, keepdim=True)
        if not padding.any():
            return self._logits(tokens)
        index = torch.arange(length, device=tokens.device)
        logits = self._logits(tokens.gather(1, (index + padding) % length))
        back = ((index - padding) % length)[..., None].expand(logits.shape)
        return logits.gather(1, back)

    def _logits(self, tokens, state=None):
        """Returns the logits of all tokens, or those of the last one if there is an incremental state."""
        decoder = self.model.decoder
        logits = decoder(tokens, incremental_state=state)[0]
        if decoder.adaptive_softmax is not None:  # the output has features instead of logits
            logits = decoder.adaptive_softmax.get_log_prob(logits, None)
        return logits

    def _check(self, tokens):
        """Raises a ValueError if padding would change the output, or the text is too long."""
        decoder = self.model.decoder
        check_learned_positions(decoder, tokens.size(1))
        padded = tokens == self.config.pad_token_id
        if not padded.any():
            return
        if decoder.randomized_positions:
            raise ValueError("random positions depend on the length: pass texts of one length")
        is_after = (~padded).cumsum(1) > 0  # the first token or after it
        if ((is_after & padded).cumsum(1).bool() & ~padded).any():
            raise ValueError("padding between tokens changes their distances: put it before the tokens")

    def prepare_inputs_for_generation(
        self, input_ids, past_key_values=None, attention_mask=None, use_cache=None, **kwargs
    ):
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        return {
            "input_ids": input_ids[:, past:],
            "past_key_values": past_key_values,
            "attention_mask": attention_mask,
            "use_cache": use_cache,
            "logits_to_keep": 1,
        }

    def _reorder_cache(self, past_key_values, beam_idx):
        """Returns the cache whose row i is row ``beam_idx[i]``, for beam search."""
        past_key_values.tokens = past_key_values.tokens[beam_idx]
        self.model.decoder.reorder_incremental_state_scripting(past_key_values.state, beam_idx)
        return past_key_values
