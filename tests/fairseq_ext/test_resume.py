"""Interrupted and distributed training equals that of one uninterrupted process."""

import inspect
import signal
import subprocess
import time
from types import SimpleNamespace

import numpy as np
import pytest
from fairseq.data import FairseqDataset
from fairseq.data.data_utils import numpy_seed
from fairseq.tasks.fairseq_task import FairseqTask
from fairseq.trainer import Trainer
from support.commands import assert_same_weights, load_last_checkpoint, train_in_two_processes
from support.tiny import BIN, REPOSITORY, preprocess, succeeded, train_flags

from fairseq_lrpe.fairseq_ext import patches


@pytest.mark.slow
@pytest.mark.parametrize("number, workers", [(signal.SIGTERM, 0), (signal.SIGKILL, 1)])
def test_resuming_in_a_later_epoch_gives_same_parameters(number, workers, train, data_bin, tmp_path):
    """Signals other than SIGKILL save a checkpoint between those that the flags ask for."""
    arch, whole, stopped = "linear_lm_rope", tmp_path / "whole", tmp_path / "stopped"
    flags = ["--max-epoch", 4, "--save-interval-updates", 5, "--dropout", 0.1, "--disable-validation"]
    flags += ["--keep-interval-updates", 1, "--no-epoch-checkpoints", "--num-workers", workers]
    succeeded(train(arch, whole, *flags))

    log = tmp_path / "log"
    words = train_flags(data_bin, arch, stopped, *flags, "--log-interval", 1, "--log-format", "json")
    with log.open("wb") as file:
        command = list(map(str, [BIN / "fairseq-train", *words]))
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=file, stderr=file)
    while log.read_text().count('| train_inner | {"epoch": 3, ') < 7:
        assert process.poll() is None, log.read_text()
        time.sleep(0.005)
    process.send_signal(number)
    assert process.wait() == (-number if number == signal.SIGKILL else 128 + number)
    saved = load_last_checkpoint(stopped)["extra_state"]["train_iterator"]
    assert saved["epoch"] > 1 and saved["iterations_in_epoch"] > 0

    succeeded(train(arch, stopped, *flags))
    assert_same_weights(whole, stopped)


class RandomOrder(FairseqDataset):
    def __len__(self):
        return 99

    def ordered_indices(self):
        return np.random.permutation(99)

    def num_tokens(self, index):
        return 1


def newer_iterator(self, dataset, seed=1, epoch=1, **kwargs):
    with numpy_seed(seed + epoch):
        return SimpleNamespace(frozen_batches=[dataset.ordered_indices()])


def older_iterator(self, dataset, seed=1, epoch=1, **kwargs):  # fairseq 0.12.2
    with numpy_seed(seed):
        return SimpleNamespace(frozen_batches=[dataset.ordered_indices()])


@pytest.mark.parametrize(
    "original", [newer_iterator, older_iterator, inspect.unwrap(FairseqTask.get_batch_iterator)]
)
def test_batches_of_a_later_epoch_are_those_of_the_first_in_every_version(original, monkeypatch):
    monkeypatch.setattr(patches, "is_fairseq_command", lambda: True)

    class Task(FairseqTask):
        get_batch_iterator = original

    def batches(epoch):
        iterator = Task(SimpleNamespace()).get_batch_iterator(RandomOrder(), max_sentences=4, epoch=epoch)
        return [list(batch) for batch in iterator.frozen_batches]

    first = batches(epoch=1)
    for patch in (patches._keep_last_batch, patches._compose_batches_of_first_epoch):
        patches._wrap(Task, "get_batch_iterator", patch)
    assert batches(epoch=1) == batches(epoch=4) == first


@pytest.mark.parametrize(
    "parts",
    [  # (batch size, update_freq, updates after which the part ends) of trainings that continue each other
        [(8, 1, 2), (1, 8, 3), (1, 8, 4), (2, 4, 5), (8, 1, 6)],
        [(6, 2, 2), (4, 3, 4)],  # with an incomplete batch somewhere in the epoch
    ],
)
def test_other_batches_within_an_epoch_have_the_same_samples(parts, train, tmp_path):
    size, steps, _ = parts[0]
    flags = "--dropout 0 --optimizer sgd --lr 0.1 --disable-validation --no-epoch-checkpoints".split()
    for name, trainings in (("whole", [(size, steps, parts[-1][-1])]), ("parts", parts)):
        for size, steps, updates in trainings:
            words = ["--batch-size", size, "--update-freq", steps, "--max-update", updates]
            succeeded(train("softmax_lm_rope", tmp_path / name, *flags, *words))
    whole, resumed = (load_last_checkpoint(tmp_path / name)["extra_state"] for name in ("whole", "parts"))
    assert whole["train_iterator"]["epoch"] == resumed["train_iterator"]["epoch"] == 1
    assert_same_weights(tmp_path / "whole", tmp_path / "parts", atol=1e-6)


