"""fairseq's task question_generation: a question whose answer stands in a text (LFHC and GCDF, Table 2).

A source is ``<s> answer </s> text </s>`` in BERT's word pieces and the target the question. data_prep's
``squad`` and ``cmrc2018`` make such data; what fairseq's translation does with pairs is done with these.
"""

from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from fairseq import utils
from fairseq.logging import metrics
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_lrpe import bert, word_pieces
from fairseq_lrpe.programs import one_sentence
from fairseq_lrpe.rouge import f1, units

LONGEST = 50
"""Word pieces of a question that validation generates, as the paper's author had."""


@dataclass
class QuestionGenerationConfig(TranslationConfig):
    """Declares the flags of fairseq's translation, with the names that data_prep gives its files."""

    # fairseq's parser knows no "str | None".
    source_lang: Optional[str] = field(default="source", metadata={"help": "name of the source's files"})  # noqa: UP045
    target_lang: Optional[str] = field(default="question", metadata={"help": "name of the target's files"})  # noqa: UP045
    left_pad_source: bool = field(default=False, metadata={"help": "pad the source on the left"})


@register_task("question_generation", dataclass=QuestionGenerationConfig)
class QuestionGenerationTask(TranslationTask):
    """Trains question generators; a validation generates greedily, too, and has ROUGE-L as rouge_l."""

    def __init__(self, cfg, src_dict, tgt_dict):
        super().__init__(cfg, src_dict, tgt_dict)
        self.folder = Path(utils.split_paths(cfg.data)[0])
        with one_sentence("fairseq_lrpe"):
            self.pieces = word_pieces.load(self.folder)
            self.language = word_pieces.facts(self.folder)["language"]

    def build_model(self, cfg, from_checkpoint=False):
        """Returns the model; a new one starts from the BERT of its --encoder, if it has one."""
        model = super().build_model(cfg, from_checkpoint)
        if not from_checkpoint and cfg.encoder != bert.SCRATCH:
            with one_sentence("fairseq_lrpe"):
                bert.start(model.encoder, cfg, self.folder / word_pieces.VOCABULARY)
        greedy = Namespace(beam=1, max_len_a=0, max_len_b=LONGEST)
        self.sequence_generator = self.build_generator([model], greedy)
        return model

    def valid_step(self, sample, model, criterion):
        loss, sample_size, logged = super().valid_step(sample, model, criterion)
        found = self.inference_step(self.sequence_generator, [model], sample)
        pairs = zip(found, sample["target"], strict=True)
        logged["_rouge_l"] = sum(
            f1(self.words(best["tokens"]), self.words(target)) for [best], target in pairs
        )
        logged["_questions"] = len(found)
        return loss, sample_size, logged

    def words(self, tokens) -> list[str]:
        """Returns the units that ROUGE-L compares, of a question's tokens."""
        types = [self.tgt_dict[token] for token in tokens.tolist() if token >= self.tgt_dict.nspecial]
        return units(self.pieces.text(types), self.language)

    def reduce_metrics(self, logging_outputs, criterion):
        super().reduce_metrics(logging_outputs, criterion)
        if questions := sum(log.get("_questions", 0) for log in logging_outputs):
            total = sum(log.get("_rouge_l", 0) for log in logging_outputs)
            metrics.log_scalar("rouge_l", 100 * total / questions, questions, round=2)
