"""Numbers that the documentation quotes are compared with what they count, and with the recorded results."""

import csv
import json
import re
import statistics
from functools import cache

import pytest
from support.tiny import REPOSITORY, run_here

from fairseq_lrpe.cli import report
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.execution import slurm
from fairseq_lrpe.methods import ATTENTIONS

RECORDED = REPOSITORY / "docs/results"
NUMBERS = {"two": 2, "three": 3, "four": 4, "five": 5, "half a": 0.5, "one": 1, "a": 1, "ten": 10}


@cache
def measured(name):
    """Returns the recorded numbers of an experiment's file as dictionaries."""
    lines = []
    for attention in ATTENTIONS:
        path = RECORDED / f"measurements/{name}-{attention}.csv"
        if path.exists():
            with open(path, newline="") as file:
                lines += csv.DictReader(file)
    return lines


@cache
def settings(name):
    lines = (RECORDED / f"settings/{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def recorded_runs():
    names = sorted(path.stem for path in (RECORDED / "settings").glob("*.jsonl"))
    return sum(len(settings(name)) for name in names)


@cache
def load(table):
    return Table(table)


def rows(table):
    """Returns the number of models of a table that are trained, by attention and row."""
    return len({(cell.attention, cell.row) for cell in load(table).cells if cell.runs})


def names(table):
    return len({cell.row for cell in load(table).cells})


def seeds(table):
    [number] = {len({run.seed for run in cell.runs}) for cell in load(table).cells if cell.runs}
    return number


def corpora(table):
    return len({experiment.cfg.data for experiment in load(table).experiments.values()})


def tables_with_scale(scale):
    paths = (REPOSITORY / "configs/tables").glob("*.yaml")
    return sum(bool(re.search(rf"\b{scale}: \w+/\w+", path.read_text())) for path in paths)


def pinned(package):
    text = (REPOSITORY / "constraints.txt").read_text()
    return re.search(rf"^{package}==(\S+)", text, re.MULTILINE)[1]


def values_of_seeds(name, attention, method, evaluation, metric, changes=""):
    """Returns the values of the seeds of a method with the settings of its table."""
    key = (attention, method, evaluation, metric, changes)
    columns = ("attention", "method", "evaluation", "metric", "changes")
    return [
        float(line["value"]) for line in measured(name) if tuple(line[column] for column in columns) == key
    ]


def perplexities(attention, method, length):
    """Returns the perplexities of the seeds of a method at a multiple of the training length."""
    return values_of_seeds("lm-extrapolation_mini", attention, method, f"test_x{length}", "perplexity")


def mean_perplexity(attention, method, length):
    return f"{statistics.mean(perplexities(attention, method, length)):.2f}"


def recalled(method, changes="", attention="linear"):
    found = values_of_seeds("synthetic_lm-mqar_mini", attention, method, "pairs_16", "accuracy", changes)
    return f"{statistics.mean(found):.1f}"


def searched(method):
    """Returns the measured and the published loss of a method in RoPER's search at its published size."""
    [measured] = values_of_seeds("synthetic_lm-search", "softmax", method, "test", "nats")
    [cell] = [
        cell
        for cell in load("roper").cells
        if (cell.column, cell.method) == ("search", method) and cell.published
    ]
    return f"{measured:.4f}", f"{cell.published[0]:.4f}"


QUOTED = [
    # (file, pattern whose groups are numbers, function that returns what they should be)
    (
        "README.md",
        r"(\S+)\s+with GLA's gates and (\S+) with ALiBi \(NoPE: (\S+)\)",
        lambda: [mean_perplexity("linear", name, 16) for name in ("gla", "alibi", "nope")],
    ),
    (
        "README.md",
        r"LRPE with a decay rises from (\S+) to (\S+), and RoPE from (\S+) to (\S+)\.",
        lambda: [mean_perplexity("linear", name, n) for name in ("lrpe_decay", "rope") for n in (1, 16)],
    ),
    (
        "README.md",
        r"the best\s+has (\S+) instead of (\S+)\), .* RoPE with learned angles has (\S+)\. ",
        lambda: [mean_perplexity("linear", name, 1) for name in ("tmlr_type1", "rope", "rope_mixed")],
    ),
    (
        "docs/findings.md",
        r"In linear attention, at the training length, (\d+) of (\d+) types of LRPE with learned angles .*, "
        r"and (\d+) of (\d+) types without",
        lambda: [4, 4, 0, 5],  # as the README says
    ),
    (
        "docs/findings.md",
        r"In softmax attention, at the training length, (\d+) of 4 types of LRPE .*, and (\d+) of 5 types",
        lambda: [0, 0],  # as the README says
    ),
    (
        "README.md",
        r"it finds (\S+)% of the values with RoPE, (\S+)% if\s+only every second layer has RoPE, "
        r"and (\S+)% with LRPE and a decay\. Softmax attention finds (\S+)% and (\S+)% with the first two\.",
        lambda: [
            recalled("rope"),
            recalled("rope", "train.encoding_interval=2"),
            recalled("lrpe_decay"),
            recalled("rope", attention="softmax"),
            recalled("rope", "train.encoding_interval=2", attention="softmax"),
        ],
    ),
    (
        "README.md",
        r"RoPE has (\S+) nats \(published: (\S+)\) and RoPER (\S+) \((\S+)\)",
        lambda: [*searched("rope"), *searched("roper")],
    ),
    ("README.md", r"all (\d+) models\]", lambda: [rows("extrapolation")]),
    ("README.md", r"trains (\w+) small\s+language models", lambda: [rows("quickstart")]),
    ("docs/experiments.md", r"`imdb_lm`, which (\w+) tables have", lambda: [tables_with_scale("small")]),
    ("docs/experiments.md", r"`quickstart` \| (\d+) small", lambda: [rows("quickstart")]),
    (
        "docs/experiments.md",
        r"language models: (\d+) methods × (\d+) seeds × (\d+) corpora",
        lambda: [rows("tmlr_table2"), seeds("tmlr_table2"), corpora("tmlr_table2")],
    ),
    (
        "docs/experiments.md",
        r"DeiT-small: (\d+) models × (\d+) seeds",
        lambda: [rows("tmlr_table3"), seeds("tmlr_table3")],
    ),
    (
        "docs/experiments.md",
        r"Long-Range Arena: (\d+) methods × (\d+) tasks × (\d+) seeds",
        lambda: [rows("tmlr_table4"), corpora("tmlr_table4"), seeds("tmlr_table4")],
    ),
    (
        "docs/experiments.md",
        r"every Λ: (\d+) pairs × (\d+) seeds",
        lambda: [len(load("tmlr_table5").runs()) // seeds("tmlr_table5"), seeds("tmlr_table5")],
    ),
    (
        "docs/experiments.md",
        r"relative to Base: (\d+) and (\d+) models",
        lambda: [rows("tmlr_table6"), rows("iclr_table9")],
    ),
    (
        "docs/experiments.md",
        r"language models: (\d+) and (\d+) models × (\d+) seeds",
        lambda: [rows("iclr_table2"), rows("iclr_table5"), seeds("iclr_table2")],
    ),
    (
        "docs/experiments.md",
        r"RoBERTa: (\d+) and (\d+) models",
        lambda: [rows("iclr_table3"), rows("iclr_table8")],
    ),
    (
        "docs/experiments.md",
        r"English to German: (\d+) models × (\d+) seeds",
        lambda: [rows("iclr_table4"), seeds("iclr_table4")],
    ),
    (
        "docs/experiments.md",
        r"text classification: (\d+) methods.*?× (\d+) seeds",
        lambda: [rows("lfhc_table1"), seeds("lfhc_table1")],
    ),
    (
        "docs/experiments.md",
        r"question generation: (\d+) methods.*?× (\d+) seeds",
        lambda: [rows("lfhc_table2"), seeds("lfhc_table2")],
    ),
    (
        "docs/experiments.md",
        r"Transformer-XL: (\d+) methods.*?× (\d+) seeds",
        lambda: [rows("lfhc_table3"), seeds("lfhc_table3")],
    ),
    (
        "docs/experiments.md",
        r"algorithmic tasks: (\d+) models × (\d+) seeds",
        lambda: [rows("roper"), seeds("roper")],
    ),
    ("docs/experiments.md", r"RoPER's language model: (\d+) models", lambda: [rows("roper_wikipedia")]),
    (
        "docs/experiments.md",
        r"ours: (\d+) encodings and positions, (\d+) models",
        lambda: [names("extrapolation"), rows("extrapolation")],
    ),
    (
        "docs/trained_models.md",
        r"# (\d+) models × (\d+) seeds",
        lambda: [rows("extrapolation"), seeds("extrapolation")],
    ),
    ("docs/install.md", r"the build of torch (\S+) from", lambda: [pinned("torch")]),
    (
        "docs/cluster.md",
        r"requests (\w+) CPUs per GPU for reading data and has a time limit of (\d+) hours",
        lambda: [slurm.CPUS_PER_GPU, int(slurm.DEFAULTS["time"].split(":")[0])],
    ),
    (
        "docs/cluster.md",
        r"(\w+) minutes before the time limit, SLURM sends",
        lambda: [int(slurm.DEFAULTS["signal"].split("@")[1]) // 60],
    ),
    ("docs/analysis.md", r"for the ([\d,]+) runs that are recorded", lambda: [recorded_runs()]),
]


@pytest.mark.parametrize(("file", "pattern", "expected"), QUOTED, ids=[pattern for _, pattern, _ in QUOTED])
def test_quoted_numbers(file, pattern, expected):
    [found] = re.finditer(pattern, (REPOSITORY / file).read_text())
    quoted = [NUMBERS.get(text.lower(), text) for text in found.groups()]
    assert [str(number).replace(",", "") for number in quoted] == [str(number) for number in expected()]


def test_readme_shows_the_recorded_quickstart():
    pattern = r"^\| attention \| method \| test perplexity \| tokens/s \|\n(?:\|.*\n)+"
    shown = re.search(pattern, (REPOSITORY / "README.md").read_text(), re.MULTILINE)[0]
    # The page says once what each cell of the README says: one seed.
    assert shown.replace(" (1)", "") in (RECORDED / "quickstart.md").read_text()


def durations():
    """Yields (file of records, quoted seconds) of the small configurations that name a duration."""
    for path in sorted((REPOSITORY / "configs").glob("*/*_mini.yaml")):
        first = path.read_text().split("\ndefaults", 1)[0]
        found = re.search(r"[:;] ([\w ]+?) (minute|second)s? on a CPU core", first)
        if found and path.parent.name != "speed":  # the durations of measurements of speed are not recorded
            number = float(NUMBERS.get(found[1], found[1]))
            yield f"{path.parent.name}-{path.stem}", number * (60 if found[2] == "minute" else 1)


@pytest.mark.parametrize(("name", "quoted"), durations())
def test_durations_of_small_configurations(name, quoted):
    """A quoted duration is the median of the recorded runs within a factor of 1.4."""
    median = statistics.median(run["seconds"] for run in settings(name))
    assert quoted / 1.4 <= median <= quoted * 1.4


@pytest.mark.exhaustive
@pytest.mark.slow
def test_size_of_the_report(tmp_path):
    out = tmp_path / "report.html"
    done = run_here(report.main, "--results", RECORDED, "--out", out)
    assert done.returncode == 0, done.stderr
    text = (REPOSITORY / "docs/analysis.md").read_text()
    [plotly, recorded] = re.search(r"It has (\d+) MB.*?and (\d+) MB for the", text, re.DOTALL).groups()
    assert round(out.stat().st_size / 1e6) == int(recorded)
    library = re.search(r"<script>.*?</script>", out.read_text(), re.DOTALL)[0]
    assert round(len(library.encode()) / 1e6) == int(plotly)
