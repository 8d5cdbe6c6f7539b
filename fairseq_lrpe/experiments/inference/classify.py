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

from fairseq_lrpe.data import classified_text, line_codec
from fairseq_lrpe.data.glue_tasks import MAX_SCORE
from fairseq_lrpe.data.image_files import convert, decode, gray_pixels
from fairseq_lrpe.data.image_transforms import normalize, resize_and_center_crop, to_tensor
from fairseq_lrpe.experiments.inference.load import TrainedModel
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import read_file, write_atomic

BATCH_SIZE = 32


class Prediction(NamedTuple):
    """The most likely label and its probability, or the score of a regression and None."""

    label: str | float
    probability: float | None


class Classifier(TrainedModel):
    """Base class of trained classifiers."""

    def classify(self, inputs: Sequence) -> list[Prediction]:
        """Returns the prediction for each text, pair of texts, or image.

        Args:
            inputs: raw texts; pairs (text, second text); or images, as the paths of image files or
                as Pillow's images.

        Raises:
            UserError: if the number of texts is not that of the training data, or an image is damaged.
        """
        if isinstance(inputs, str | Path):
            raise UserError("expected a list of texts or images, not a single one: put it into a list")
        rows = map(self.row, inputs)
        return [x for batch in iter(lambda: [*islice(rows, BATCH_SIZE)], []) for x in self.predict(batch)]

    def row(self, value: object) -> object:
        """Returns the model's input for a text, a pair of texts, or an image."""
        raise NotImplementedError

    @torch.no_grad()
    def predict(self, rows: list) -> list[Prediction]:
        """Returns the prediction for each row of a batch, given the results of :meth:`row`."""
        best = self.logits(self.batch(rows)).float().softmax(-1).max(-1)
        return [Prediction(self.label(i), p) for p, i in zip(*map(Tensor.tolist, best), strict=True)]

    def batch(self, rows: list) -> dict:
        """Returns the model's keyword arguments for rows."""
        raise NotImplementedError

    def logits(self, net_input: dict) -> Tensor:
        """Returns the logits (B, labels) for the model's keyword arguments."""
        return self.model(**utils.apply_to_sample(lambda x: x.to(self.device), net_input))

    def label(self, index: int) -> str:
        """Returns the name of a label."""
        return self.task.labels[index]


class ByTexts(Classifier):
    """Base class of classifiers of texts, which can also predict the binarized data of a split."""

    @torch.no_grad()
    def predict_split(self, split: str) -> list[tuple[str, str | None]]:
        """Returns (prediction, target or None) of each row of a split as text, in the order of the rows."""
        self.task.load_dataset(split)
        dataset, rows = self.task.dataset(split), {}
        batches = self.task.get_batch_iterator(dataset, max_sentences=BATCH_SIZE)
        for sample in batches.next_epoch_itr(shuffle=False):
            logits, target = self.logits(sample["net_input"]), sample.get("target")
            columns = [self.texts(logits), [None] * len(logits)]
            if target is not None:
                columns[1] = self.target_texts(target.view(-1).tolist())
            rows.update(zip(sample["id"].tolist(), zip(*columns, strict=True), strict=True))
        return [rows[i] for i in range(len(dataset))]

    def texts(self, logits: Tensor) -> list[str]:
        """Returns the prediction for each row of logits as text."""
        return self.target_texts(logits.argmax(-1).tolist())

    def target_texts(self, targets: list) -> list[str]:
        """Returns the labels of targets."""
        return [self.label(i) for i in targets]

    def check_count(self, texts: list[str], count: int) -> None:
        """Raises a UserError unless a row has ``count`` texts, as in the training data."""
        if len(texts) != count:
            expected = "single texts" if count == 1 else "pairs (text, second text)"
            raise UserError(f"the model classifies {expected}, not {len(texts)} texts at a time")


class TextClassifier(ByTexts):
    """Trained model of the task ``classification``: of texts, pairs of texts, or images as gray values."""

    def __init__(self, *args):
        super().__init__(*args)
        dictionary, self.pixels = self.task.dictionary, "pixels" in self.task.about
        self.encode = None if self.pixels else classified_text.encoder(dictionary.symbols)

    def row(self, value):
        dictionary = self.task.dictionary
        if self.pixels:
            pixels = gray_pixels(open_image(value, "L"), *self.task.about["shape"])
            return self.task.inputs([torch.from_numpy(pixels.astype(int)) + dictionary.nspecial])
        texts = [value] if isinstance(value, str) else [*value]
        self.check_count(texts, self.task.about["inputs"])
        tokens = [[*map(dictionary.index, self.encode(text))] for text in texts]
        return self.task.inputs([torch.tensor(row, dtype=torch.long) for row in tokens])

    def batch(self, rows):
        return self.task.net_input(rows)


