"""Patches of fairseq for safe checkpoints and correct results; :func:`apply` installs all of them.

The patches of command lines (except for --bf16), of evaluation, of the batches of later epochs and of
signals, and the settings of torch and logging affect only fairseq's own commands. All others also affect
other programs that import fairseq_lrpe.models.
"""

import atexit
import inspect
import logging
import multiprocessing
import shutil
import signal
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import cache, partial, wraps
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from fairseq import checkpoint_utils, file_io, optim, options, utils
from fairseq.criterions.masked_lm import MaskedLmLoss
from fairseq.data import EpochBatchIterator, bucket_pad_length_dataset
from fairseq.distributed import utils as distributed_utils
from fairseq.models import ema
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.optim import adam
from fairseq.tasks.fairseq_task import FairseqTask
from fairseq.trainer import Trainer
from torch.utils.data import DataLoader

from fairseq_lrpe.fairseq_ext import epoch_position, foreach_optimizer, masked_lm, one_line_errors
from fairseq_lrpe.fairseq_ext.checkpoint_task import restore_task
from fairseq_lrpe.fairseq_ext.data_workers import end_workers_that_cannot_send
from fairseq_lrpe.fairseq_ext.ema import ExactEMA, load_checkpoint_with_average
from fairseq_lrpe.fairseq_ext.host_copies import move_to_cuda
from fairseq_lrpe.fairseq_ext.safe_eval import literal
from fairseq_lrpe.utils.cli import (
    decode_stdin,
    exit_on_error,
    is_fairseq_command,
    open_standard_streams,
)
from fairseq_lrpe.utils.files import atomic_file
from fairseq_lrpe.utils.subprocesses import CLUSTER_SIGNALS

SAVE_SIGNALS = (signal.SIGTERM, *CLUSTER_SIGNALS)
"""Signals after which fairseq-train saves a checkpoint and exits."""


def apply(
    check_command_line: Callable[[list[str]], None], check_arguments: Callable[[Namespace], None]
) -> None:
    """Installs all patches; the functions validate the words of a command line and the parsed arguments."""
    if is_fairseq_command():
        open_standard_streams()
        # Strong decays produce denormal weights, with which attention on a CPU takes twice as long.
        torch.set_flush_denormal(True)
        # fairseq sets the root logger to DEBUG, at which Pillow logs every chunk of a PNG file.
        logging.getLogger("PIL").setLevel(logging.INFO)
        # A training would wait forever for a batch that does not fit into /dev/shm.
        end_workers_that_cannot_send()
    # fairseq uses names of numpy 1.
    if not hasattr(np, "compat"):
        np.compat = SimpleNamespace(long=int)
        bucket_pad_length_dataset.get_buckets = _get_buckets
    # fairseq evaluates strings in a checkpoint's settings as Python code.
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("fairseq", "fairseq_cli"):
            vars(module)["eval"] = literal
    # fairseq copies checkpoints in place, so a killed training leaves a truncated file.
    if file_io.IOPathManager is None:  # an IOPathManager may copy to remote storage
        file_io.PathManager.copy = staticmethod(_copy_atomically)
    if utils.multi_tensor_l2norm_available:
        # fairseq passes all gradients to one kernel of Apex, which reads them as numbers of one dtype.
        _wrap(utils, "multi_tensor_total_norm", _norm_of_each_dtype)
    else:
        # Without Apex, fairseq starts several operations for each parameter.
        utils.multi_tensor_l2norm_available = True
        utils.multi_tensor_total_norm = foreach_optimizer.total_norm
    # Starting these operations takes a GPU longer than executing them.
    _wrap(adam.Adam, "step", foreach_optimizer.adam_step)
    optim.FP16Optimizer = foreach_optimizer.FP16Optimizer
    # Models decide on the CPU whether a batch contains padding; fairseq's layers read it from the GPU.
    utils.move_to_cuda = move_to_cuda
    _wrap(MaskedLmLoss, "forward", masked_lm.loss)
    # fairseq also compares the unused end of its token buffer, so --no-repeat-ngram-size has no effect.
    _wrap(NGramRepeatBlock, "_no_repeat_ngram", _block_generated_ngrams)
    # fairseq selects a TPU for --bf16, and evaluates checkpoints without the task that they were trained on.
    _wrap(options, "parse_args_and_arch", partial(_parse, check_command_line, check_arguments))
    # Models and tasks raise exceptions, which a command prints in one line.
    _wrap(distributed_utils, "call_main", one_line_errors.call_main)
    for module in (sys.modules["__main__"], sys.modules.get("fairseq_cli.generate")):
        if Path(getattr(module, "__file__", None) or "").parts[-2:] == ("fairseq_cli", "generate.py"):
            _wrap(module, "main", one_line_errors.run)  # the only command without `call_main`
    # fairseq's evaluations skip samples in several cases, mostly without a message.
    _wrap(FairseqTask, "filter_indices_by_size", _keep_all_samples)
    _wrap(FairseqTask, "get_batch_iterator", _keep_last_batch)
    _wrap(Trainer, "get_train_iterator", _record_training)
    # fairseq newer than 0.12.2 composes other batches if a training resumes after its first epoch.
    _wrap(FairseqTask, "get_batch_iterator", _compose_batches_of_first_epoch)
    # torch.load rejects what fairseq sends to the other processes of a training that is resumed.
    torch.serialization.add_safe_globals([distributed_utils._TensorPlaceholder])
    _wrap(distributed_utils, "broadcast_object", _broadcast_without_settings)
    # fairseq repeats or leaves out samples if an epoch is resumed with other batches.
    _wrap(checkpoint_utils, "load_checkpoint_to_cpu", epoch_position.load_checkpoint_to_cpu)
    for name in ("load_state_dict", "ordered_batches", "state_dict"):
        _wrap(EpochBatchIterator, name, getattr(epoch_position, name))
    # fairseq averages tied parameters twice, and cannot average integers or start from any checkpoint.
    ema.EMA = ExactEMA
    _wrap(Trainer, "load_checkpoint", load_checkpoint_with_average)
    # fairseq loses all updates since its last checkpoint when a cluster stops it.
    is_training = is_fairseq_command() and Path(sys.argv[0]).name in ("fairseq-train", "train.py")
    for name in ("__main__", "fairseq_cli.train"):  # torchrun runs the module as __main__
        if is_training and hasattr(sys.modules.get(name), "validate_and_save"):
            _wrap(sys.modules[name], "validate_and_save", partial(_save_on_signal, []))
            _wrap(DataLoader, "__iter__", _with_blocked_signals)


