"""The command `lrpe train`: run folders, resuming, evaluation, choices, invalid settings."""

import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support.slurm_cluster import free_ports
from support.tiny import REPOSITORY, SMALL_LM, job_of, output_of, read, run_here

from fairseq_lrpe.cli import finetune, results, table, train
from fairseq_lrpe.experiments.execution import run_directory, runner, training
from fairseq_lrpe.experiments.execution.run_directory import locked
from fairseq_lrpe.experiments.execution.run_files import read_log
from fairseq_lrpe.experiments.execution.run_log import Log

SMALL = [*SMALL_LM, "train.warmup_updates=4", "train.validate_interval_updates=50"]
SMALL += ["train.save_interval_updates=50", "updates=150"]
FREE = ("data", "batch.per_gpu", "evaluations", "train.log_interval")
VALID = "evaluations.test=null"


@pytest.fixture(scope="module")
def small(data_bin):
    return ["lm/mini", "tmlr_type1", "--cpu", *SMALL, f"data={data_bin}"]


def folder_in(results, words=SMALL):
    changes = sorted(word for word in map(str, words) if "=" in word and not word.startswith(FREE))
    return results.joinpath("lm/mini/linear_tmlr_type1", *changes, "seed-1")


def start(words):
    command = [sys.executable, "-m", "fairseq_lrpe", "train", *words]
    return subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )


def entries(folder):
    return list(read_log(folder))


def running(folder):
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    return [line for line in listed.splitlines() if str(folder) in line]


@pytest.fixture(scope="module")
def continued(small, tmp_path_factory):
    """Returns (arguments, folder, output) of a run that was interrupted and resumed."""
    for _ in range(5):  # on a busy machine, a run can finish before its output is read
        results = tmp_path_factory.mktemp("results")
        words = [*small, "--results", str(results), "--", "--decoder-layerdrop", "0.1"]
        folder, process = folder_in(results), start(words)
        for line in process.stdout:
            if "50 updates: valid ppl" in line:
                break
        if process.poll() is None:
            break
    process.send_signal(signal.SIGTERM)
    output = process.stdout.read()
    assert process.wait() == 128 + signal.SIGTERM, output
    assert not running(folder) and not run_directory.is_locked(folder)  # by fairseq-train
    assert not (folder / "evaluation.json").exists()
    assert entries(folder)[-1]["kind"] in ("valid", "train_inner", "train")
    return words, folder, output_of(train.main, *words)


def test_interrupted_run_is_resumed_and_finished_run_is_not_repeated(continued):
    words, folder, output = continued
    assert output.startswith(f"resuming: {folder}\n") and output.endswith(f"finished: {folder}\n")
    log = entries(folder)
    assert [e["num_updates"] for e in log if e["kind"] == "train_inner"] == list(range(10, 151, 10))
    assert [e["valid_num_updates"] for e in log if e["kind"] == "valid"] == [50, 100, 150]
    assert output_of(train.main, *words) == f"already finished: {folder}\n"


def test_contents_of_the_run_folder(continued):
    _, folder, output = continued
    command = (folder / "command.sh").read_text().splitlines()[-1]
    assert command in output and command.endswith("--decoder-layerdrop 0.1")
    settings = read(folder, "run.json")
    changes = [word.split("=") for word in sorted(SMALL) if not word.startswith(FREE)]
    expected = {"experiment": "lm/mini", "attention": "linear", "method": "tmlr_type1", "seed": 1}
    expected |= {"changes": dict(changes), "updates": 150, "cpu": True, "precision": "fp32"}
    expected |= {"flags": ["--decoder-layerdrop", "0.1"]}
    assert {key: settings[key] for key in expected} == expected
    assert settings["config"]["train"]["decoder_embed_dim"] == 32
    assert set(settings["versions"]) == {"python", "torch", "fairseq", "fairseq_lrpe"}
    assert set(settings["git"]) == {"revision", "dirty"} and settings["started"].endswith("+00:00")

    log = entries(folder)
    evaluation = read(folder)
    assert set(evaluation) == {"evaluations", "finished"}
    measured = evaluation["evaluations"]
    assert list(measured) == ["training", "valid", "test"]
    assert measured["training"]["tokens_per_second"] > 0
    best = min(e["valid_ppl"] for e in log if e["kind"] == "valid")
    assert measured["valid"]["perplexity"] == pytest.approx(best, rel=2e-3)
    for name in ("valid", "test"):
        found = measured[name]
        assert 2 ** found["bits"] == pytest.approx(found["perplexity"], rel=1e-3) and found["tokens"] > 400
    assert not list(folder.rglob("*.part"))


