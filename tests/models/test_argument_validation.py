"""Invalid calls of fairseq's commands with the plugin end with a one-line error and write no files."""

import io
import shutil

import pytest
import torch
from fairseq_cli import interactive
from support.commands import EVALUATIONS, assert_error, assert_rejected, evaluation_flags
from support.tiny import run_here, succeeded, train_flags, train_here


@pytest.mark.parametrize(("arch", "flags", "message"), [
    ("linear_lm", "--encoding ropee", "rope"),
    ("softmax_transformer_xxl", "", "has no method 'xxl' (did you mean 'xl'?)"),
    ("linear_lm_t5", "", "'t5' does not exist in linear attention: pass --arch softmax_lm_t5"),
    ("softmax_lm_kda", "", "'kda' does not exist in softmax attention: pass --arch linear_lm_kda"),
    ("linear_lm", "--linear-rule deltas", "unknown linear rule 'deltas' (did you mean 'delta'?)"),
    ("linear_lm", "--linear-rule kda", "pass --feature-map silu --scale-queries --linear-norm rmsnorm"),
    ("linear_lm_delta", "--encoding alibi", "only rotates queries and keys, not 'alibi': use axial_rope,"),
    ("linear_lm_kda", "--encoding liere", "kda decays features, which liere mixes in other ways"),
    ("linear_lm_delta", "--encoding rope --rope-scaling yarn:4:64",
     "the scaling yarn multiplies keys, whose norms must be 1 in a delta rule: use ntk"),
    ("linear_lm_delta", "--linear-backend fla", "has no backend fla: pass --linear-backend auto"),
    ("linear_lm_delta", "--randomized-positions 64", "does not support --linear-rule delta"),
    ("linear_lm_tmlr_type1", "--feature-map exp", "unknown feature map 'exp': choose from elu"),
    ("linear_lm_rope", "--lrpe-core unitary", "is an option of the encoding 'lrpe'"),
    ("linear_lm", "--encoding t5", "--decoder-attention softmax), or one of"),
    ("linear_lm", "--token-positions absolute", "unknown token positions 'absolute'"),
    ("softmax_lm", "--token-positions floater_every_layer --checkpoint-activations",
     "are not supported with the token positions floater_every_layer"),
    ("linear_lm_rope", "--decoder-attention-heads 0", "must divide the embedding dimension 32"),
    ("softmax_lm", "--decoder-xformers-att-config {}", "--decoder-xformers-att-config replaces"),
    ("linear_lm_base", "--max-target-positions 16",
     "--tokens-per-sample 32 exceeds --max-target-positions 16"),
    ("softmax_lm_tupe_a", "--ddp-backend fully_sharded",
     "--ddp-backend fully_sharded does not support the encoding tupe"),
    ("linear_lm_base", "--task masked_lm", "requires an architecture of the family roberta"),
    ("linear_lm_base", "--restore-file nowhere.pt", "the checkpoint nowhere.pt does not exist"),
])  # fmt: skip
def test_training(arch, flags, message, data_bin, tmp_path):
    words = train_flags(data_bin, arch, tmp_path / "save", "--max-update", 1, *flags.split())
    assert_rejected(train_here(*words), message, tmp_path / "save")


@pytest.mark.parametrize(("flags", "message"), [
    ("--path nowhere.pt", "the checkpoint nowhere.pt does not exist"),
    ("--task masked_lm", "is of the task language_modeling, not of masked_lm"),
])  # fmt: skip
@pytest.mark.parametrize("command", EVALUATIONS)
def test_evaluation(command, flags, message, checkpoint, data_bin):
    words = evaluation_flags(command, data_bin, checkpoint)
    assert_error(run_here(EVALUATIONS[command], *words, *flags.split()), message)


def test_shards_need_only_the_training_set(train, data_bin, tmp_path):
    shard = tmp_path / "shard"
    shard.mkdir()
    for name in ("train.bin", "train.idx"):
        shutil.copy(data_bin / name, shard)
    data = f"{data_bin}:{shard}"
    succeeded(train("linear_lm_base", tmp_path / "save", "--max-update", 2, data=data))
    (shard / "train.bin").write_bytes((shard / "train.bin").read_bytes() * 2)
    assert_rejected(train("linear_lm", tmp_path / "a", data=data), "bytes instead of the", tmp_path / "a")
    (shard / "train.bin").unlink()
    assert_rejected(train("linear_lm", tmp_path / "b", data=data), "is missing or damaged", tmp_path / "b")


def test_invalid_checkpoint(checkpoint, data_bin, tmp_path):
    path, message = tmp_path / "invalid.pt", "(it has no model,"
    torch.save({"cfg": torch.load(checkpoint, weights_only=True)["cfg"]}, path)
    words = evaluation_flags("fairseq-eval-lm", data_bin, path)
    assert_error(run_here(EVALUATIONS["fairseq-eval-lm"], *words), message)
    words = train_flags(data_bin, "linear_lm_base", tmp_path / "save", "--restore-file", path)
    assert_rejected(train_here(*words), message, tmp_path / "save")
    path.rename(tmp_path / "checkpoint_last.pt")
    assert_error(train_here(*train_flags(data_bin, "linear_lm_base", tmp_path)), message)


def test_shard_with_another_dictionary(data_bin, tmp_path):
    other = shutil.copytree(data_bin, tmp_path / "bin1") / "dict.txt"
    words = train_flags(f"{data_bin}:{other.parent}", "linear_lm_base", tmp_path / "save", "--max-update", 1)
    other.write_text(other.read_text().replace("w1 ", "w100 "))
    message = f"{other} differs from {data_bin / 'dict.txt'}, so bin1 is not a shard of bin"
    assert_rejected(train_here(*words), message, tmp_path / "save")
    symbols = [line.split()[0] for line in (data_bin / "dict.txt").read_text().splitlines()]
    other.write_text("".join(f"{symbol} 1\n" for symbol in symbols))  # the counts do not matter
    succeeded(train_here(*words))


def test_interactive_input_that_is_not_utf8(checkpoint, data_bin, monkeypatch):
    content = io.BytesIO("w1 caf\u00e9\n".encode("latin-1"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(content, "utf-8", "surrogateescape"))  # as in C.UTF-8
    done = run_here(interactive.cli_main, *evaluation_flags("fairseq-interactive", data_bin, checkpoint))
    assert done.returncode == 1 and "standard input is not UTF-8" in done.stderr
