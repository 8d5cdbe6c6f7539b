"""Evaluation of translation models by BLEU."""

from pathlib import Path

from fairseq_lrpe.data import layout
from fairseq_lrpe.experiments.execution.evaluators.base import Evaluator
from fairseq_lrpe.experiments.execution.evaluators.hypotheses import read_hypotheses
from fairseq_lrpe.utils.files import REPOSITORY, read_lines


class TransformerEvaluator(Evaluator):
    def evaluate(self, name):
        log = self.run_fairseq(name, "fairseq-generate", "gen_subset")
        cfg = self.job.cfg
        return bleu(log, REPOSITORY / cfg.data, self.settings(name)["split"], cfg.train.target_lang)


def bleu(log: Path, data: Path, split: str, language: str) -> dict[str, object]:
    """Returns sacreBLEU and BLEU of the hypotheses in a log, their signatures, and the number of sentences.

    sacreBLEU compares detokenized hypotheses with the raw references, which are next to the folder ``data``.
    BLEU compares the tokenized words of hypotheses and references, as papers did before sacreBLEU.
    """
    import sacrebleu  # this import takes seconds

    from fairseq_lrpe.data import text_codec

    codec = text_codec.load(data)
    [reference_file] = layout.raw_text(data, [split], [language])
    references = list(read_lines(reference_file))
    hypotheses, targets = read_hypotheses(log, len(references))

    detokenized = [codec.decode(language, hypothesis) for hypothesis in hypotheses]
    sacrebleu_metric = sacrebleu.BLEU()
    sacrebleu_score = sacrebleu_metric.corpus_score(detokenized, [references]).score

    words = [codec.join(hypothesis) for hypothesis in hypotheses]
    target_words = [codec.join(target) for target in targets]
    bleu_metric = sacrebleu.BLEU(tokenize="none", force=True)
    bleu_score = bleu_metric.corpus_score(words, [target_words]).score
    return {
        "sacrebleu": sacrebleu_score,
        "sacrebleu_signature": str(sacrebleu_metric.get_signature()),
        "bleu": bleu_score,
        "bleu_signature": str(bleu_metric.get_signature()),
        "sentences": len(references),
    }


EVALUATOR = TransformerEvaluator