def test_copied_folder_is_rejected(continued):
    words, folder, _ = continued
    shutil.copytree(folder, folder.with_name("seed-2"))
    cut = words.index("--")
    done = run_here(train.main, *words[:cut], "--seeds", 2, *words[cut:])
    assert done.returncode == 1 and "seed-2 contains a copy of the run with seed 1 (run.json)" in done.stderr
    shutil.rmtree(folder.with_name("seed-2"))


def test_truncated_test_split_is_noticed_before_training(data_bin, tmp_path):
    data = shutil.copytree(data_bin, tmp_path / "data")
    whole = (data / "test.bin").read_bytes()
    words = ["lm/mini", "rope", "--cpu", *SMALL, f"data={data}", "--results", tmp_path / "results"]
    (data / "test.bin").write_bytes(whole[:100])
    done = run_here(train.main, *words)
    assert f"test.bin has 100 bytes instead of the {len(whole):,}" in done.stderr
    assert done.returncode == 1 and not (tmp_path / "results").exists()


def test_training_starts_from_a_checkpoint(continued, small, tmp_path):
    """The first loss is that of the checkpoint, not of new parameters."""
    first = continued[1] / "checkpoints/checkpoint_last.pt"
    words = [*small, VALID, f"starts_from={first}", "train.log_interval=1", "train.lr=1e-9", "updates=4"]
    output_of(train.main, *words, "--results", tmp_path)
    [folder] = (path.parent for path in tmp_path.rglob("run.json"))
    losses = [[e["loss"] for e in entries(x) if e["kind"] == "train_inner"] for x in (continued[1], folder)]
    assert losses[1][0] < losses[0][0] - 1
    assert read(folder, "run.json")["starts_from"]["path"] == str(first)
    words.remove(f"starts_from={first}")
    other = run_here(train.main, *words, "--results", tmp_path)
    assert other.returncode == 1 and f"(starts_from was {first} " in other.stderr
    assert ", now None)" in other.stderr and len(other.stderr.splitlines()) == 1


@pytest.mark.slow
def test_choice_by_validation_keeps_all_records(small, tmp_path):
    words = [*small, "--results", tmp_path, "updates=20", VALID, "train.validate_interval_updates=10"]
    words = [*words, "train.save_interval_updates=10", "choose.train.lr=[1e-2, 1e-6]"]
    output_of(train.main, *words)
    changes = {word.split("=")[0]: word for word in words if isinstance(word, str) and "=" in word}
    folder = folder_in(tmp_path, [w for w in changes.values() if not w.startswith("choose")])
    record = read(folder)
    assert record["chosen"] == "train.lr=0.01" and set(record["tried"]) == {"train.lr=0.01", "train.lr=1e-06"}
    scores = {name: found["valid"]["perplexity"] for name, found in record["tried"].items()}
    assert min(scores, key=scores.get) == record["chosen"]
    assert record["evaluations"]["valid"]["perplexity"] == min(scores.values())
    [kept] = tmp_path.glob("**/train.lr=*/**/checkpoints/*.pt")
    own = folder / "checkpoints/checkpoint_best.pt"
    assert kept.samefile(own) and record["checkpoint"] == "checkpoints/checkpoint_best.pt"
    assert output_of(train.main, *words) == f"already finished: {folder}\n"
    trained = kept.stat().st_mtime_ns
    more = [word for word in words if not str(word).startswith("choose")]
    # The discarded trial is trained again if the former best one is not among the choices.
    assert output_of(train.main, *more, "choose.train.lr=[1e-6]").count("fairseq-train ") == 1
    other = read(folder)
    assert other["chosen"] == "train.lr=1e-06" and (folder / other["checkpoint"]).is_file()
    found = other["evaluations"]["valid"]["perplexity"]
    assert found == record["tried"]["train.lr=1e-06"]["valid"]["perplexity"]
    assert "fairseq-train " not in output_of(train.main, *words)
    last = read(folder)
    assert last["chosen"] == "train.lr=0.01" and len(last["tried"]) == 2
    assert kept.stat().st_mtime_ns == trained and own.samefile(kept)
    assert not list(tmp_path.rglob("*.part"))


def test_locked_folder_is_rejected(small, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "LOCK_TIMEOUT", 0)
    folder = folder_in(tmp_path)
    with locked(folder), pytest.raises(SystemExit, match="is in use by another process"):
        train.main([*small, "--results", str(tmp_path)])
    assert not (folder / "run.json").exists()


