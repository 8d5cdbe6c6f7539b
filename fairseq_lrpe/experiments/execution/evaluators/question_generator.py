"""Evaluation of question generators by ROUGE-L."""

from fairseq_lrpe.data import word_pieces
from fairseq_lrpe.data.rouge import rouge_l
from fairseq_lrpe.experiments.execution.evaluators.base import Evaluator
from fairseq_lrpe.experiments.execution.evaluators.hypotheses import read_hypotheses
from fairseq_lrpe.utils.files import REPOSITORY, read_lines, write_atomic


class QuestionEvaluator(Evaluator):
    def evaluate(self, name):
        """Returns {"rouge_l": mean F1 of ROUGE-L in percent, "questions": number of reference questions}.

        Writes the answers, reference questions and generated questions to questions-<name>.tsv.
        """
        job = self.job
        log = self.run_fairseq(name, "fairseq-generate", "gen_subset", task=job.kind.task)
        data = REPOSITORY / job.cfg.data
        answer_file, question_file = job.kind.raw_text(data, self.settings(name)["split"])
        answers = list(read_lines(answer_file))
        references = list(read_lines(question_file))
        hypotheses, _ = read_hypotheses(log, len(references))
        pieces = word_pieces.load(data)
        generated = [pieces.text(hypothesis.split()) for hypothesis in hypotheses]
        lines = ["answer\tquestion\tgenerated"]
        for row in zip(answers, references, generated, strict=True):
            lines.append("\t".join(row))
        write_atomic(job.folder / f"questions-{name}.tsv", "\n".join(lines) + "\n")
        language = word_pieces.read_preparation(data)["language"]
        return {"rouge_l": rouge_l(generated, references, language), "questions": len(references)}


EVALUATOR = QuestionEvaluator
