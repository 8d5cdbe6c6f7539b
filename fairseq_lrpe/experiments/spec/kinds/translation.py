"""Translation, evaluated by BLEU of fairseq-generate's hypotheses."""

import re
from pathlib import Path

from fairseq_lrpe.data import layout
from fairseq_lrpe.experiments.spec.kinds.base import Curve, Kind
from fairseq_lrpe.utils.files import REPOSITORY

LINE = re.compile(r"^([HT])-(\d+)\t(?:-?[\d.]+(?:e-?\d+)?\t)?(.*)$", re.M)
"""fairseq's hypotheses, with their score, and targets, without one."""


class Translation(Kind):
    """Trains fairseq's translation; the data folder defines how raw text is tokenized."""

    task = "translation"
    family = "transformer"
    metrics = {"sacrebleu": "higher", "bleu": "higher"}
    curve = Curve("valid_ppl", "validation perplexity")

    def data(self, cfg):
        names = layout.translation(self.splits(cfg), cfg.train.source_lang, cfg.train.target_lang)
        return [REPOSITORY / cfg.data / name for name in names]

    def evaluate(self, job, name):
        log = self.run_evaluation(job, name, "fairseq-generate", "gen_subset")
        split = self.evaluations(job.cfg)[name]["split"]
        return bleu(log, REPOSITORY / job.cfg.data, split, job.cfg.train.target_lang)


def bleu(log: Path, data: Path, split: str, language: str) -> dict[str, object]:
    """Returns sacreBLEU and BLEU of fairseq-generate's log with signatures, and the number of sentences.

    sacreBLEU compares raw text with the raw reference; BLEU compares the tokenized words of both, as papers
    did before sacreBLEU.
    """
    import sacrebleu  # takes seconds

    from fairseq_lrpe.data import text_codec

    codec = text_codec.load(data)
    references = (data.parent / "text" / f"{split}.{language}").read_text().splitlines()
    hypotheses, targets = read_hypotheses(log, len(references))
    targets = [codec.join(target) for target in targets]
    words = sacrebleu.BLEU(tokenize="none", force=True)
    measured = {}
    for name, metric, ours, theirs in (
        ("sacrebleu", sacrebleu.BLEU(), [codec.decode(language, x) for x in hypotheses], references),
        ("bleu", words, [codec.join(x) for x in hypotheses], targets),
    ):
        measured[name] = metric.corpus_score(ours, [theirs]).score
        measured[f"{name}_signature"] = str(metric.get_signature())
    return {**measured, "sentences": len(references)}


def read_hypotheses(log: Path, count: int) -> tuple[list[str], list[str]]:
    """Returns tokenized hypotheses, and targets if logged; ValueError if not of ``count`` sentences."""
    found = parse_hypotheses(log.read_text())
    if sorted(found["H"]) != list(range(count)):
        raise ValueError(f"{log} has {len(found['H'])} hypotheses for {count} sentences")
    return tuple([found[kind][number] for number in sorted(found[kind])] for kind in "HT")


def parse_hypotheses(text: str) -> dict[str, dict[int, str]]:
    """Returns {"H": {number: best hypothesis}, "T": {number: target}} of tokenized sentences."""
    found = {"H": {}, "T": {}}
    for kind, number, tokens in LINE.findall(text):
        found[kind].setdefault(int(number), tokens)
    return found


KIND = Translation()
