"""Resumes an epoch at the same sample with another batch size or number of processes.

fairseq stores how many batches each process has consumed in the epoch, and shuffles whole batches. With other
batches, samples would be repeated or left out. Here, the rest of the epoch keeps the order of the samples, in
batches of the new size; if the total batch stays the same, so do the samples of each update. Later epochs are
shuffled as usual.

The functions that replace a function of fairseq get the original as their first argument.
"""

import math
from itertools import chain

import numpy as np
from fairseq.data import EpochBatchIterator

LIMITS = ("max_tokens", "batch_size", "required_batch_size_multiple")


def load_checkpoint_to_cpu(load, *args, **kwargs):
    """Loads a checkpoint, and adds the settings that determined its batches to the state of its iterator."""
    state = load(*args, **kwargs)
    iterator = (state.get("extra_state") or {}).get("train_iterator")
    if iterator is not None and state.get("cfg"):
        iterator["settings"] = batch_settings(state["cfg"], iterator["epoch"])
    return state


def batch_settings(cfg, epoch: int) -> dict[str, int | None]:
    """Returns the settings that determine the batches of an epoch and its updates."""
    steps = cfg["optimization"]["update_freq"]
    processes = cfg["distributed_training"]["distributed_world_size"]
    return {
        **_limits(cfg["dataset"]),
        "processes": processes,
        "update_freq": steps[min(epoch, len(steps)) - 1],
    }


def _limits(settings):
    return {name: settings[name] for name in LIMITS}


def load_state_dict(load, self, state):
    """Continues at the sample after the last one that the training has seen in the epoch."""
    last = state.get("settings")
    position = state.get("iterations_in_epoch", 0)
    if type(self) is not EpochBatchIterator or not last or not position:
        return load(self, state)
    now = batch_settings(self.trainer.cfg, state["epoch"])
    composed = state.get("composed", last)  # the settings that determine the order of this epoch
    if now == composed == last:
        return load(self, state)
    updates = math.ceil(position / last["update_freq"])
    if self.disable_shuffling:  # every update has the same number of consecutive samples
        return load(self, {**state, "iterations_in_epoch": updates * now["update_freq"]})
    order = batches_of_epoch(self, composed, state)
    seen = state.get("samples", sum(map(len, order[: position * composed["processes"]])))
    samples = list(chain.from_iterable(order))
    if seen >= len(samples):  # the epoch of these data is shorter, so they are not those of the checkpoint
        return load(self, state)
    new_order = batches_of_epoch(self, now, state)
    batches_per_update = now["processes"] * now["update_freq"]
    sizes = list(map(len, new_order))
    count = int(np.searchsorted(np.cumsum(sizes), seen)) + 1
    has_same_samples = set(chain.from_iterable(new_order[:count])) == set(samples[:seen])
    if has_same_samples and count % batches_per_update == 0:
        # The epoch in the new batches starts with the samples that were seen: it continues after them.
        position = count // now["processes"]
    else:
        # The samples that were not seen are composed to new batches, and those before them are empty.
        position = updates * now["update_freq"]
        skipped = [[]] * (updates * batches_per_update)
        rest = self.dataset.batch_by_size(np.asarray(samples[seen:]), now["max_tokens"], now["batch_size"])
        batches = (*skipped, *rest)
        self.rest = {"epoch": state["epoch"], "composed": composed, "seen": seen, "batches": batches}
    return load(self, {**state, "iterations_in_epoch": position})


def batches_of_epoch(iterator, settings, state) -> list:
    """Returns the batches of all processes in the order in which a training with ``settings`` uses them."""
    trainer = iterator.trainer
    dataset = trainer.cfg.dataset
    limits = _limits(dataset)
    cache = trainer.task.dataset_to_epoch_iter
    trainer.task.dataset_to_epoch_iter = {}
    try:
        dataset.update(_limits(settings))
        other = trainer.get_train_iterator(state["epoch"], load_dataset=False)
    finally:
        dataset.update(limits)
        trainer.task.dataset_to_epoch_iter = cache
    trainer.reset_dummy_batch(iterator.first_batch)
    other.num_shards = settings["processes"]
    parts = []
    for process in range(settings["processes"]):
        other.shard_id = process
        parts.append(other.ordered_batches(state["epoch"], False, state.get("shuffle", True)))
    return list(chain.from_iterable(zip(*parts, strict=True)))


def ordered_batches(ordered, self, epoch, fix_batches_to_gpus, shuffle):
    """Returns the batches of this process in an epoch, or in the rest of a resumed epoch."""
    rest = getattr(self, "rest", None)
    if not rest or rest["epoch"] != epoch:
        return ordered(self, epoch, fix_batches_to_gpus, shuffle)
    frozen = self._frozen_batches
    self._frozen_batches = rest["batches"]
    try:
        return ordered(self, epoch, False, False)
    finally:
        self._frozen_batches = frozen


def state_dict(get_state, self):
    """Returns the state.

    In an epoch resumed with other batches, the state has the settings with which the epoch was started, and
    the number of samples that were seen.
    """
    state = get_state(self)
    rest = getattr(self, "rest", None)
    if rest and rest["epoch"] == state["epoch"]:
        batches = rest["batches"][: state["iterations_in_epoch"] * self.num_shards]
        state |= {"composed": rest["composed"], "samples": rest["seen"] + sum(map(len, batches))}
    return state
