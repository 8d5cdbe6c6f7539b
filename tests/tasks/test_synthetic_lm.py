"""The task synthetic_lm: sequences, training and printed examples."""

import math

import pytest
import torch
from support.commands import assert_resumes, load_last_checkpoint
from support.tiny import train_flags, train_here

import fairseq_lrpe.models  # noqa: F401  (registers the tasks)
from fairseq_lrpe import load_model
from fairseq_lrpe.tasks import synthetic_lm

SMALL = ("--task", "synthetic_lm", "--problem", "search", "--first", 8, "--copied", 8, "--between", 1)


def train(arch, save, *flags):
    return train_here(*train_flags("", arch, save, *SMALL, "--no-epoch-checkpoints", *flags)[1:])


def task_of(**flags):
    small = {"problem": "search", "tokens_per_sample": 32, "first": 8, "copied": 8, "between": 1, "seed": 1}
    return synthetic_lm.SyntheticLMTask(synthetic_lm.SyntheticLMConfig(**{**small, **flags}))


def epoch(task, number, **how):
    """The sequences of an epoch in training order."""
    task.load_dataset("train")
    iterator = task.get_batch_iterator(task.dataset("train"), max_sentences=500, epoch=number, seed=1, **how)
    batches = iterator.next_epoch_itr(shuffle=True)
    return [torch.cat([b["net_input"]["src_tokens"], b["target"][:, -1:]], dim=1) for b in batches]


@pytest.mark.slow
def test_sequences_depend_on_seed_epoch_and_index_only():
    first = epoch(task_of(), 1)
    assert sum(map(len, first)) == synthetic_lm.SEQUENCES["train"]
    for other in (epoch(task_of(), 1), epoch(task_of(), 1, num_workers=2)):
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    shards = [epoch(task_of(), 1, num_shards=2, shard_id=i) for i in (0, 1)]
    assert all(torch.equal(a, b) for a, b in zip(first[::2], shards[0], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first[1::2], shards[1], strict=True))

    drawn = {tuple(row) for batch in first for row in batch[:, :8].tolist()}
    assert len(drawn) > 9000  # of 4^8 beginnings
    for other in (epoch(task_of(), 2), epoch(task_of(seed=2), 1)):
        assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_evaluated_splits_are_fixed_and_not_trained_on():
    one, two = task_of(), task_of(seed=2)
    texts = {}
    for split in ("train", "valid", "test"):
        for task in (one, two):
            task.load_dataset(split)
        texts[split] = [one.dataset(split).text(i) for i in range(50)]
        assert (texts[split] == [two.dataset(split).text(i) for i in range(50)]) == (split != "train")
    assert len(set().union(*texts.values())) == 150


def test_a_model_learns(tmp_path):
    """It is better than a uniform prediction, and greedy samples are the likeliest characters."""
    done = train("softmax_lm_roper", tmp_path, "--max-update", 60, "--validate-interval-updates", 60)
    assert done.returncode == 0, done.stderr
    assert load_last_checkpoint(tmp_path)["extra_state"]["val_loss"] < math.log2(5)
    model = load_model(tmp_path / "checkpoint_last.pt", cpu=True)
    tokens = model.task.encode("abcd" + model.sample("abcd", 20, temperature=0))
    with torch.no_grad():
        logits = model.model(tokens[None, :-1])[0][0]
    logits[:, 1] = -torch.inf
    assert tokens[4:].tolist() == logits.argmax(-1)[3:].tolist()
    with pytest.raises(ValueError, match="the prompt 'é' must consist of one or more of the characters"):
        model.sample("é")


def test_resumed_training_is_identical(tmp_path):
    """In the middle of an epoch."""

    def run(save, *flags):
        return train("softmax_lm_rope", save, "--disable-validation", "--batch-size", 16, *flags)

    assert_resumes(run, tmp_path, (3, 6))
