"""Experiments: their YAML files and overrides, runs, and commands that match the papers."""

import shlex
from pathlib import Path

import pytest
from support.tiny import job_of, write_configs

from fairseq_lrpe.experiments.definition import config_files
from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.definition.run import Run, as_text, as_value
from fairseq_lrpe.experiments.estimation import cost
from fairseq_lrpe.experiments.execution.job import Job
from fairseq_lrpe.experiments.execution.launch import train_command
from fairseq_lrpe.methods import METHODS, canonical, check_method
from fairseq_lrpe.utils.errors import UserError


def command(experiment="lm/wikitext103", method="tmlr_type1", attention="linear", overrides=(), **machine):
    check_method(method, attention)
    cpu = not machine.get("gpus")
    return train_command(job_of(experiment, method, attention, overrides, cpu=cpu, **machine))


def flags(words):
    """Returns {flag: value, or True} of a command."""
    found = {}
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word] = True if after.startswith("--") else after
    return found


PAPER = """
    --task language_modeling --arch linear_lm_tmlr_type1 --tokens-per-sample 512
    --decoder-layers 6 --decoder-embed-dim 512 --decoder-attention-heads 8 --decoder-ffn-embed-dim 2048
    --activation-fn relu --dropout 0.1 --attention-dropout 0.0 --weight-decay 0.01 --clip-norm 0.0
    --optimizer adam --adam-eps 1e-08 --adam-betas '(0.9, 0.98)'
    --lr 0.0005 --lr-scheduler inverse_sqrt --warmup-updates 4000 --max-update 50000
"""


@pytest.mark.parametrize("experiment", ["lm/wikitext103", "lm/books"])
def test_command_matches_the_paper(experiment):
    words = command(experiment, gpus=8, precision="fp16")
    assert words[:2] == ["fairseq-train", f"data/{experiment[3:]}/bin"]
    found = flags(words)
    assert flags(shlex.split(PAPER)).items() <= found.items() and found["--fp16"]
    assert found["--save-dir"] == f"results/{experiment}/linear_tmlr_type1/seed-1/checkpoints"
    assert Experiment.load(experiment).cfg.seeds == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("gpus, nodes, expected", [(0, 1, 16), (1, 1, 16), (4, 1, 4), (8, 2, 1)])
def test_batch_size_is_independent_of_the_number_of_gpus(gpus, nodes, expected):
    words = command(gpus=gpus, nodes=nodes, rendezvous="first:29500")
    found = flags(words)
    assert found["--update-freq"] == str(expected)
    processes = int(found["--distributed-world-size"])
    sequences = int(found["--batch-size"]) * int(found["--update-freq"]) * processes
    assert processes == max(gpus, 1) * nodes and sequences == 128
    assert sequences * int(found["--tokens-per-sample"]) == 65_536
    assert ("--cpu" in found) == (gpus == 0)
    if nodes > 1:
        torchrun = "torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint first:29500 --nproc_per_node 8 -m"
        assert words[:11] == [*torchrun.split(), "fairseq_cli.train"]


def test_overrides_change_the_command():
    words = ["train.lr=1e-3", "updates=7", "train.share_decoder_input_output_embed=false", "train.patience=3"]
    found = flags(command(overrides=words))
    assert (found["--lr"], found["--max-update"], found["--patience"]) == ("0.001", "7", "3")
    assert "--share-decoder-input-output-embed" not in found
    with pytest.raises(ValueError, match="'updates' is not an override: expected KEY=VALUE"):
        Experiment.load("lm/mini", ["updates"])
    [run] = Experiment.load("lm/mini").runs("linear", "base", [1], {"train.tokens_per_sample": 64})
    evaluate = Experiment.load("lm/mini").settings(run).evaluate
    assert evaluate.flags.tokens_per_sample == 64


def test_methods_with_the_same_flags_are_one_run():
    assert canonical("ablation_householder_unitary") == "tmlr_type1"
    assert canonical("iclr_type2") == "tmlr_type2"
    assert canonical("iclr_type1") == "iclr_type1"
    assert all(canonical(canonical(name)) == canonical(name) for name in METHODS)


# --- runs and their changes ---------------------------------------------------------------------------


def runs(overrides=(), method="shaw", **more):
    return Experiment.load("lm/mini", overrides).runs("softmax", method, [1], **more)


