"""GLUE tasks in words, for the task ``classification``.

MNLI's valid and test are the matched sets, valid1 and test1 the mismatched ones. Test sets have no labels.
"""

from data_prep.corpora import glue
from data_prep.labelled_words import LabelledWords


class GlueWords(glue.Tasks, LabelledWords):
    """GLUE tasks with labels in words; by default those of the paper's tables."""

    tasks = tuple(name for name, task in glue.TASKS.items() if task.labels)
    default = ("SST-2", "QNLI", "QQP", "MNLI")

    def check(self, args):
        self.check_vectors(args)
        return super().check(args)

    def published_rows(self, args):
        return glue.SOURCE[args.name]["rows"]
