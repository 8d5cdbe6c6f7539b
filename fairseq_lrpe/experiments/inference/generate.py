"""Trained models that translate sentences, or ask questions about texts."""

from argparse import Namespace

import torch
from fairseq import utils

from fairseq_lrpe.data import text_codec, word_pieces
from fairseq_lrpe.experiments.inference.load import TrainedModel
from fairseq_lrpe.utils.errors import UserError

BATCH_SIZE = 32
BEAM = 5
QUESTION_SEARCH = {"lenpen": 0.6, "no_repeat_ngram_size": 3, "max_len_a": 0, "max_len_b": 50}
"""Flags of fairseq's beam search for questions, as in the LFHC and GCDF paper."""


class Generator(TrainedModel):
    """Base class of trained models that generate a text from another text by fairseq's beam search."""

    @torch.no_grad()
    def search(self, lines: list[str], beam: int, **flags: object) -> list[str]:
        """Returns the best hypothesis for each line; lines and hypotheses are symbols separated by spaces.

        The hypothesis for a blank line is blank.

        Args:
            lines: the source texts.
            beam: beam size.
            **flags: further flags of fairseq-generate.
        """
        task = self.task
        model = self.model
        best_texts = [""] * len(lines)
        numbers = []  # of the lines that are not blank
        texts = []
        for number, line in enumerate(lines):
            if line:
                numbers.append(number)
                texts.append(line)
        if not numbers:
            return best_texts
        tokens, lengths = task.get_interactive_tokens_and_lengths(texts, lambda text: text)
        limit, _ = utils.resolve_max_positions(task.max_positions(), model.max_positions())
        for i, length in zip(numbers, lengths, strict=True):
            if length > limit:
                wrong = f"line {i + 1} has {length} tokens"
                raise UserError(f"{wrong}, more than the {limit} that the model accepts: shorten it")
        dataset = task.build_dataset_for_inference(tokens, lengths)
        batches = task.get_batch_iterator(dataset, max_sentences=BATCH_SIZE)
        generator = task.build_generator([model], Namespace(beam=beam, **flags))
        for batch in batches.next_epoch_itr(shuffle=False):
            inputs = utils.apply_to_sample(lambda x: x.to(self.device), batch["net_input"])
            hypotheses = task.inference_step(generator, [model], {"net_input": inputs})
            # The hypotheses of a line are sorted by their scores.
            for i, [best, *_] in zip(batch["id"].tolist(), hypotheses, strict=True):
                best_texts[numbers[i]] = task.target_dictionary.string(best["tokens"])
        return best_texts


class Translator(Generator):
    """Trained model of the task ``translation``."""

    def __init__(self, *args):
        super().__init__(*args)
        self.codec = text_codec.load(self.data)

    def translate(self, texts: list[str], beam: int = BEAM) -> list[str]:
        """Returns the translation of each raw sentence; that of a blank sentence is blank.

        Args:
            texts: sentences in the source language.
            beam: beam size.
        """
        cfg = self.task.cfg
        lines = [self.codec.encode(cfg.source_lang, text) for text in texts]
        return [self.codec.decode(cfg.target_lang, line) for line in self.search(lines, beam)]


class QuestionGenerator(Generator):
    """Trained model of the task ``question_generation``."""

    def source(self, context: str, answer: str) -> word_pieces.Source:
        """Returns the model's input for a text with an answer; a long text is truncated around the answer."""
        preparation = word_pieces.read_preparation(self.data)
        limits = (preparation["longest"], preparation["longest_answer"])
        return self.task.pieces.source(answer.strip(), context, *limits)

    def ask(self, context: str, answer: str, beam: int = BEAM) -> str:
        """Returns a question about a text.

        Args:
            context: the text.
            answer: the answer to the question, a part of the text.
            beam: beam size.

        Raises:
            ValueError: if the text does not contain the answer.
        """
        return self.questions([self.source(context, answer)], beam)[0]

    def questions(self, sources: list[word_pieces.Source], beam: int = BEAM) -> list[str]:
        """Returns a question for each of ``sources``, the results of :meth:`source`."""
        # fairseq appends the final </s> itself.
        lines = [" ".join(source.tokens[:-1]) for source in sources]
        questions = self.search(lines, beam, **QUESTION_SEARCH)
        return [self.task.pieces.text(line.split()) for line in questions]
