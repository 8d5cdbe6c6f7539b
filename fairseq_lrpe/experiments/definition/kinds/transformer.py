"""Translation, evaluated by BLEU of the hypotheses from fairseq-generate."""

import re
from pathlib import Path

from fairseq_lrpe.data import layout
from fairseq_lrpe.experiments.definition.kinds.base import Curve, Kind
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import REPOSITORY, read_lines

LINE = re.compile(r"^([HT])-(\d+)\t(?:-?[\d.]+(?:e-?\d+)?\t)?(.*)$", re.M)
"""Lines of fairseq-generate's output: hypotheses (H) with a score, and targets (T) without a score."""


class Transformer(Kind):
    task = "translation"
    family = "transformer"
    metrics = {"sacrebleu": "higher", "bleu": "higher"}
    curve = Curve("valid_ppl", "validation perplexity")

    def data(self, cfg):
        data, target = REPOSITORY / cfg.data, cfg.train.target_lang
        names = layout.translation(self.splits(cfg), cfg.train.source_lang, target)
        files = [data / name for name in names]
        if splits := [settings["split"] for settings in self.evaluations(cfg).values()]:
            files += [data / layout.PREPARATION, data.parent / layout.CODES]
            files += layout.raw_text(data, splits, [target])
        return files

    def evaluate(self, job, name):
        log = self.run_evaluation(job, name, "fairseq-generate", "gen_subset")
        split = self.evaluations(job.cfg)[name]["split"]
        return bleu(log, REPOSITORY / job.cfg.data, split, job.cfg.train.target_lang)


def bleu(log: Path, data: Path, split: str, language: str) -> dict[str, object]:
    """Returns sacreBLEU and BLEU of the hypotheses in a log, their signatures, and the number of sentences.

    sacreBLEU compares detokenized hypotheses with the raw references, which are next to the folder ``data``.
    BLEU compares the tokenized words of both, as papers did before sacreBLEU.
    """
    import sacrebleu  # this import takes seconds

    from fairseq_lrpe.data import text_codec

    codec = text_codec.load(data)
    [raw] = layout.raw_text(data, [split], [language])
    references = [*read_lines(raw)]
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
    """Returns the tokenized hypotheses and targets (empty if not logged) of ``count`` sentences in a log.

    Raises UserError unless it has a hypothesis for exactly these sentences.
    """
    found = parse_hypotheses(log.read_text("utf-8"))
    wanted, given = set(range(count)), set(found["H"])
    if given != wanted:
        wrong = f"lacks {len(wanted - given):,} of them and contains {len(given - wanted):,} others"
        expected = f"expected one hypothesis for each of {count:,} sentences"
        raise UserError(f"{expected}, but {log} {wrong}: run the command again")
    return tuple([found[kind][number] for number in sorted(found[kind])] for kind in "HT")


def parse_hypotheses(text: str) -> dict[str, dict[int, str]]:
    found = {"H": {}, "T": {}}
    for kind, number, tokens in LINE.findall(text):
        found[kind].setdefault(int(number), tokens)
    return found


KIND = Transformer()