@pytest.mark.slow
def test_two_nodes_without_gpus_train_one_model(small, tmp_path):
    words = [*small, "--results", str(tmp_path)]
    words += ["batch.per_gpu=2", "updates=4", "train.log_interval=1", VALID]
    folder = folder_in(tmp_path, [*SMALL[:-1], "updates=4"])
    [port] = free_ports(1)
    words += ["--gpus", "1", "--nodes", "2", "--rendezvous", f"localhost:{port}", "--seeds", "1", "2"]
    nodes = [start(words) for _ in range(2)]
    ends = [(node.communicate(), node.returncode) for node in nodes]
    assert [code for _, code in ends] == [0, 0], ends
    for one in (folder, folder.with_name("seed-2")):
        inner = [e for e in entries(one) if e["kind"] == "train_inner"]
        assert [e["num_updates"] for e in inner] == [1, 2, 3, 4]
        assert all(e["bsz"] == 4 for e in inner)  # two sequences per node
        assert (one / "evaluation.json").exists()


def test_second_node_waits_for_the_evaluation(small, tmp_path, monkeypatch):
    """Otherwise, it would start the next training while the first node evaluates, and torchrun would fail."""
    overrides = [word for word in [*small, "batch.per_gpu=2"] if "=" in word]
    job = job_of("lm/mini", "rope", overrides=overrides, results=tmp_path, nodes=2, gpus=1)
    monkeypatch.setattr(training, "train", lambda *_: None)
    with ThreadPoolExecutor() as pool:
        with locked(job.folder):
            ended = pool.submit(training.join_training, job)
            time.sleep(1)
            assert not ended.done()
        ended.result()


def test_words_after_options_are_their_values(tmp_path):
    words = ["lm/mini", "base", "--results", str(tmp_path / "a=b"), "updates=3", "--seed", "1", "2"]
    args, overrides = train.parse(train.make_parser(), words)
    assert (args.results, args.seeds, overrides) == (tmp_path / "a=b", [1, 2], ["updates=3"])


@pytest.mark.parametrize("command", [finetune, results, table, train])
def test_options_without_values(command):
    for action in command.make_parser()._actions:
        for option in action.option_strings:
            if option.startswith("--"):
                assert (option in train.SWITCHES) == (action.nargs == 0)


def write_checkpoint(path, updates):
    cfg = {"model": {"_name": "linear_lm"}, "task": {"_name": "language_modeling"}}
    state = {"cfg": cfg, "optimizer_history": [{"num_updates": updates}], "extra_state": {}}
    torch.save({**state, "model": {"weight": torch.rand(99)}}, path)


@pytest.mark.parametrize("cut, part", [("best", 0.5), ("last", 0), ("last", 0.999)])
def test_truncated_checkpoint_is_replaced_by_the_newest_complete_one(cut, part, tmp_path):
    before = {"1_6": 6, "1_8": 8, "best": 6, "last": 6}
    for name, updates in before.items():
        write_checkpoint(tmp_path / f"checkpoint_{name}.pt", updates)
    whole = (tmp_path / "checkpoint_1_8.pt").read_bytes()
    broken = tmp_path / f"checkpoint_{cut}.pt"
    broken.write_bytes(whole[: min(round(part * len(whole)), len(whole) - 1)])
    run_directory.repair_checkpoints(tmp_path)
    assert broken.read_bytes() == whole
    for name in before.keys() - {cut}:
        path = tmp_path / f"checkpoint_{name}.pt"
        assert run_directory.checkpoint_updates(path) == before[name]


LINE = '2026-01-01 00:00:00 | INFO | train_inner | {"epoch": 1, "loss": "%s", "num_updates": "%s"}\n'


def test_repeated_updates_are_logged_once(tmp_path):
    log = Log(tmp_path)
    for loss, updates in ((9, 10), (8, 20), (7.5, 20)):
        log.record(LINE % (loss, updates))
    log = Log(tmp_path, completed=20)
    log.restore(tmp_path, 30)
    log.record(LINE % ("nan", 30))
    log.record("something else\n")
    found = [(e["num_updates"], e["loss"]) for e in entries(tmp_path)]
    assert found[:2] == [(10, 9), (20, 7.5)] and found[2][0] == 30


def test_log_is_completed_after_the_runner_was_killed(tmp_path):
    """Entries after the last checkpoint and incomplete lines are dropped."""
    Log(tmp_path).record(LINE % (9, 10))
    cut = (LINE % (6, 15))[:-9]
    lines = [LINE % (9, 10), cut, "$ fairseq-train '{}'\n", LINE % (8, 20), LINE % (7, 30), cut]
    (tmp_path / "train.log").write_text("".join(lines))
    log = Log(tmp_path, completed=20)
    log.restore(tmp_path, 30)
    log.record(LINE % (7, 30))
    assert [(e["num_updates"], e["loss"]) for e in entries(tmp_path)] == [(10, 9), (20, 8), (30, 7)]
