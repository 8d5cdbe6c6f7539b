"""GLUE's tasks in words -> binaries for our task classification.

OUT/TASK/bin has them; MNLI's valid and test are the matched sets, its valid1 and test1 the mismatched ones.
Test sets have no labels.
"""

from data_prep import glue
from data_prep.labelled_words import LabelledWords


class GlueWords(glue.Tasks, LabelledWords):
    """GLUE's tasks in words: those with labels, and those of the paper's tables if none is named."""

    tasks = tuple(name for name, task in glue.TASKS.items() if task.labels)
    default = ("SST-2", "QNLI", "QQP", "MNLI")

    def check(self, args):
        self.check_vectors(args)
        return super().check(args)

    def published_rows(self, args):
        return glue.SOURCE[args.name]["rows"]
