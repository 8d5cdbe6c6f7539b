"""Translation, measured by BLEU of what fairseq-generate finds."""

import re

from fairseq_lrpe.data import layout
from fairseq_lrpe.experiments.spec.kinds.base import Curve, Kind
from fairseq_lrpe.utils.files import REPOSITORY

LINE = re.compile(r"^([HT])-(\d+)\t(?:-?[\d.]+(?:e-?\d+)?\t)?(.*)$", re.M)
"""fairseq's hypotheses, with their score, and targets, without."""


class Translation(Kind):
    """Trains by fairseq's translation; its data folder says how raw text becomes tokens and back."""

    task = "translation"
    family = "transformer"
    metrics = {"sacrebleu": "higher", "bleu": "higher"}
    curve = Curve("valid_ppl", "validation perplexity")

    def data(self, cfg):
        names = layout.translation(self.splits(cfg), cfg.train.source_lang, cfg.train.target_lang)
        return [REPOSITORY / cfg.data / name for name in names]

    def evaluate(self, job, name):
        """Returns both BLEUs, their signatures, and how many sentences they are of.

        sacreBLEU is of raw text against the raw reference; bleu is of the words that the preparation made of
        both, as papers measured before it.
        """
        log = self.evaluated(job, name, "fairseq-generate", "gen_subset")
        split = self.evaluations(job.cfg)[name]["split"]
        return bleu(log, REPOSITORY / job.cfg.data, split, job.cfg.train.target_lang)


def bleu(log, data, split, language):
    """See :meth:`Translation.evaluate`; ``log`` is what fairseq-generate printed."""
    import sacrebleu  # seconds with the next, which only a measurement needs

    from fairseq_lrpe.data import text_codec

    codec, lines = text_codec.load(data), found_in(log.read_text())
    raw = data.parent / "text" / f"{split}.{language}"
    references = raw.read_text().splitlines()
    if sorted(lines["H"]) != list(range(len(references))):
        raise ValueError(f"{log} has {len(lines['H'])} translations for the {len(references)} lines of {raw}")
    hypotheses = [lines["H"][i] for i in range(len(references))]
    targets = [codec.join(lines["T"][i]) for i in range(len(references))]
    words = sacrebleu.BLEU(tokenize="none", force=True)
    measured = {}
    for name, metric, ours, theirs in (
        ("sacrebleu", sacrebleu.BLEU(), [codec.decode(language, x) for x in hypotheses], references),
        ("bleu", words, [codec.join(x) for x in hypotheses], targets),
    ):
        measured[name] = metric.corpus_score(ours, [theirs]).score
        measured[f"{name}_signature"] = str(metric.get_signature())
    return {**measured, "sentences": len(references)}


def found_in(text: str) -> dict[str, dict[int, str]]:
    """Returns, as tokens, {"H": {number: its best hypothesis}, "T": {number: its target}}."""
    lines = {"H": {}, "T": {}}
    for kind, number, tokens in LINE.findall(text):
        lines[kind].setdefault(int(number), tokens)
    return lines


KIND = Translation()
