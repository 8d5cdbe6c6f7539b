"""Question generation, measured by ROUGE-L of what fairseq-generate finds."""

from fairseq_lrpe.data import layout, word_pieces
from fairseq_lrpe.data.rouge import rouge_l
from fairseq_lrpe.experiments.spec.kinds.base import Curve, Kind
from fairseq_lrpe.experiments.spec.kinds.translation import found_in
from fairseq_lrpe.utils.files import REPOSITORY, write_atomic


class QuestionGeneration(Kind):
    """Trains our question generators by our task question_generation."""

    task = "question_generation"
    family = "question_generator"
    metrics = {"rouge_l": "higher"}
    curve = Curve("valid_rouge_l", "validation ROUGE-L of greedy questions", "higher")

    def data(self, cfg):
        return [REPOSITORY / cfg.data / name for name in layout.questions(self.splits(cfg))]

    def evaluate(self, job, name):
        """Returns ROUGE-L against the raw questions; questions-<name>.tsv has both, row by row."""
        log = self.evaluated(job, name, "fairseq-generate", "gen_subset", task=self.task)
        data, split = REPOSITORY / job.cfg.data, self.evaluations(job.cfg)[name]["split"]
        found = found_in(log.read_text())["H"]
        raw = data.parent / "text"
        answers, references = (
            (raw / f"{split}.{what}").read_text().splitlines() for what in ("answer", "question")
        )
        if sorted(found) != list(range(len(references))):
            raise ValueError(f"{log} has {len(found)} questions for the {len(references)} rows of {raw}")
        pieces = word_pieces.load(data)
        generated = [pieces.text(found[i].split()) for i in range(len(references))]
        rows = zip(answers, references, generated, strict=True)
        lines = ["answer\tquestion\tgenerated", *("\t".join(row) for row in rows)]
        write_atomic(job.folder / f"questions-{name}.tsv", "\n".join(lines) + "\n")
        language = word_pieces.read_preparation(data)["language"]
        return {"rouge_l": rouge_l(generated, references, language), "questions": len(references)}


KIND = QuestionGeneration()