def test_folder_names_contain_the_changes():
    [run] = runs(["train.shaw_k=4", "train.lr=1e-3", "data=elsewhere", "batch.per_gpu=4"])
    assert str(run) == "lm/mini/softmax_shaw/train.lr=0.001/train.shaw_k=4/seed-1"
    assert Run.of({**vars(run), "changes": dict(run.changes)}) == run
    [slashed] = runs(["train.adam_betas=a/b"])
    assert str(slashed) == "lm/mini/softmax_shaw/train.adam_betas=a%2Fb/seed-1"


@pytest.mark.parametrize("value", [True, None, 3, 1e-5, 0.25, "a text", [1, 2.5], "a/b"])
def test_values_survive_conversion_to_text(value):
    assert as_value(as_text(value)) == value


def test_change_to_the_current_value_is_ignored():
    assert runs(["train.lr=5e-3", "updates=400"]) == runs()
    assert runs(changes={"updates": 400, "train.shaw_k": 4}) == runs(["train.shaw_k=4"])
    # This replaces the value of iclr_type8 by the one of the other methods.
    [run] = runs(["train.clip_norm=0.0"], method="iclr_type8")
    assert run.changes == (("train.clip_norm", "0"),)
    assert not Experiment.load("lm/mini").settings(run).by_method.iclr_type8


def test_grid_has_one_run_per_combination():
    grid = ["grid.train.shaw_k=[4, 16]", "grid.train.lr=[0.005, 0.01]"]
    assert [run.changes for run in runs(grid)] == [
        (("train.lr", "0.005"), ("train.shaw_k", "4")),
        (("train.lr", "0.01"), ("train.shaw_k", "4")),
        (("train.lr", "0.005"), ("train.shaw_k", "16")),
        (("train.lr", "0.01"), ("train.shaw_k", "16")),
    ]
    [one] = runs([*grid, "train.shaw_k=16", "train.lr=0.005"])
    assert one in runs(grid)


def test_trials_are_runs_with_a_change():
    experiment = Experiment.load("lm/mini", ["choose.train.shaw_k=[4, 8]"])
    [run] = experiment.runs("softmax", "shaw", [1])
    assert [str(trial) for trial in experiment.trials(run)] == [
        "lm/mini/softmax_shaw/train.shaw_k=4/seed-1",
        "lm/mini/softmax_shaw/train.shaw_k=8/seed-1",
    ]
    trials = experiment.trials(run)
    assert experiment.needs(run) == trials and not experiment.trials(trials[0])
    [other] = experiment.runs("softmax", "xl", [1])  # shaw_k is no option of its encoding
    assert not experiment.trials(other)


def test_learning_rates_end_with_the_training():
    decaying = [
        name for name in config_files.experiments() if Experiment.load(name).cfg.train.get("total_num_update")
    ]
    assert {"classifier/imdb", "question_generator/squad", "roberta/wikibook"} <= {*decaying}
    for name in decaying:
        experiment = Experiment.load(name, ["updates=12345"])
        [run, *_] = experiment.runs("linear", "rope", [1])
        assert experiment.settings(run).train.total_num_update == 12345, name


def test_fine_tuning_starts_from_one_pretraining_for_all_seeds():
    for overrides, start in (((), None), (["seeds=[2]"], None), (["updates=40"], "updates=40")):
        experiment = Experiment.load("glue/mini", shared=overrides)
        [run, *_] = experiment.runs("linear", "rope", [2])
        expected = "/".join(filter(None, ("roberta/mini/linear_rope", start, "seed-1")))
        assert str(experiment.starts_from(run)) == expected
        assert experiment.needs(experiment.trials(run)[0]) == [experiment.starts_from(run)]
        assert Job(experiment, run, Path()).start_name == (expected if start else "roberta/mini")


def test_folder_is_found_under_every_alias_of_the_method(tmp_path):
    run = Run("transformer/multi30k", "linear", canonical("iclr_type4"), 1)
    own, other = (
        tmp_path / f"transformer/multi30k/linear_{name}/seed-1" for name in ("tmlr_type3", "iclr_type4")
    )
    assert run.folder(tmp_path) == own
    other.mkdir(parents=True)
    assert run.folder(tmp_path) == other
    own.mkdir(parents=True)
    assert run.folder(tmp_path) == own


# --- YAML files ---------------------------------------------------------------------------------------

VALID = "kind: lm\ndata: x\nbatch: {total: 8, per_gpu: 8}\n"


