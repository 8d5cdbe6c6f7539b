"""Trained language models, which continue texts, and masked language models, which fill in masks."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_lrpe.data import line_codec
from fairseq_lrpe.experiments.inference.load import TrainedModel
from fairseq_lrpe.models import sampling
from fairseq_lrpe.utils.errors import UserError, user_errors

MASK = "<mask>"


class LineModel(TrainedModel):
    """Base class of models of text in lines; ``codec`` tokenizes text like the training corpus."""

    def __init__(self, *args):
        super().__init__(*args)
        dictionary = self.task.source_dictionary
        self.codec = line_codec.load(self.data, dictionary.symbols[dictionary.nspecial :])

    def encode_line(self, line: str, start: bool = True) -> Tensor:
        """Returns the tokens (n,) of ``line`` without </s>; if not ``start``, it is the rest of a line."""
        dictionary = self.task.source_dictionary
        symbols = self.codec.encode(line, start)
        return dictionary.encode_line(symbols, append_eos=False, add_if_not_exist=False).long()


class TextScore(NamedTuple):
    """The probability of a text.

    Attributes:
        log_probability: the natural logarithm of the probability.
        tokens: number of predicted tokens, with one for the end of each line.
    """

    log_probability: float
    tokens: int

    @property
    def perplexity(self) -> float:
        return math.exp(-self.log_probability / self.tokens)


class LanguageModel(LineModel):
    """Trained language model of the task ``language_modeling`` or ``memory_lm``."""

    def sample(self, prompt: str = "", length: int = 200, **options) -> str:
        """Returns a sampled text that continues the prompt; see :meth:`stream` for the arguments."""
        return "".join(self.stream(prompt, length, **options))

    def stream(
        self,
        prompt: str = "",
        length: int = 200,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
    ) -> Iterator[str]:
        """Returns an iterator over sampled text that continues the prompt, token by token.

        The text is detokenized by the inverse of the corpus's tokenization. Lines end with a newline. A model
        of single lines (--sample-break-mode eos) stops at the end of the line.

        Args:
            prompt: beginning of the text; like a line of the corpus, it follows a line break.
            length: number of tokens to sample.
            temperature: divisor of the logits; 0 selects the most likely token.
            top_k: number of most likely tokens to sample from; 0 means all.
            top_p: minimum total probability of the most likely tokens to sample from; 1 means all.
            seed: seed of the random numbers; by default, torch's random state is used.

        Raises:
            ValueError: for invalid arguments, and by the iterator at the first token whose position the model
                does not support.
        """
        sampling.check_options(length, temperature, top_k, top_p)
        tokens = self.encode(prompt).to(self.device)
        choose = sampling.chooser(temperature, top_k, top_p, seed, self.device)
        pad = self.task.source_dictionary.pad()
        sampled = sampling.sample(self.model.decoder, tokens, length, choose, pad)
        starts_line = not prompt or prompt.endswith("\n")
        return self.codec.stream(self.symbols(sampled), starts_line)

    @torch.no_grad()
    def score(self, texts: Sequence[str]) -> list[TextScore]:
        """Returns the log probability and the number of tokens of each text.

        A text is one block of an evaluation, such as `lrpe evaluate`: it follows a line break, and its lines,
        also the last one, end with a line break, which is predicted, too.

        Args:
            texts: the texts, in the form of the corpus; a line break at the end of a text has no effect.

        Raises:
            ValueError: if ``texts`` is a single text, for a text that is too long for the model, and for a
                model with a memory, whose evaluation divides a text into segments.
        """
        if isinstance(texts, str):
            raise UserError("expected a list of texts, not a single one: pass [text]")
        if getattr(self.model.decoder, "memory", None) is not None:
            raise UserError("a model with a memory scores no single texts: evaluate it with `lrpe train`")
        return [self._score(text) for text in texts]

    def _score(self, text):
        dictionary = self.task.source_dictionary
        end = torch.tensor([dictionary.eos()])
        parts = []
        for line in text.removesuffix("\n").split("\n"):
            parts += [self.encode_line(line), end]
        targets = torch.cat(parts).to(self.device)
        starts = [dictionary.bos()] if self.task.args.add_bos_token else []
        starts.append(dictionary.eos())
        tokens = torch.cat([targets.new_tensor(starts), targets[:-1]])[None]
        sampling.check_learned_positions(self.model.decoder, tokens.size(1))
        with user_errors():
            output = self.model(tokens)
        log_probabilities = self.model.get_normalized_probs(output, log_probs=True)[0, -len(targets) :]
        found = log_probabilities.gather(-1, targets[:, None])
        return TextScore(found.double().sum().item(), len(targets))

    def encode(self, text: str) -> Tensor:
        """Returns the tokens (n,) of lines of text, preceded by </s>, or by <s> if training used it."""
        dictionary = self.task.source_dictionary
        end = torch.tensor([dictionary.eos()])
        first, *others = text.split("\n")
        start = torch.tensor([dictionary.bos()]) if self.task.args.add_bos_token else end
        parts = [start, self.encode_line(first)]
        for line in others:
            parts += [end, self.encode_line(line)]
        return torch.cat(parts)

    def symbols(self, tokens: Iterator[int]) -> Iterator[str]:
        """Yields the symbol of each token; a model of single lines stops before </s>."""
        dictionary = self.task.source_dictionary
        for token in tokens:
            if token == dictionary.eos() and self.task.args.sample_break_mode == "eos":
                return
            yield dictionary[token]


class SyntheticLanguageModel(LanguageModel):
    """Trained language model of the task ``synthetic_lm``, whose tokens are characters."""

    def __init__(self, *args):
        TrainedModel.__init__(self, *args)
        self.codec = line_codec.Characters()

    def score(self, texts):
        raise UserError("models of synthetic problems score no texts: use `lrpe evaluate-synthetic`")

    def encode(self, text):
        known = self.task.problem.characters
        if not known:
            wrong = f"models of {self.task.cfg.problem} do not generate text"
            raise UserError(f"{wrong}: evaluate them with `lrpe evaluate-synthetic`")
        if not text or set(text) - set(known):
            expected = f"must consist of one or more of the characters {known}"
            raise UserError(f"the prompt {text!r} {expected}")
        return self.task.encode(text)

    def symbols(self, tokens):
        return (self.task.dictionary[token] for token in tokens)


class MaskedLanguageModel(LineModel):
    """Trained model of the task ``masked_lm``."""

    @torch.no_grad()
    def fill_mask(self, text: str, top_k: int = 5) -> list[tuple[str, float, str]]:
        """Returns the most likely replacements of the mask, as fairseq's ``fill_mask`` does.

        Args:
            text: a text with one ``<mask>``.
            top_k: number of replacements.

        Returns:
            Tuples (text with the replacement, its probability, the replacement).

        Raises:
            ValueError: if the text does not contain exactly one mask, or if it is too long.
        """
        if text.count(MASK) != 1:
            raise UserError(f"the text has {text.count(MASK)} {MASK}: expected exactly one")
        dictionary = self.task.source_dictionary
        left, right = text.split(MASK)
        before = self.encode_line(left)
        after = self.encode_line(right, start=False)
        mask = dictionary.index(MASK)
        begin, middle, end = torch.tensor([[dictionary.bos()], [mask], [dictionary.eos()]])
        tokens = torch.cat([begin, before, middle, after, end])
        limit = self.model.max_positions()
        if len(tokens) > limit:
            wrong = f"the text has {len(tokens)} tokens, more than the {limit} that the model accepts"
            raise UserError(f"{wrong}: shorten it")
        tokens = tokens[None].to(self.device)
        [logits] = self.model(tokens, masked_tokens=tokens == mask)[0]
        best = logits.softmax(-1).topk(min(top_k, len(logits)))
        replacements = []
        for probability, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            line = torch.cat([before, torch.tensor([token]), after])
            filled = self.codec.decode(" ".join(dictionary[i] for i in line))
            replacements.append((filled, probability, self.codec.decode(dictionary[token])))
        return replacements
