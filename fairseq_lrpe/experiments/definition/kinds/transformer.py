"""Translation, evaluated by BLEU of the hypotheses from fairseq-generate."""

from fairseq_lrpe.data import layout
from fairseq_lrpe.experiments.definition.kinds.base import Curve, Kind, in_folder
from fairseq_lrpe.utils.files import REPOSITORY


class Transformer(Kind):
    task = "translation"
    family = "transformer"
    metrics = {"sacrebleu": "higher", "bleu": "higher"}
    curve = Curve("valid_ppl", "validation perplexity")

    def data(self, cfg):
        folder = REPOSITORY / cfg.data
        target = cfg.train.target_lang
        names = layout.translation(self.splits(cfg), cfg.train.source_lang, target)
        files = in_folder(folder, names)
        splits = self.evaluated_splits(cfg)
        if splits:
            files += [folder / layout.PREPARATION, folder.parent / layout.CODES]
            files += layout.raw_text(folder, splits, [target])
        return files


KIND = Transformer()