@pytest.mark.parametrize("text, message", [
    (f"{VALID}kidn: x", "lm/own.yaml: kidn: unknown key"),
    ("kind: langauge", "kind: unknown kind 'langauge'"),  # codespell:ignore
    ("defaults: lm/nowhere", "defaults: lm/nowhere does not exist"),
    ("defaults: lm/own", "defaults: lm/own extends this file itself"),
    ("a: [", "is not valid YAML: "),
    (f"{VALID}train: {{user-dir: x}}", "train: user-dir: names of flags have underscores: write user_dir"),
    (f"{VALID}by_method: {{rope: {{max-update: 3}}}}", "by_method.rope: max-update: names of flags have"),
    (f"{VALID}evaluate: {{flags: {{gen-subset: x}}}}", "evaluate.flags: gen-subset: names of flags have"),
    (f"{VALID}evaluate: {{flags: {{path: x}}}}", "evaluate.flags: path cannot be set, because lrpe"),
    (f"{VALID}evaluations: {{training: {{split: test}}}}", "evaluations: the name 'training' is reserved"),
])  # fmt: skip
def test_errors_name_file_and_key(text, message, tmp_path, monkeypatch):
    (tmp_path / "lm").mkdir()
    monkeypatch.setattr(config_files, "CONFIGS", tmp_path)
    (tmp_path / "lm/own.yaml").write_text(text)
    with pytest.raises(ValueError) as error:
        Experiment.load("lm/own")
    assert "lm/own.yaml" in str(error.value) and message in str(error.value)
    assert "\n" not in str(error.value)


# --- models at the papers' size --------------------------------------------------------------------


LAYER = 4 * (512 * 512 + 512) + (512 * 2048 + 2048) + (2048 * 512 + 512) + 2 * 2 * 512
BODY = 6 * LAYER + 2 * 512  # and the last LayerNorm


@pytest.mark.parametrize("experiment, attention, method, vocabulary, own", [
    ("lm/wikitext103", "linear", "base", 267_744, 0),
    ("lm/wikitext103", "linear", "tmlr_type1", 267_744, 6 * (64 + 2 * 512)),
    ("lm/wikitext103", "softmax", "base", 267_744, 0),
    ("lm/books", "linear", "tmlr_type3", 50_264, 6 * 2 * 512),
])  # fmt: skip
def test_parameters_at_the_papers_size(experiment, attention, method, vocabulary, own):
    """``own`` are the method's parameters: 64 angles per layer, and the LayerNorm of linear attention."""
    model = cost.build(tuple(command(experiment, method, attention)), cost.Corpus((vocabulary,))).model
    assert sum(p.numel() for p in model.parameters()) == vocabulary * 512 + BODY + own
    assert vocabulary * 512 + BODY == {267_744: 156_000_256, 50_264: 44_650_496}[vocabulary]


@pytest.mark.parametrize("seed", [2**31, 2**32, 10**30])
def test_seeds_that_numpy_does_not_accept(seed):
    with pytest.raises(UserError, match=f"^the seed {seed} is too large: use one of at most 2147483647$"):
        Experiment.load("lm/mini").runs("linear", "rope", [1, seed])


def test_options_of_an_encoding_that_settings_select(tmp_path, monkeypatch):
    """By a YAML file, for one method of it, by an override or by changes; others are refused."""
    files = {
        "x/selected": {"defaults": "lm/mini", "train": {"encoding": "lrpe"}},
        "x/by_method": {"defaults": "lm/mini", "by_method": {"rope": {"interval_encoding": "lrpe"}}},
    }
    monkeypatch.setenv("LRPE_CONFIGS", str(write_configs(tmp_path / "own", files)))
    option = ["train.lrpe_core=mixed"]
    selected = {"x/selected": [], "x/by_method": [], "lm/mini": ["train.encoding=lrpe"]}
    for name, overrides in selected.items():
        experiment = Experiment.load(name, [*overrides, *option])
        [run] = experiment.runs("linear", "rope", [1])
        assert ("train.lrpe_core", "mixed") in run.changes
    [run] = Experiment.load("lm/mini").runs(
        "linear", "rope", [1], {"train.encoding": "lrpe", "train.lrpe_core": "mixed"}
    )
    assert len(run.changes) == 2
    for method in ("nope", "alibi"):
        with pytest.raises(UserError, match="is an option of the encoding lrpe, not of"):
            Experiment.load("x/by_method", option).runs("linear", method, [1])
