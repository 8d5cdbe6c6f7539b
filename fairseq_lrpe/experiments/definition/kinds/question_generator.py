"""Question generation, evaluated by ROUGE-L of the questions from fairseq-generate."""

from pathlib import Path

from fairseq_lrpe.data import layout
from fairseq_lrpe.experiments.definition.kinds.base import Curve, Kind, in_folder
from fairseq_lrpe.utils.files import REPOSITORY


class QuestionGenerator(Kind):
    task = "question_generation"
    family = "question_generator"
    metrics = {"rouge_l": "higher"}
    curve = Curve("valid_rouge_l", "validation ROUGE-L of greedy questions", "higher")

    def data(self, cfg):
        folder = REPOSITORY / cfg.data
        files = in_folder(folder, layout.questions(self.splits(cfg)))
        for split in self.evaluated_splits(cfg):
            files += self.raw_text(folder, split)
        return files

    def raw_text(self, folder: Path, split: str) -> list[Path]:
        """Returns the files of a split's answers and questions as raw text."""
        return layout.raw_text(folder, [split], ("answer", "question"))


KIND = QuestionGenerator()