class SentenceClassifier(ByTexts):
    """Trained model of the task ``sentence_prediction``, such as one that is fine-tuned on GLUE."""

    def __init__(self, *args):
        super().__init__(*args)
        dictionary = self.task.source_dictionary
        self.codec = line_codec.load(self.data, dictionary.symbols[dictionary.nspecial :])
        self.count = len([*self.data.glob("input[01]")])

    def row(self, value):
        texts, cfg = [value] if isinstance(value, str) else [*value], self.task.cfg
        self.check_count(texts, self.count)
        parts = []
        for text, first in zip(texts, (cfg.init_token, cfg.separator_token), strict=False):
            line = self.codec.encode(text)
            parts += [] if first is None else [torch.tensor([first])]
            parts.append(self.task.source_dictionary.encode_line(line, add_if_not_exist=False).long())
        tokens, limit = torch.cat(parts), self.task.max_positions()
        if len(tokens) > limit and str(cfg.shorten_method) != "truncate":
            raise UserError(f"a text has {len(tokens)} tokens, and the model accepts at most {limit}")
        return tokens[:limit]

    def batch(self, rows):
        return {"src_tokens": collate_tokens(rows, self.task.source_dictionary.pad())}

    def logits(self, net_input):
        head = self.task.cfg.classification_head_name
        net_input = utils.apply_to_sample(lambda x: x.to(self.device), net_input)
        return self.model(**net_input, classification_head_name=head)[0]

    def predict(self, rows):
        if not self.task.cfg.regression_target:
            return super().predict(rows)
        with torch.no_grad():
            scores = self.logits(self.batch(rows)).view(-1).tolist()
        return [Prediction(MAX_SCORE * score, None) for score in scores]

    def label(self, index):
        return self.task.label_dictionary[index + self.task.label_dictionary.nspecial]

    def texts(self, logits):
        is_score = self.task.cfg.regression_target
        return self.target_texts(logits.view(-1).tolist()) if is_score else super().texts(logits)

    def target_texts(self, targets):
        """Returns the labels of targets, or scores on STS-B's scale from 0 to 5."""
        if not self.task.cfg.regression_target:
            return super().target_texts(targets)
        return [f"{MAX_SCORE * score:.6f}" for score in targets]


class ImageClassifier(Classifier):
    """Trained model of the task ``image_classification``."""

    def row(self, value):
        return to_tensor(resize_and_center_crop(open_image(value), self.task.cfg.image_size))

    def batch(self, rows):
        return {"images": normalize(torch.stack(rows).to(self.device))}


def open_image(value: Path | str | Image, mode: str = "RGB") -> Image:
    """Returns an image in one of Pillow's modes, given the image or the path of an image file."""
    return convert(value, mode) if isinstance(value, Image) else decode(read_file(Path(value)), mode)


def classify_files(model: Classifier, files: Iterable[Path]) -> Iterator[tuple[Path, Prediction]]:
    """Yields (file, prediction) of each image; unreadable files are skipped with a warning."""

    def rows():
        for file in tqdm(files, "images", disable=None):
            try:
                yield file, model.row(file)
            except (ValueError, OSError) as error:
                print(f"skipping {file}: {error}", file=sys.stderr)

    images = rows()
    while batch := [*islice(images, BATCH_SIZE)]:
        names, inputs = zip(*batch, strict=True)
        yield from zip(names, model.predict([*inputs]), strict=True)


def write(path: Path, rows: list[tuple[str, str | None]]) -> None:
    """Writes the index, prediction and target (if known) of each row to a TSV file, as GLUE requires."""
    columns = ["index", "prediction", "target"][: 2 if any(target is None for _, target in rows) else 3]
    lines = ["\t".join([str(i), *row][: len(columns)]) for i, row in enumerate(rows)]
    write_atomic(path, "\n".join(["\t".join(columns), *lines]) + "\n")
