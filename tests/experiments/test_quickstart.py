"""The quickstart: its corpus, its checks, and the whole of it on a small folder."""

import json

import pytest
from tiny import run_command

from fairseq_lrpe.experiments import commands, corpus
from fairseq_lrpe.experiments.quickstart import METHODS


def quickstart(*arguments):
    return run_command("python", "-m", "fairseq_lrpe.experiments.quickstart", *arguments)


def test_python_docs_are_split_without_overlap(tmp_path):
    corpus.write_python_docs(tmp_path)
    lines = {s: (tmp_path / f"{s}.txt").read_text().splitlines() for s in corpus.SPLITS}
    everything = [line for split in lines.values() for line in split]
    assert len(everything) == len(set(everything)) and all(line.strip() for line in everything)
    sizes = {split: sum(map(len, part)) for split, part in lines.items()}
    total = sum(sizes.values())
    assert total > 300_000 and 0.75 < sizes["train"] / total < 0.9
    assert 0.04 < sizes["valid"] / total < 0.15 and 0.04 < sizes["test"] / total < 0.15


@pytest.mark.parametrize(
    "broken, message", [(None, "is missing"), (b" \n", "is empty"), (b"\xff\xfe", "UTF-8")]
)
def test_text_that_cannot_be_used(broken, message, text_folder, tmp_path):
    data = tmp_path / "mine"
    data.mkdir()
    for split in ("train", "valid"):
        (data / f"{split}.txt").write_bytes((text_folder / f"{split}.txt").read_bytes())
    if broken:
        (data / "test.txt").write_bytes(broken)
    done = quickstart("--data", data, "--out", tmp_path / "out")
    assert done.returncode != 0 and not (tmp_path / "out").exists()
    [line] = done.stderr.strip().splitlines()
    assert "test.txt" in line and message in line


def test_no_updates_are_refused(tmp_path):
    done = quickstart("--updates", 0, "--out", tmp_path / "out")
    assert done.returncode != 0 and not (tmp_path / "out").exists()
    assert done.stderr.strip().splitlines() == ["quickstart: --updates must be at least 1, not 0"]


def test_a_failing_command_is_named_with_the_end_of_its_log(tmp_path):
    with pytest.raises(
        commands.CommandFailed, match=r"(?s)^fairseq-train ended with exit code 2; .*log ends so:.*--arch"
    ):
        commands.run("train", ["--arch"], tmp_path / "log")


def test_logs_are_read(tmp_path):
    log = tmp_path / "log"
    start = "2026-01-01 00:00:00 | INFO | "
    log.write_text(
        f"{start}train_inner | epoch 001:     40 / 120 loss=11.153, ppl=2277.01, wps=1098.4, ups=0.54\n"
        f"{start}valid | epoch 001 | valid on 'valid' subset | loss 8.8 | ppl 444.99 | num_updates 40\n"
        f"{start}train_inner | epoch 002:     20 / 120 loss=9.153, ppl=277.01, wps=1200, ups=0.54\n"
        f"{start}train_inner | epoch 002:     40 / 120 loss=9.153, ppl=277.01, wps=1100.5, ups=0.54\n"
        f"{start}valid | epoch 002 | valid on 'valid' subset | loss 7 | ppl 1.2e+02 | num_updates 80\n"
        f"{start}valid | epoch 002 | valid on 'valid' subset | loss 7 | ppl 119.5 | num_updates 80 | best 7\n"
    )
    assert commands.validation_curve(log) == [(40, 444.99), (80, 119.5)]
    assert commands.tokens_per_second(log) == 1100.5


def test_the_whole_quickstart_and_its_second_run(text_folder, tmp_path):
    flags = ["--data", text_folder, "--updates", 4, "--out", tmp_path / "out"]
    first = quickstart(*flags)
    assert first.returncode == 0, first.stdout + first.stderr
    for method in METHODS:
        assert f"linear_lm_{method}" in first.stdout
        [row] = [line for line in first.stdout.splitlines() if line.startswith(f"│ {method} ")]
        result = json.loads((tmp_path / "out" / method / "result.json").read_text())
        assert f"{result['valid']:.2f}" in row and f"{result['test']:.2f}" in row
    assert (tmp_path / "out/valid_ppl.png").read_bytes().startswith(b"\x89PNG")
    assert not list((tmp_path / "out").glob("*.part"))

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("train.log")}
    second = quickstart(*flags)
    assert second.returncode == 0 and second.stdout.count("finished before") == len(METHODS)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [x for x in first.stdout.splitlines() if "│" in x] == [
        x for x in second.stdout.splitlines() if "│" in x
    ]