EOS = "--sample-break-mode eos --batch-size 1000 --max-tokens"
MEMORY = "--task memory_lm --streams 8 --tokens-per-sample 8 --batch-size"


@pytest.mark.parametrize(
    "parts",
    [  # flags of trainings that continue each other, all but the last for three updates
        [f"{EOS} 90", f"{EOS} 40 --num-workers 1", f"{EOS} 200 --update-freq 2", f"{EOS} 90"],
        ["--batch-size 4 --curriculum 1", "--batch-size 7 --update-freq 3 --curriculum 1"],
        [f"{MEMORY} 8", f"{MEMORY} 2 --update-freq 4"],
    ],
)
def test_other_batches_within_an_epoch_repeat_and_leave_out_no_samples(parts, train, tmp_path, monkeypatch):
    seen, train_step = [], Trainer.train_step

    def record(self, samples, *args, **kwargs):
        seen.extend(index for sample in samples for index in sample["id"].tolist())
        return train_step(self, samples, *args, **kwargs)

    monkeypatch.setattr(Trainer, "train_step", record)
    for number, flags in enumerate(parts, 1):
        last = ["--max-epoch", 1] if number == len(parts) else ["--max-update", 3 * number]
        more = ["--disable-validation", "--no-epoch-checkpoints", *last]
        succeeded(train("softmax_lm_nope", tmp_path, *flags.split(), *more))
    assert sorted(seen) == list(range(len(seen)))
    iterator = load_last_checkpoint(tmp_path)["extra_state"]["train_iterator"]
    assert (iterator["epoch"], iterator["iterations_in_epoch"]) == (2, 0)


@pytest.mark.parametrize("size", [1, 2])
def test_restored_on_smaller_data_with_another_batch_size(size, train, text_folder, data_bin, tmp_path):
    """The smaller data have fewer samples than the restored training has seen: fairseq counts batches."""
    text, small = tmp_path / "small.txt", tmp_path / "small"
    text.write_text("".join((text_folder / "train.txt").read_text().splitlines(keepends=True)[:20]))
    vocabulary = ["--only-source", "--srcdict", data_bin / "dict.txt", "--destdir", small]
    preprocess(*vocabulary, "--trainpref", text)
    flags = "--disable-validation --no-epoch-checkpoints".split()
    succeeded(train("softmax_lm_nope", tmp_path / "first", *flags, "--batch-size", 16, "--max-update", 3))
    restored = ["--restore-file", tmp_path / "first/checkpoint_last.pt", "--batch-size", size]
    more = [*restored, "--max-update", 5]
    succeeded(train("softmax_lm_nope", tmp_path / "second", *flags, *more, data=small))
    state = load_last_checkpoint(tmp_path / "second")
    assert state["optimizer_history"][-1]["num_updates"] == 5


@pytest.mark.slow
def test_more_processes_within_an_epoch_have_the_same_samples(train, data_bin, tmp_path):
    arch, flags = "softmax_lm_rope", "--dropout 0 --optimizer sgd --lr 0.1 --disable-validation".split()
    flags += ["--no-epoch-checkpoints", "--max-update"]
    for name, updates in (("whole", 6), ("parts", 3)):
        succeeded(train(arch, tmp_path / name, "--batch-size", 8, *flags, updates))
    train_in_two_processes(*train_flags(data_bin, arch, tmp_path / "parts", "--batch-size", 4, *flags, 6))
    assert_same_weights(tmp_path / "whole", tmp_path / "parts", atol=1e-6)


@pytest.mark.slow
def test_two_processes_equal_one_with_summed_batch(train, data_bin, tmp_path):
    arch, flags = "linear_lm_tmlr_type2", "--dropout 0 --disable-validation --no-epoch-checkpoints".split()
    for updates in (1, 3):
        save = tmp_path / f"one{updates}"
        succeeded(train(arch, save, *flags, "--update-freq", 2, "--max-update", updates))
    train_in_two_processes(*train_flags(data_bin, arch, tmp_path / "two", *flags, "--max-update", 3))
    theta = "decoder.layers.0.self_attn.encoding.theta"
    start, end = (load_last_checkpoint(tmp_path / name)["model"][theta] for name in ("one1", "one3"))
    assert (end - start).abs().max() > 1e-4
    assert_same_weights(tmp_path / "two", tmp_path / "one3", atol=1e-6)