def _wrap(owner, name, function):
    """Replaces ``owner.name`` by ``function``, whose first argument is the original."""
    original = getattr(owner, name)

    @wraps(original)
    def patched(*args, **kwargs):
        return function(original, *args, **kwargs)

    setattr(owner, name, patched)


def _copy_atomically(source, target, overwrite=False):
    with atomic_file(Path(target)) as part:
        shutil.copyfile(source, part)
    return True


def _get_buckets(sizes, num_buckets):
    """Returns the maximum size of the samples of each bucket, like fairseq's function of this name."""
    return np.unique(np.percentile(sizes, np.linspace(0, 100, num_buckets + 1), method="lower")[1:])


def _broadcast_without_settings(broadcast_object, obj, *args, **kwargs):
    """Broadcasts a checkpoint without its settings, which the other processes ignore."""
    if isinstance(obj, dict):
        obj = {name: value for name, value in obj.items() if name != "cfg"}
    return broadcast_object(obj, *args, **kwargs)


def _norm_of_each_dtype(total_norm, grads, *args):
    by_dtype = {}
    for gradient in grads:
        by_dtype.setdefault(gradient.dtype, []).append(gradient)
    norms = [total_norm(gradients, *args).float() for gradients in by_dtype.values()]
    return norms[0] if len(norms) == 1 else torch.stack(norms).norm()


def _block_generated_ngrams(no_repeat_ngram, self, tokens, lprobs, bsz, beam_size, step):
    return no_repeat_ngram(self, tokens[:, : step + 1], lprobs, bsz, beam_size, step)


def _parse(check_command_line, check_arguments, parse, parser, input_args=None, **options):
    """Parses arguments; fairseq's commands also restore the checkpoint's task and validate the arguments."""
    # fairseq parses a second time with suppress_defaults.
    is_command = is_fairseq_command() and not options.get("suppress_defaults")
    modify_parser = options.pop("modify_parser", None)

    def modify(parser):
        if modify_parser is not None:
            modify_parser(parser)
        if is_command:
            with exit_on_error("fairseq_lrpe"):
                check_command_line(sys.argv[1:] if input_args is None else input_args)
                restore_task(parser, input_args)

    parsed = one_line_errors.run(parse, parser, input_args, modify_parser=modify, **options)
    args = parsed[0] if isinstance(parsed, tuple) else parsed
    if getattr(args, "bf16", False) and find_spec("torch_xla") is None:
        args.tpu = False
    if is_command:
        with exit_on_error("fairseq_lrpe"):
            check_arguments(args)
        if hasattr(args, "buffer_size"):  # fairseq-interactive
            decode_stdin(SystemExit)
    return parsed


