"""The task image_classification: sampling, augmentation and fairseq's commands."""

import math

import numpy as np
import pytest
import torch
from fairseq import optim
from fairseq.logging import metrics
from omegaconf import OmegaConf
from support import commands
from support.commands import assert_resumes, validated
from support.image_files import MeanColor, colored_image, write_image_dataset

import fairseq_lrpe.models  # noqa: F401  (registers the tasks)
from fairseq_lrpe.data.image_files import decode
from fairseq_lrpe.data.image_transforms import erase, normalize, resize_and_center_crop, to_tensor
from fairseq_lrpe.data.mixup import Mixing
from fairseq_lrpe.fairseq_ext.optim import NAME
from fairseq_lrpe.fairseq_ext.soft_target_cross_entropy import SoftTargetCrossEntropy
from fairseq_lrpe.tasks.image_classification import (
    BatchAugmentation,
    ImageClassificationConfig,
    ImageClassificationTask,
    prepare_images,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_image_dataset(tmp_path_factory.mktemp("classes") / "bin", count=25)


def task_of(folder, **cfg):
    small = {"image_size": 12, "seed": 1}
    return ImageClassificationTask(ImageClassificationConfig(data=str(folder), **{**small, **cfg}))


def dataset_of(folder, split="train", epoch=1, **cfg):
    task = task_of(folder, **cfg)
    task.load_dataset(split)
    task.dataset(split).set_epoch(epoch)
    return task.dataset(split)


def epoch(task, number=1, seed=1, size=4, **how):
    """The batches of an epoch in training order."""
    task.load_dataset("train")
    iterator = task.get_batch_iterator(
        task.dataset("train"), max_sentences=size, epoch=number, seed=seed, **how
    )
    return [batch for batch in iterator.next_epoch_itr(shuffle=True) if batch]


def images_of(batch):
    """Returns the images that the model receives for a batch in training or validation."""
    return prepare_images(batch, MeanColor(3))["net_input"]["images"]


def same(one, other):
    """Returns whether two batches are identical."""
    pairs = (one["id"], other["id"]), (images_of(one), images_of(other)), (one["target"], other["target"])
    return all(torch.equal(x, y) for x, y in pairs)


def test_images_of_an_epoch(folder):
    """Seed and epoch determine the images, each of which is repeated."""

    repeats, pairs = 3, [(1, 1), (1, 2), (2, 1)]

    def order_of(seed, epoch):
        return dataset_of(folder, repeats=repeats, seed=seed, epoch=epoch).ordered_indices().tolist()

    orders = {(seed, epoch): order_of(seed, epoch) for seed, epoch in pairs}
    for order in orders.values():
        assert len(order) == len(set(order)) == 25
        assert [i % repeats for i in order] == [i % repeats for i in range(25)]
        pictures = [i // repeats for i in order]
        assert pictures == [pictures[i // repeats * repeats] for i in range(25)]
        assert len(set(pictures)) == -(-25 // repeats)
    assert len(set(map(tuple, orders.values()))) == 3
    assert order_of(2, 1) == orders[2, 1]


def test_batches_depend_on_seed_and_epoch_only(folder):
    """They do not depend on the number of workers; each of two processes has every other batch."""
    first = epoch(task_of(folder))
    assert [len(batch["id"]) for batch in first] != [4] * 7 and sum(len(x["id"]) for x in first) == 25
    for a, b in zip(first, epoch(task_of(folder), num_workers=2), strict=True):
        assert same(a, b)
    for shard in (0, 1):
        part = epoch(task_of(folder), num_shards=2, shard_id=shard)
        for a, b in zip(first[shard::2], part, strict=True):
            assert same(a, b)
    for other in (epoch(task_of(folder), number=2), epoch(task_of(folder, seed=2), seed=2)):
        assert not any(same(a, b) for a, b in zip(first, other, strict=True))


def test_recipes(folder):
    """Repetitions differ, and the full recipe leaves only some images as the plain one does."""
    plain, full = dataset_of(folder, recipe="plain"), dataset_of(folder)
    drawn = [full[number][1][0] for number in (6, 7, 8, 6)]
    assert torch.equal(drawn[0], drawn[3])
    assert not torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[1], drawn[2])
    pairs = [(plain[number][1], full[number][1]) for number in range(75)]
    assert not any(box for (_, box), _ in pairs)
    # With probability 1/4 · 3/4, no operation is applied and nothing is erased.
    assert 5 <= sum(torch.equal(a, b) and box is None for (a, _), (b, box) in pairs) <= 30


def test_training_batch(folder):
    dataset = dataset_of(folder, mixing="none", repeats=2, smoothing=0.3)
    batch = dataset.collater([dataset[i] for i in (0, 1, 8)])
    assert batch["id"].tolist() == [0, 1, 8] and batch["nsentences"] == batch["ntokens"] == 3
    [images] = batch["net_input"].values()
    assert images.shape == (3, 12, 12, 3) and torch.equal(images[2], dataset[8][1][0])
    expected = torch.full((3, 3), 0.1)
    for row, label in enumerate((0, 0, 1)):
        expected[row, label] = 0.8
    torch.testing.assert_close(batch["target"].float(), expected)
    assert dataset.collater([]) == {}
    erased, noisy = normalize(images), images_of(batch)
    for row, index in enumerate((0, 1, 8)):
        if box := dataset[index][1][1]:
            erased[(row, ..., *box)] = noisy[(row, ..., *box)]
    assert torch.equal(erased, noisy)


def test_images_are_erased_before_they_are_mixed():
    """As in DeiT: noise is mixed, too."""
    pixels, box = torch.zeros(2, 3, 8, 8), (slice(0, 4), slice(2, 8))
    BatchAugmentation([box, None], 5, Mixing(0.25)).apply(pixels)
    noise = torch.zeros(2, 3, 8, 8)
    erase(noise, [box, None], 5)
    torch.testing.assert_close(pixels[0], 0.25 * noise[0])
    torch.testing.assert_close(pixels[1], 0.75 * noise[0])


def test_evaluation_batch(folder):
    dataset = dataset_of(folder, "valid")
    assert dataset.ordered_indices().tolist() == list(range(25))
    batch = dataset.collater([dataset[i] for i in range(25)])
    assert batch["target"].tolist() == dataset.labels.tolist()
    for i in (0, 24):
        expected = normalize(to_tensor(resize_and_center_crop(dataset.image(i), 12))[None])[0]
        assert torch.equal(images_of(batch)[i], expected)
        assert np.array_equal(dataset.image(i), decode(colored_image(i % 3, 1000 + i)))


def test_criterion_formula(folder):
    torch.manual_seed(0)
    criterion, model = SoftTargetCrossEntropy(task_of(folder)), MeanColor(7)
    images = torch.randn(6, 3, 4, 4)
    logits = model(images).detach().double()
    log_p = logits - logits.exp().sum(1, keepdim=True).log()
    soft = torch.rand(6, 7).double()
    batch = {"net_input": {"images": images}, "nsentences": 6, "ntokens": 6}
    loss, size, _ = criterion(model, {**batch, "target": soft})
    assert size == 6 and loss.item() == pytest.approx(-(soft * log_p).sum().item(), rel=1e-5)
    labels = torch.tensor([0, 1, 2, 3, 4, 5])
    loss, size, _ = criterion(model, {**batch, "target": labels})
    assert size == 6 and loss.item() == pytest.approx(-log_p[range(6), labels].sum().item(), rel=1e-5)


def test_metrics_are_summed_over_processes(folder):
    """Metrics are means over all images, even if batches have different sizes."""
    criterion, model = SoftTargetCrossEntropy(task_of(folder)), MeanColor(7)
    images, labels = torch.randn(50, 3, 4, 4), torch.arange(50) % 7
    logs, keys = [], set()
    for part in (slice(0, 30), slice(30, 50)):
        count = len(labels[part])
        batch = {"net_input": {"images": images[part]}, "nsentences": count, "ntokens": count}
        logs.append(criterion(model, {**batch, "target": labels[part]})[2])
        soft = torch.nn.functional.one_hot(labels[part], 7).double()
        for log in (logs[-1], criterion(model, {**batch, "target": soft})[2]):
            keys.add(tuple((key, torch.is_tensor(value)) for key, value in log.items()))
    assert len(keys) == 1
    summed = {key: sum(log[key] for log in logs) for key in logs[0]}
    for logged in (logs, [summed]):
        with metrics.aggregate(new_root=True) as found:
            criterion.reduce_metrics(logged)
        best = model(images).topk(5).indices == labels[:, None]
        values = found.get_smoothed_values()
        assert values["accuracy"] == pytest.approx(2 * best[:, 0].sum().item())
        assert values["accuracy5"] == pytest.approx(2 * best.any(1).sum().item())
        bits = torch.nn.functional.cross_entropy(model(images), labels).item() / math.log(2)
        assert values["loss"] == pytest.approx(bits, abs=1e-3)


TASK = (
    f"--task image_classification --image-size 12 --optimizer {NAME} --criterion soft_target_cross_entropy "
    "--weight-decay 0.05 --lr 0.05 --max-update 10"
).split()


def train(folder, save, *flags):
    return commands.train(folder, "mean_color", save, *TASK, *flags)


@pytest.mark.parametrize("flags", [
    pytest.param("--recipe plain --mixing none --repeats 1", marks=pytest.mark.slow),
    "--fp16 --fp16-no-flatten-grads",
])  # fmt: skip
def test_training_and_validation(flags, folder, tmp_path):
    done = train(folder, tmp_path, *flags.split(), "--max-update", "40")
    assert done.returncode == 0, done.stderr
    words = "--task image_classification --valid-subset test".split()
    logged = validated(folder, tmp_path / "checkpoint_last.pt", *words)
    assert logged["accuracy"] > 80 and logged["accuracy5"] == 100 and logged["loss"] > 0


@pytest.mark.slow
def test_resumed_training_is_identical(folder, tmp_path):
    """In the middle of an epoch, with worker processes too."""

    def run(save, *flags):
        workers = ["--num-workers", 2] if save.name == "resumed" else []
        return train(folder, save, "--disable-validation", *workers, *flags)

    assert_resumes(run, tmp_path, (6, 10))


def test_only_matrices_decay():
    """Without gradients, matrices shrink by 1 - rate × decay, and biases and norms stay."""
    model = MeanColor(3)
    with torch.no_grad():
        model.linear.bias.fill_(2)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    cfg = {"_name": NAME, "lr": [0.5], "weight_decay": 0.1, "adam_betas": "(0.9, 0.98)", "adam_eps": 1e-8}
    cfg |= {"use_old_adam": True, "fp16_adam_stats": False, "tpu": False}
    optimizer = optim.build_optimizer(OmegaConf.create(cfg), model.parameters())
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for name, p in model.named_parameters():
        expected = before[name] * (0.95 if name == "linear.weight" else 1)
        torch.testing.assert_close(p.detach(), expected)
    optimizer.set_lr(0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]
