"""Trained classifiers of texts, pairs of texts and images."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from fairseq import utils
from fairseq.data.data_utils import collate_tokens
from PIL.Image import Image
from torch import Tensor
from tqdm import tqdm

from fairseq_lrpe.data import classified_text, layout, line_codec
from fairseq_lrpe.data.glue_tasks import MAX_SCORE
from fairseq_lrpe.data.image_files import convert, decode, gray_pixels
from fairseq_lrpe.data.image_transforms import normalize, resize_and_center_crop, to_tensor
from fairseq_lrpe.experiments.inference.load import TrainedModel
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import check_regular, read_file

BATCH_SIZE = 32


class Prediction(NamedTuple):
    """The most likely label and its probability, or the score of a regression and None."""

    label: str | float
    probability: float | None


class Classifier(TrainedModel):
    """Base class of trained classifiers.

    Subclasses define ``row(value)``, which returns the model's input for a text, a pair of texts or an image,
    and ``batch(rows)``, which returns the model's keyword arguments for a batch of such inputs.
    """

    def classify(self, inputs: Sequence) -> list[Prediction]:
        """Returns the prediction for each text, pair of texts, or image.

        Args:
            inputs: raw texts; pairs (text, second text); or images, as the paths of image files or
                as Pillow's images.

        Raises:
            ValueError: if ``inputs`` is a single text or path, an input has another number of texts than the
                training data or too many tokens, or an image cannot be read.
        """
        if isinstance(inputs, str | Path):
            raise UserError("expected a list of texts or images, not a single one: pass [input]")
        predictions = []
        for rows in batched(map(self.row, inputs)):
            predictions += self.predict(rows)
        return predictions

    @torch.no_grad()
    def predict(self, rows: list) -> list[Prediction]:
        """Returns the prediction for each of ``rows``, the results of ``row``, in one batch."""
        return self.predictions(self.logits(self.batch(rows)))

    def logits(self, net_input: dict) -> Tensor:
        """Returns the logits (B, number of labels) for ``net_input``, the model's keyword arguments."""
        return self.model(**utils.apply_to_sample(lambda x: x.to(self.device), net_input))

    def predictions(self, logits: Tensor) -> list[Prediction]:
        best = logits.argmax(-1, keepdim=True)
        p = logits.float().softmax(-1).gather(-1, best).view(-1).tolist()
        labels = map(self.label, best.view(-1).tolist())
        return list(map(Prediction, labels, p))

    def label(self, index: int) -> str:
        return self.task.labels[index]

    @torch.no_grad()
    def predict_split(self, split: str) -> list[tuple]:
        """Returns (prediction, target) of each row of a split: labels or scores; unknown targets are None."""
        for path in layout.files_of_split(self.data, split):
            check_regular(path)
        self.task.load_dataset(split)
        dataset = self.task.dataset(split)
        rows = {}
        batches = self.task.get_batch_iterator(dataset, max_sentences=BATCH_SIZE)
        for sample in batches.next_epoch_itr(shuffle=False):
            predictions = self.predictions(self.logits(sample["net_input"]))
            targets = [None] * len(predictions)
            if "target" in sample:
                targets = map(self.label, sample["target"].view(-1).tolist())
            for i, prediction, target in zip(sample["id"].tolist(), predictions, targets, strict=True):
                rows[i] = (prediction.label, target)
        return [rows[i] for i in range(len(dataset))]


class TextClassifier(Classifier):
    """Trained model of the task ``classification``, for texts, pairs of texts, or gray images."""

    def __init__(self, *args):
        super().__init__(*args)
        self.pixels = "pixels" in self.task.about
        self.encode = None if self.pixels else classified_text.encoder(self.task.dictionary.symbols)

    def row(self, value):
        dictionary = self.task.dictionary
        about = self.task.about
        if self.pixels:
            pixels = gray_pixels(open_image(value, "L"), *about["shape"]).astype(int)
            return self.task.inputs([torch.from_numpy(pixels) + dictionary.nspecial])
        inputs = []
        for text in texts(value, about["inputs"]):
            tokens = list(map(dictionary.index, self.encode(text)))
            inputs.append(torch.tensor(tokens, dtype=torch.long))
        return self.task.inputs(inputs)

    def batch(self, rows):
        return self.task.net_input(rows)


