"""Invalid arguments of commands end with a one-line error and leave no files.

A row has the command, its arguments, and a part of the message. {data} is a valid data folder, {checkpoint} a
language model, {damaged} a file that is not a checkpoint, {fine_tuned} has fine-tuning runs, and {results} is
a folder that must not be created.
"""

import io
import json

import pytest
import torch
from support.tiny import run_here

from fairseq_lrpe.cli import COMMANDS
from fairseq_lrpe.cli import main as lrpe

OVERRIDES = [
    ("updates=!!python/object:os.system x", "should be a valid integer"),
    ("data=???", "Missing mandatory value: data"),
    ("kind=roberta", "lm/mini is of kind lm: use another experiment"),
    ("starts_from=nosuch", "nosuch does not exist"),
    ("starts_from=lm/quickstart", "which is not trained: `lrpe train"),
    ("grid.train.seed=[1]", "train.seed cannot be set"),
]
TRAIN = "lm/mini rope --cpu --results {results} data={data}"
# Even root cannot write there.
OUTPUTS = [
    ("train", "lm/mini rope --cpu data={data} --results=/dev/null/x", "is not a writable folder"),
    ("table", "quickstart --results {results} --plot=/proc/far/x.png", "is not a writable folder"),
    ("glue-submission", "{fine_tuned} --out=/dev/null/x/x.zip", "is not a writable folder"),
]
CALLS = [
    *(("train", f"{TRAIN} {text}", part) for text, part in OVERRIDES),
    ("train", "../lm/mini rope", "unknown experiment '../lm/mini' (did you"),
    ("train", "lm/mini t5", "'t5' does not exist in linear attention: pass --attention softmax"),
    ("metods", "", "unknown command 'metods' (did you mean 'methods'?)"),
    ("train", "lm/mini rope --cpu --results {results} data=/nowhere", "/nowhere lacks dict.txt"),
    ("train", "lm/mini base --results {results} --cpu --precision fp16", "--precision fp16 needs a GPU"),
    ("train", "lm/mini base --results {results} --cpu --gpus 1 --nodes 2", "--rendezvous HOST:PORT"),
    ("train", "speed/lm_mini rope --results {results} --cpu reference=nop", "did you mean 'nope'"),
    (
        "train",
        "lm/mini shaw --attention softmax --cpu --results {results} data={data} train.shaw_k_after=-2",
        "shaw needs a k_after of at least 0",
    ),
    ("evaluate", "/nowhere 32", "evaluate: /nowhere is not a run folder"),
    (
        "train",
        f"{TRAIN} evaluations.test.rope_scaling=yarn",
        "evaluations.test.rope_scaling needs evaluations.test.length",
    ),
    (
        "train",
        "lm/mini alibi --cpu --results {results} data={data} evaluations.test.rope_scaling=yarn "
        "evaluations.test.length=32",
        "alibi has no rotation angles that can be scaled: for rope scaling, use one of",
    ),
    (
        "train",
        f"{TRAIN} train.rope_scaling=yarn:4",
        "yarn scaling needs the length in training, such as 512 in yarn:4:512",
    ),
    ("table", "../lm/mini --results {results}", "unknown table '../lm/mini'"),
    ("results", "--results README.md --table quickstart", "README.md does not exist"),
    ("results", "--results {data} --experiment lm/mini --plot x.doc", "must be a file that ends in"),
    ("table", "quickstart --results {results} --methods data=x", "the table has no method 'data=x'"),
    ("finetune", "{checkpoint} RTE", "expected linear_roberta_... or softmax_roberta_..."),
    ("glue-submission", "README.md", "README.md has no finished runs"),
    ("generate", "{damaged}", "(it contains no dictionary)"),
    ("generate", "{checkpoint} --temperature -1", "temperature must be a number"),
    ("generate", "{checkpoint} --top-p 0", "top_p must be above 0 and at most 1, not 0.0"),
    ("classify", "tests {data} valid=x", "tests is a folder without a run"),
    ("classify", "{checkpoint} {data}", "was trained on the task language_modeling"),
    ("classify", "{checkpoint} {data} valid", "expected SPLIT=FILE"),
    ("evaluate-synthetic", "{checkpoint} x a:num_item=3", "unknown size 'num_item' (did you mean"),
    ("evaluate-synthetic", "{checkpoint} x a:num_items=many", "invalid evaluation value: 'a:num_items=many'"),
    ("evaluate-synthetic", "{checkpoint} x test:", "expected a model of synthetic_lm"),
    ("evaluate-synthetic", "{checkpoint} x :num_items=4", "':num_items=4' has no name: expected NAME:SIZE"),
    ("evaluate-synthetic", "{checkpoint} README.md test:", "README.md is not a writable folder"),
    ("synthetic", "search --tokens-per-sample 1", "is too short for search"),
    *OUTPUTS,
    ("glue-submission", "{fine_tuned} --out {data}", "is a folder: give the path of a file"),
]


@pytest.fixture(scope="module")
def places(checkpoint, data_bin, tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    torch.save([1, 2], folder / "list.pt")
    (folder / "glue" / "task=RTE" / "seed-1").mkdir(parents=True)
    config = {"task": "RTE", "data": str(folder), "evaluate": {"checkpoint": "best.pt"}}
    files = {
        "evaluation.json": {"finished": "2020-01-01", "evaluations": {"valid": {"score": 1.0}}},
        "run.json": {"kind": "glue", "config": config},
        "checkpoints/best.pt": None,
    }
    for name, content in files.items():
        (folder / "glue/task=RTE/seed-1" / name).parent.mkdir(exist_ok=True)
        (folder / "glue/task=RTE/seed-1" / name).write_text(json.dumps(content))
    places = {"checkpoint": checkpoint, "damaged": folder / "list.pt", "fine_tuned": folder / "glue"}
    return {**places, "data": data_bin, "results": folder / "results"}


@pytest.mark.parametrize(("command", "words", "message"), CALLS)
def test_invalid_arguments(command, words, message, places, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("a sentence\n"))
    first, *texts = words.split(" updates=!!")  # the override contains a space
    words = [*first.format(**places).split(), *(f"updates=!!{text}" for text in texts)]
    done = run_here(lrpe, command, *words)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0 and message in last, done.stderr
    assert "Traceback" not in done.stderr and not places["results"].exists()


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "prepare"])  # it lists the corpora
def test_usage_names_the_command(name):
    assert run_here(lrpe, name, "--help").stdout.startswith(f"usage: lrpe {name} ")


@pytest.mark.parametrize("content", ["[]", ""])
def test_damaged_run_json(content, places, tmp_path):
    folder = tmp_path / "lm/mini/linear_rope/seed-1"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(content)
    (folder / "evaluation.json").write_text("{}")  # marks the run as trained
    for words in (
        ["evaluate", folder, 32],
        ["train", "lm/mini", "rope", "--cpu", "--results", tmp_path, f"data={places['data']}"],
    ):
        done = run_here(lrpe, *words)
        [line] = done.stderr.strip().splitlines()
        assert done.returncode == 1 and "run.json is damaged" in line
        assert (folder / "run.json").read_text() == content
