"""fairseq task of generating a question for an answer in a text (Table 2 of the paper on LFHC and GCDF).

A source is ``<s> answer </s> text </s>`` in BERT's word pieces, and the target is the question. data_prep
prepares the data as ``squad`` and ``cmrc2018``, in the format of fairseq's translation task.
"""

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from fairseq import utils
from fairseq.logging import metrics
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_lrpe.config import flag
from fairseq_lrpe.data import bert_weights, word_pieces
from fairseq_lrpe.data.rouge import f1
from fairseq_lrpe.utils.cli import file_errors

MAX_LENGTH = 50
"""Maximum length of questions that are generated in validation, as in the authors' code."""


@dataclass
class QuestionGenerationConfig(TranslationConfig):
    """Flags of fairseq's translation task, whose defaults match the files that data_prep writes."""

    source_lang: Optional[str] = flag("source", "name of the source files")  # noqa: UP045
    target_lang: Optional[str] = flag("question", "name of the target files")  # noqa: UP045
    left_pad_source: bool = flag(False, "pad the source on the left")


@register_task("question_generation", dataclass=QuestionGenerationConfig)
class QuestionGenerationTask(TranslationTask):
    """Question generation; validation also logs the ROUGE-L of greedy questions as ``rouge_l``."""

    def __init__(self, cfg, src_dict, tgt_dict):
        super().__init__(cfg, src_dict, tgt_dict)
        self.folder = Path(utils.split_paths(cfg.data)[0])
        with file_errors():
            self.pieces = word_pieces.load(self.folder)
            self.language = word_pieces.read_preparation(self.folder)["language"]

    def build_model(self, cfg, from_checkpoint=False):
        """Returns the model, whose encoder gets the weights of the BERT of --encoder before training."""
        model = super().build_model(cfg, from_checkpoint)
        if not from_checkpoint and cfg.encoder != bert_weights.SCRATCH:
            with file_errors():
                bert_weights.initialize(model.encoder, cfg, self.folder / word_pieces.VOCABULARY)
        greedy = Namespace(beam=1, max_len_a=0, max_len_b=MAX_LENGTH)
        self.sequence_generator = self.build_generator([model], greedy)
        return model

    def valid_step(self, sample, model, criterion):
        loss, sample_size, logged = super().valid_step(sample, model, criterion)
        hypotheses = self.inference_step(self.sequence_generator, [model], sample)
        logged["_rouge_l"] = 0
        logged["_questions"] = len(hypotheses)
        for [best], target in zip(hypotheses, sample["target"], strict=True):
            logged["_rouge_l"] += f1(self.text(best["tokens"]), self.text(target), self.language)
        return loss, sample_size, logged

    def text(self, tokens) -> str:
        """Returns the text of a question's tokens."""
        words = []
        for token in tokens.tolist():
            if token >= self.tgt_dict.nspecial:
                words.append(self.tgt_dict[token])
        return self.pieces.text(words)

    def reduce_metrics(self, logging_outputs, criterion):
        super().reduce_metrics(logging_outputs, criterion)
        total = 0
        questions = 0
        for log in logging_outputs:
            total += log.get("_rouge_l", 0)
            questions += log.get("_questions", 0)
        if questions:
            metrics.log_scalar("rouge_l", 100 * total / questions, questions, round=2)
