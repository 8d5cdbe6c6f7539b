"""Trained models that translate sentences, and that ask questions about answers in texts."""

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
    """Base class of models that generate a text from a text by fairseq's beam search."""

    @torch.no_grad()
    def search(self, lines: dict[int, str], beam: int, **flags: object) -> dict[int, str]:
        """Returns {number: best hypothesis} for {number: line}, both as symbols separated by spaces.

        Args:
            lines: the lines; the error message for a line that is too long has its number.
            beam: beam size.
            **flags: further flags of fairseq-generate, with underscores.
        """
        if beam < 1:
            raise UserError(f"the beam size must be at least 1, not {beam}")
        if not lines:
            return {}
        task, model = self.task, self.model
        tokens, lengths = task.get_interactive_tokens_and_lengths([*lines.values()], lambda line: line)
        limit, _ = utils.resolve_max_positions(task.max_positions(), model.max_positions())
        for number, length in zip(lines, lengths, strict=True):
            if length > limit:
                raise UserError(f"line {number} has {length} tokens, and the model accepts at most {limit}")
        batches = task.get_batch_iterator(
            task.build_dataset_for_inference(tokens, lengths), max_sentences=BATCH_SIZE
        )
        generator = task.build_generator([model], Namespace(beam=beam, **flags))
        found, numbers = {}, [*lines]
        for batch in batches.next_epoch_itr(shuffle=False):
            sample = {"net_input": {"src_tokens": batch["net_input"]["src_tokens"].to(self.device)}}
            sample["net_input"]["src_lengths"] = batch["net_input"]["src_lengths"].to(self.device)
            hypotheses = task.inference_step(generator, [model], sample)
            for i, best in zip(batch["id"].tolist(), hypotheses, strict=True):
                found[numbers[i]] = task.target_dictionary.string(best[0]["tokens"])
        return found


class Translator(Generator):
    """Trained model of the task ``translation``."""

    def __init__(self, *args):
        super().__init__(*args)
        self.codec = text_codec.load(self.data)

    def translate(self, texts: list[str], beam: int = BEAM) -> list[str]:
        """Returns the translations of raw sentences; blank sentences stay blank."""
        source, target = self.task.cfg.source_lang, self.task.cfg.target_lang
        lines = {i: self.codec.encode(source, text) for i, text in enumerate(texts, 1) if text.strip()}
        found = self.search(lines, beam)
        return [self.codec.decode(target, found[i]) if i in found else "" for i in range(1, len(texts) + 1)]


class QuestionGenerator(Generator):
    """Trained model of the task ``question_generation``."""

    def source(self, context: str, answer: str) -> word_pieces.Source:
        """Returns the tokens of a text and an answer; a long text is truncated around the answer.

        Raises:
            UserError: if the text does not contain the answer.
        """
        facts = word_pieces.read_preparation(self.data)
        return self.task.pieces.source(answer.strip(), context, facts["longest"], facts["longest_answer"])

    def ask(self, context: str, answer: str, beam: int = BEAM) -> str:
        """Returns a question whose answer is a part of the text ``context``.

        Raises:
            UserError: if the text does not contain the answer.
        """
        return self.questions([self.source(context, answer)], beam)[0]

    def questions(self, sources: list[word_pieces.Source], beam: int) -> list[str]:
        """Returns a question for each result of :meth:`source`."""
        # fairseq appends the final </s> itself.
        lines = {i: " ".join(source.tokens[:-1]) for i, source in enumerate(sources, 1)}
        found = self.search(lines, beam, **QUESTION_SEARCH)
        return [self.task.pieces.text(found[i].split()) for i in lines]