class SentenceClassifier(Classifier):
    """Trained model of the task ``sentence_prediction``, such as a model fine-tuned on GLUE."""

    def __init__(self, *args):
        super().__init__(*args)
        dictionary = self.task.source_dictionary
        self.codec = line_codec.load(self.data, dictionary.symbols[dictionary.nspecial :])
        self.count = len([*self.data.glob("input[01]")])

    def row(self, value):
        cfg = self.task.cfg
        dictionary = self.task.source_dictionary
        parts = []
        for start, text in zip((cfg.init_token, cfg.separator_token), texts(value, self.count), strict=False):
            line = self.codec.encode(text)
            if start is not None:
                parts.append(torch.tensor([start]))
            parts.append(dictionary.encode_line(line, add_if_not_exist=False).long())
        tokens = torch.cat(parts)
        limit = self.task.max_positions()
        if len(tokens) > limit and str(cfg.shorten_method) != "truncate":
            wrong = f"a text has {len(tokens)} tokens, more than the {limit} that the model accepts"
            raise UserError(f"{wrong}: shorten it")
        return tokens[:limit]

    def batch(self, rows):
        return {"src_tokens": collate_tokens(rows, self.task.source_dictionary.pad())}

    def logits(self, net_input):
        head = {"classification_head_name": self.task.cfg.classification_head_name}
        return super().logits({**net_input, **head})[0]

    def predictions(self, logits):
        if not self.task.cfg.regression_target:
            return super().predictions(logits)
        return [Prediction(self.label(score), None) for score in logits.view(-1).tolist()]

    def label(self, index):
        if self.task.cfg.regression_target:
            return MAX_SCORE * index  # on STS-B's scale from 0 to 5
        labels = self.task.label_dictionary
        return labels[index + labels.nspecial]


class ImageClassifier(Classifier):
    """Trained model of the task ``image_classification``."""

    def row(self, value):
        return to_tensor(resize_and_center_crop(open_image(value), self.task.cfg.image_size))

    def batch(self, rows):
        return {"images": torch.stack(rows)}

    def logits(self, net_input):
        return self.model(images=normalize(net_input["images"].to(self.device)))


def texts(value: str | Sequence[str], count: int) -> list[str]:
    """Returns the texts of an input as a list; raises UserError if their number is not ``count``."""
    given = [value] if isinstance(value, str) else list(value)
    if len(given) != count:
        expected = "single texts" if count == 1 else "pairs (text, second text)"
        raise UserError(f"the model classifies {expected}: pass a list of these, not of {len(given)} texts")
    return given


def batched(values: Iterable) -> Iterator[list]:
    """Yields lists of ``BATCH_SIZE`` values; the last one may be shorter."""
    values = iter(values)
    return iter(lambda: [*islice(values, BATCH_SIZE)], [])


def open_image(value: Path | str | Image, mode: str = "RGB") -> Image:
    """Returns ``value``, an image of Pillow or the path of an image file, as an image in the given mode."""
    if isinstance(value, Image):
        return convert(value, mode)
    return decode(read_file(Path(value)), mode)


def classify_files(model: Classifier, files: Iterable[Path]) -> Iterator[tuple[Path, Prediction]]:
    """Yields (file, prediction) of each image file; unreadable files are skipped with a warning."""

    def rows():
        for file in tqdm(files, "images", disable=None):
            try:
                yield file, model.row(file)
            except (ValueError, OSError) as error:
                print(f"skipping {file}: {error}", file=sys.stderr)

    for batch in batched(rows()):
        names, inputs = zip(*batch, strict=True)
        yield from zip(names, model.predict([*inputs]), strict=True)


def tsv(rows: list[tuple]) -> str:
    """Returns the predictions of ``rows``, [(prediction, target or None)], in GLUE's TSV format.

    The columns are index, prediction and, if all targets are known, target.
    """
    has_targets = all(target is not None for _, target in rows)
    lines = ["index\tprediction\ttarget" if has_targets else "index\tprediction"]
    for i, (prediction, target) in enumerate(rows):
        words = [str(i), _label_text(prediction)]
        if has_targets:
            words.append(_label_text(target))
        lines.append("\t".join(words))
    return "\n".join(lines) + "\n"


def _label_text(label):
    return label if isinstance(label, str) else f"{label:.6f}"
