"""Invalid arguments of commands end with a one-line error and leave no files.

A row has the command, its arguments, and a part of the message. {data} is a valid data folder, {checkpoint} a
language model, {damaged} a file that is not a checkpoint, {fine_tuned} has fine-tuning runs, and {results} is
a folder that must not be created.
"""

import errno
import io
import json
import os
import subprocess

import pytest
import torch
from support.tiny import BIN, REPOSITORY, run_here

from fairseq_lrpe.cli import COMMANDS
from fairseq_lrpe.cli import main as lrpe

OVERRIDES = [
    ("updates=!!python/object:os.system x", "should be a valid integer"),
    ("data=???", "Missing mandatory value: data"),
    ("data=/tmp/a:b", "fairseq splits the path /tmp/a:b at ':': use another folder"),
    ("--results=/tmp/a:b", "argument --results: fairseq splits the path /tmp/a:b at ':': use another folder"),
    ("kind=roberta", "lm/mini is of kind lm: use another experiment"),
    ("starts_from=nosuch", "nosuch does not exist"),
    ("starts_from=lm/quickstart", "which is not trained: `lrpe train"),
    ("grid.train.seed=[1]", "train.seed cannot be set"),
    ("train.seed=3", "train.seed cannot be set, because lrpe"),
    ("train.arch=transformer_lm", "train.arch cannot be set, because lrpe"),
    ("-- --max-update 9", "--max-update cannot be set, because lrpe"),
    ("-- --reset-optimizer", "--reset-optimizer cannot be set, because lrpe"),
    ("train.shaw_k=4", "train.shaw_k is an option of the encoding shaw, not of rope"),
    ("train.encoding=lrpe train.shaw_k=4", "train.shaw_k is an option of the encoding shaw, not of rope"),
    ("batch.totl=8", "'batch.totl' (did you mean 'batch.total'?): choose from total, per_gpu, unit"),
    ("batch.per_gpu=0", "batch.per_gpu: input should be greater than 0"),
    ("batch.per_gpu=3", "is not a multiple of one process × 3 sequences (batch.per_gpu) = 3: "),
    ("evaluations.test.lenght=9", "evaluations.test.lenght: unknown key"),  # codespell:ignore
    ("evaluations.test.context_window=256", "test.context_window must be below the 256 tokens"),
    ("evaluations.test.rope_scaling=yarn", "evaluations.test.rope_scaling needs evaluations.test.length"),
    (f"train.dropout={'[' * 2000}{']' * 2000}", "lists and mappings are nested more than 20 levels deep"),
    (f"updates={'9' * 5000}", "99…' is not a valid value: expected a number, a text, a list or a mapping"),
    (f"updates=0x{'f' * 5000}", "an integer exceeds 64 bits: use a smaller one"),
    ("train.rope_scaling=yarn:4", "yarn scaling needs the length in training, such as 512 in yarn:4:512"),
]
OPTIONS = "--cpu --results {results} data={data}"
SOFTMAX = f"--attention softmax {OPTIONS}"
TRAININGS = [
    *((f"lm/mini rope {OPTIONS} {text}", part) for text, part in OVERRIDES),
    ("../lm/mini rope", "unknown experiment '../lm/mini' (did you"),
    ("lm/mini bsae", "unknown method 'bsae' (did you mean 'base'?): `lrpe methods` lists"),
    ("lm/mini t5", "'t5' does not exist in linear attention: pass --attention softmax"),
    ("roberta/mini fox --dry-run --attention softmax", "the method 'fox' works only in causal attention"),
    ("transformer/multi30k alibi --dry-run", "the method 'alibi' works only in causal attention"),
    ("lm/mini rope --cpu --results {results} data=/nowhere", "/nowhere lacks dict.txt"),
    ("lm/mini base --results {results} --cpu --precision fp16", "--precision fp16 needs a GPU"),
    ("lm/mini base --results {results} --cpu --gpus 1 --nodes 2", "--rendezvous HOST:PORT"),
    ("lm/wikitext103 rope --dry-run --gpus 3", "128 sequences is not a multiple of 3 GPUs × 8 sequences "),
    ("lm/wikitext103 rope --dry-run --gpus 8 --nodes 4", "of 32 GPUs × 8 sequences (batch.per_gpu) = 256"),
    ("lm/books base --estimate --precision bf16", "--on v100 has no bf16: use"),
    ("lm/books base --estimate data=nowhere", "the vocabulary is not known before the data is"),
    ("speed/lm_mini rope --results {results} --cpu reference=nop", "did you mean 'nope'"),
    ("speed/lm_mini rope --results {results} --cpu -- --clip-norm 1", "use train.clip_norm=VALUE instead of"),
    (f"lm/mini shaw {SOFTMAX} train.shaw_k_after=-2", "shaw needs a k_after of at least 0"),
    (
        f"lm/mini alibi {OPTIONS} evaluations.test.rope_scaling=yarn evaluations.test.length=9",
        "alibi has no rotation angles that can be scaled: for rope scaling, use one of",
    ),
    (f"lm/transformer_xl_mini rope {SOFTMAX} evaluations.test_m0.clamp=9", "set evaluations.test_m0.clamp=0"),
    (f"lm/transformer_xl_mini xl {SOFTMAX} train.memory=state", "--memory state includes all previous pos"),
    (f"lm/transformer_xl_mini xl {SOFTMAX} batch.unit=tokens", "memory_lm needs batch.unit=sequences"),
]
CALLS = [
    (
        "generate",
        "x --prompt caf\udce9",
        "lrpe: the argument b'caf\\xe9' is not UTF-8: use names and text in",
    ),
    ("\udcff", "", "lrpe: the argument b'\\xff' is not UTF-8"),
    ("metods", "", "unknown command 'metods' (did you mean 'methods'?)"),  # codespell:ignore
    *(("train", *row) for row in TRAININGS),
    ("evaluate", "/nowhere 32", "evaluate: /nowhere is not a run folder"),
    ("table", "../lm/mini --results {results}", "unknown table '../lm/mini'"),
    (
        "table",
        "tmlr_figure2 --scale mini --results {results} data=nowhere",
        "with `lrpe prepare` or fairseq-preprocess, or override data=FOLDER; roberta/mini is skipped: ",
    ),
    ("results", "--results README.md --table quickstart", "README.md does not exist"),
    ("results", "--check README.md", "README.md contains no recorded results"),
    ("results", "--validate README.md", "README.md contains no recorded results"),
    ("results", "--write-docs README.md", "README.md contains no recorded results"),
    ("results", "--experiment lm/mini --seeds 1", "--baseline, --methods and --seeds need --table"),
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
    ("classify", "{checkpoint} {data} valid=tests", "tests is a folder: give the path of a file"),
    ("evaluate-synthetic", "{checkpoint} x a", "'a' is not JSON: pass an object such as"),
    ("evaluate-synthetic", '{checkpoint} x {{"a":{{"num_item":3}}}}', "a.num_item: unknown key"),
    ("evaluate-synthetic", "{checkpoint} x {{}}", "expected a model of synthetic_lm"),
    ("evaluate-synthetic", "{checkpoint} README.md {{}}", "README.md is not a writable folder"),
    ("bench", "train linear_lm_rop", "'linear_lm_rop' (did you mean 'linear_lm_rope'?)"),
    ("bench", f"train linear_lm_base --batch-size 1 --length {10**15}", "out of memory: try smaller sizes"),
    ("bench", "generate softmax_roberta_base", "softmax_roberta_base does not generate text"),
    ("bench", f"linear-attention --lengths {10**15}", "out of memory"),
    ("synthetic", "search --tokens-per-sample 1", "is too short for search"),
    # Even root cannot write there.
    ("train", "lm/mini rope --cpu data={data} --results=/dev/null/x", "is not a writable folder"),
    ("table", "quickstart --results {results} --plot=/proc/far/x.png", "is not a writable folder"),
    ("glue-submission", "{fine_tuned} --out=/dev/null/x/x.zip", "is not a writable folder"),
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
    *usage, last = done.stderr.strip().splitlines()
    assert done.returncode != 0 and message in last, done.stderr
    assert (not usage or usage[0].startswith("usage: ")) and not places["results"].exists(), done.stderr


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "prepare"])  # it lists the corpora
def test_usage_names_the_command(name):
    assert run_here(lrpe, name, "--help").stdout.startswith(f"usage: lrpe {name} ")


