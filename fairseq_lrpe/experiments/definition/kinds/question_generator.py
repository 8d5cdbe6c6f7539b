"""Question generation, evaluated by ROUGE-L of the questions from fairseq-generate."""

from fairseq_lrpe.data import layout, word_pieces
from fairseq_lrpe.data.rouge import rouge_l
from fairseq_lrpe.experiments.definition.kinds.base import Curve, Kind
from fairseq_lrpe.experiments.definition.kinds.transformer import read_hypotheses
from fairseq_lrpe.utils.files import REPOSITORY, read_lines, write_atomic

COLUMNS = ("answer", "question")  # of the raw text


class QuestionGenerator(Kind):
    task = "question_generation"
    family = "question_generator"
    metrics = {"rouge_l": "higher"}
    curve = Curve("valid_rouge_l", "validation ROUGE-L of greedy questions", "higher")

    def data(self, cfg):
        data, splits = REPOSITORY / cfg.data, [x["split"] for x in self.evaluations(cfg).values()]
        files = [data / name for name in layout.questions(self.splits(cfg))]
        return files + layout.raw_text(data, splits, COLUMNS)

    def evaluate(self, job, name):
        """Returns {"rouge_l": mean F1 of ROUGE-L in percent, "questions": number of reference questions}.

        Writes the answers, reference questions and generated questions to questions-<name>.tsv.
        """
        log = self.run_evaluation(job, name, "fairseq-generate", "gen_subset", task=self.task)
        data, split = REPOSITORY / job.cfg.data, self.evaluations(job.cfg)[name]["split"]
        answers, references = ([*read_lines(file)] for file in layout.raw_text(data, [split], COLUMNS))
        hypotheses, _ = read_hypotheses(log, len(references))
        pieces = word_pieces.load(data)
        generated = [pieces.text(hypothesis.split()) for hypothesis in hypotheses]
        rows = zip(answers, references, generated, strict=True)
        lines = ["answer\tquestion\tgenerated", *("\t".join(row) for row in rows)]
        write_atomic(job.folder / f"questions-{name}.tsv", "\n".join(lines) + "\n")
        language = word_pieces.read_preparation(data)["language"]
        return {"rouge_l": rouge_l(generated, references, language), "questions": len(references)}


KIND = QuestionGenerator()
