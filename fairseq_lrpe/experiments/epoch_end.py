"""What fairseq logs when it ends an epoch or a training, from its checkpoint.

It saves before it logs that: where it is killed in between, nothing else tells of it.
"""

from pathlib import Path

from fairseq_lrpe.checkpoint import read_checkpoint


def epoch_end(checkpoint: Path, updates: int, with_ppl: bool) -> dict | None:
    """Returns the entry "train" of the log, without times and speeds; None in the middle of an epoch.

    ``updates`` are those of the whole training. ``with_ppl`` adds the perplexity, which is in no checkpoint.
    """
    state = read_checkpoint(checkpoint, "")
    extra, done = state["extra_state"], state["optimizer_history"][-1]["num_updates"]
    reached, ended = extra["train_iterator"], extra["train_iterator"]["iterations_in_epoch"] == 0
    if not ended and done < updates:
        return None
    means, entry = {}, {"kind": "train", "epoch": reached["epoch"] - ended}
    for _, name, kind, meter in extra["metrics"]["train"]:
        if kind == "AverageMeter":
            mean = means[name] = float(meter["sum"] / meter["count"] if meter["count"] else meter["val"])
            entry[f"train_{name}"] = mean if meter["round"] is None else round(mean, meter["round"])
    if with_ppl:
        entry["train_ppl"] = round(2 ** means.get("nll_loss", means["loss"]), 2)
    return {**entry, "train_num_updates": done}