def _save_on_signal(received, validate_and_save, cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch):
    """Saves a checkpoint at the end of an update after a signal, and exits; training resumes identically.

    The signals are handled from the first update on. Only the process that writes checkpoints reacts: the
    others may be in the middle of the next update, which needs all processes.
    """
    for number in SAVE_SIGNALS:
        signal.signal(number, lambda number, frame: received.append(number))
    losses, should_stop = validate_and_save(cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch)
    if received and trainer.is_data_parallel_master and not (should_stop or end_of_epoch):
        checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, None)
        raise SystemExit(128 + received[0])
    return losses, should_stop


def _with_blocked_signals(iterate, self):
    """Starts the workers of a DataLoader with blocked ``SAVE_SIGNALS``.

    The workers therefore run until the checkpoint is written. At exit, multiprocessing would wait for workers
    that block SIGTERM, so that ``_kill_workers`` stops them before.
    """
    atexit.unregister(_kill_workers)
    atexit.register(_kill_workers)  # the last function that is registered is called first
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SAVE_SIGNALS)
    try:
        return iterate(self)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kill_workers():
    for process in multiprocessing.active_children():
        process.kill()


def _is_evaluated(task, dataset):
    training_split = getattr(task, "training_split", None)
    return is_fairseq_command() and dataset is not task.datasets.get(training_split)


def _keep_all_samples(
    filter_indices_by_size, self, indices, dataset, max_positions=None, ignore_invalid_inputs=False
):
    """Keeps all samples of an evaluation; raises SystemExit if fairseq would skip some."""
    if not _is_evaluated(self, dataset):
        return filter_indices_by_size(self, indices, dataset, max_positions, ignore_invalid_inputs)
    kept, skipped = dataset.filter_indices_by_size(indices, max_positions)
    if len(skipped):
        tokens = sum(int(np.sum(dataset.size(index))) for index in skipped)
        in_blocks = str(getattr(self.cfg or self.args, "sample_break_mode", "")).lower() == "none"
        remedy = f"pass --tokens-per-sample {max_positions}" if in_blocks else "shorten these samples"
        raise SystemExit(
            f"fairseq_lrpe: the evaluation would skip {len(skipped):,} of {len(indices):,} samples "
            f"({tokens:,} tokens), which are longer than the maximum of {max_positions} positions: {remedy}, "
            "or use a model that accepts more positions"
        )
    return kept


def _keep_last_batch(get_batch_iterator, self, dataset, *args, **kwargs):
    """Keeps the last batch of an evaluation."""
    if _is_evaluated(self, dataset):
        kwargs["required_batch_size_multiple"] = 1
    return get_batch_iterator(self, dataset, *args, **kwargs)


def _compose_batches_of_first_epoch(get_batch_iterator, self, dataset, *args, seed=1, epoch=1, **kwargs):
    """Composes the batches of a resumed training as in its first epoch.

    fairseq composes batches once per process; after version 0.12.2, with a seed that depends on the epoch in
    which it starts. An uninterrupted training uses the batches of epoch 1 in another order.
    """
    is_cached = (
        is_fairseq_command()
        and _seeds_by_epoch(get_batch_iterator)
        and self.can_reuse_epoch_itr(dataset)
        and not getattr(self.cfg, "rebuild_batches", False)
    )
    if not is_cached or kwargs.get("disable_iterator_cache") or kwargs.get("update_epoch_batch_itr"):
        return get_batch_iterator(self, dataset, *args, seed=seed, epoch=epoch, **kwargs)
    iterator = get_batch_iterator(self, dataset, *args, seed=seed + 1 - epoch, epoch=epoch, **kwargs)
    iterator.seed = seed  # of the order of the batches, to which fairseq adds the epoch
    return iterator


@cache
def _seeds_by_epoch(get_batch_iterator):
    """Returns whether batches are composed with the seed plus the epoch; fairseq 0.12.2 omits the epoch."""
    # fairseq changed this between releases, so versions do not tell. getsource unwraps patched functions.
    return "seed + epoch" in inspect.getsource(get_batch_iterator)


def _record_training(get_train_iterator, self, *args, **kwargs):
    """Stores the training split in the task, so that it may skip samples, and the trainer in the iterator."""
    self.task.training_split = self.cfg.dataset.train_subset
    iterator = get_train_iterator(self, *args, **kwargs)
    iterator.trainer = self
    return iterator