@pytest.mark.parametrize(("content", "message"), [
    ("[]", "run.json is damaged"),
    ("", "run.json is damaged"),
    ('{"kind": "lm"}', "run.json lacks the key "),
    (None, "but no settings (run.json): remove the folder"),
])  # fmt: skip
def test_damaged_run_json(content, message, places, tmp_path):
    folder = tmp_path / "lm/mini/linear_rope/seed-1"
    folder.mkdir(parents=True)
    if content is not None:
        (folder / "run.json").write_text(content)
    (folder / "evaluation.json").write_text("{}")  # marks the run as trained
    reading = [["evaluate", folder, 32], ["generate", folder]]
    for words in (
        *(reading if content is not None else ()),
        ["train", "lm/mini", "rope", "--cpu", "--results", tmp_path, f"data={places['data']}"],
    ):
        done = run_here(lrpe, *words)
        [line] = done.stderr.strip().splitlines()
        assert done.returncode == 1 and message in line
        assert content is None or (folder / "run.json").read_text() == content


def test_folder_that_cannot_be_locked(places, tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    words = ["lm/mini", "rope", "--cpu", "--results", tmp_path, f"data={places['data']}"]
    [line] = run_here(lrpe, "train", *words).stderr.strip().splitlines()
    assert f"{tmp_path}/lm/mini/linear_rope/seed-1 cannot be locked (No locks available): use " in line


@pytest.mark.parametrize("variables", [
    {"PYTHONIOENCODING": "ascii"},
    pytest.param({"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, marks=pytest.mark.slow),
])  # fmt: skip
def test_tables_in_every_locale(variables):
    environment = {**os.environ, "LC_ALL": "C", "PYTHONPATH": str(REPOSITORY), **variables}
    words = "results --results docs/results --table quickstart --format markdown".split()
    command = [BIN / "python", "-m", "fairseq_lrpe", *words]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True)
    assert done.returncode == 0 and b"\\xb1" in done.stdout, done.stderr  # ±


@pytest.mark.parametrize("words", ["train lm/mini rope", "table tmlr_table2 --scale mini --jobs 2"])
def test_invalid_numbers_of_threads_are_errors(words, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "garbage")
    done = run_here(lrpe, *words.split(), "--cpu", "--results", tmp_path / "results")
    message = "OMP_NUM_THREADS is 'garbage': set it to a number of threads, or unset it\n"
    assert done.returncode == 1 and done.stderr.endswith(f": {message}") and not list(tmp_path.iterdir())
