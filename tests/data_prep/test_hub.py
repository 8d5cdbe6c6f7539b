"""Published data sets as Parquet files of the hub give the same binaries as the published files."""

import json

import pyarrow
import pyarrow.parquet
import pytest
from small_corpora import classified, error_of, run

from data_prep.fetch import SOURCES
from data_prep.hub import find_tables
from fairseq_lrpe.data.glue_tasks import TASKS

ON_HUB = {"train": "train", "valid": "validation", "test": "test"}
CLASSES = {"MNLI": ["entailment", "neutral", "contradiction"], "RTE": ["entailment", "not_entailment"]}
GLUE_ROWS = {"train": 7, "validation": 5, "test": 3}
COLUMNS = {"MNLI": ["premise", "hypothesis"], "CoLA": ["sentence"]}


def write_table(folder, split, columns, shards=1):
    """Writes {column: values} as Parquet files with the names that the hub gives to shards."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pyarrow.table(columns)
    size = -(-len(table) // shards)
    for i in range(shards):
        path = folder / f"{split}-{i:05}-of-{shards:05}.parquet"
        pyarrow.parquet.write_table(table.slice(i * size, size), path)


def binaries(data):
    """Returns {name: content} of the files of prepared data, without the record of its source."""
    found = {}
    for path in sorted(data.rglob("*")):
        if path.is_file() and path.name not in ("source.json", "preprocess.log"):
            found[str(path.relative_to(data))] = path.read_bytes()
    return found


def assert_equal_binaries(corpus, folder, *options):
    """Prepares folder/published and folder/hub, and compares the binaries."""
    found = []
    for name in ("published", "hub"):
        found.append(binaries(run(corpus, folder / name, folder / f"{name}-out", *options)))
    assert found[0] == found[1] and any(name.endswith(".bin") for name in found[0])
    assert not list((folder / "hub-out").glob("*.part"))


def test_wikitext(in_process, tmp_path):
    (tmp_path / "published").mkdir()
    for split, name in ON_HUB.items():
        lines = []
        for i in range(6):
            lines += [" ", f" = {split} {i} = ", " ", f" The <unk> of {split} is a thing , a thing . ", " "]
        text = "".join(f"{line}\n" for line in lines)
        (tmp_path / f"published/wiki.{split}.tokens").write_text(text)
        rows = ["" if line == " " else f"{line}\n" for line in lines]
        write_table(tmp_path / "hub", name, {"text": rows}, shards=2)
    assert_equal_binaries("wikitext_mini_chars", tmp_path)


def test_pairs_of_sentences(in_process, tmp_path):
    (tmp_path / "published").mkdir()
    for split, name in ON_HUB.items():
        pairs = {"en": [], "de": []}
        for i in range(20):
            pairs["en"].append(f'The {split} man said: "{i} dogs run"!')
            pairs["de"].append(f"Der Mann von {split} sagte: „{i} Hunde rennen“!")
        for language, lines in pairs.items():
            text = "".join(f"{line}\n" for line in lines)
            (tmp_path / f"published/{split}.{language}").write_text(text)
        write_table(tmp_path / "hub", name, pairs)
    assert_equal_binaries("multi30k", tmp_path, "--bpe-types", 40)


def test_questions(tmp_path):
    """Version 2.0, in which some questions have no answer."""
    (tmp_path / "published").mkdir()
    for split, file in SOURCES["squad"]["versions"]["2.0"]["files"].items():
        paragraphs = []
        rows = {"id": [], "title": [], "context": [], "question": [], "answers": []}
        for i in range(8):
            context = f"In {1000 + i} the Normans lived in town {i}, far away from {split}."
            answer = {"text": "the Normans", "answer_start": context.index("the")}
            entries = []
            for k, answers in enumerate(([answer], [answer, answer], [])):
                question = f"Who lived there in {1000 + i}, {k}?"
                entries.append({"question": question, "answers": answers, "is_impossible": not answers})
                texts = [found["text"] for found in answers]
                starts = [found["answer_start"] for found in answers]
                row = (f"{i}-{k}", "a", context, question, {"text": texts, "answer_start": starts})
                for column, value in zip(rows.values(), row, strict=True):
                    column.append(value)
            paragraphs.append({"context": context, "qas": entries})
        content = json.dumps({"data": [{"paragraphs": paragraphs[:5]}, {"paragraphs": paragraphs[5:]}]})
        (tmp_path / "published" / file["name"]).write_text(content)
        write_table(tmp_path / "hub", ON_HUB[split], rows, shards=3)
    assert_equal_binaries("squad", tmp_path, "--pieces", 100)


def glue_values(name, split, count):
    """Returns {column: values} of a split as on the hub; labels of the test set are -1."""
    task = TASKS[name]
    rows = {column: [] for column in COLUMNS.get(name, ["sentence1", "sentence2"])}
    for column, values in rows.items():
        values += [f'{split} {column} {i} "quoted, naïve' for i in range(count)]
    if name == "STS-B":
        labels = pyarrow.array([(0.25 * i) % 5 + 0.2 for i in range(count)], pyarrow.float32())
    else:
        labels = [i % len(task.labels) for i in range(count)]
    return {**rows, "label": [-1] * count if split.startswith("test") else labels, "idx": list(range(count))}


def published_label(name, value):
    if name == "STS-B":
        return f"{value.as_py():.3f}"
    return CLASSES.get(name, ["0", "1"])[value]


@pytest.mark.parametrize(
    "name, folder", [("CoLA", "cola"), ("STS-B", "stsb"), ("MNLI", "MNLI"), ("RTE", "rte")]
)
def test_glue(name, folder, tiny_bpe, in_process, tmp_path):
    """A folder may have the hub's name of the task."""
    task = TASKS[name]
    (tmp_path / "published" / name).mkdir(parents=True)
    for split, file in task.files.items():
        on_hub = file.removesuffix(".tsv").replace("dev", "validation")
        values = glue_values(name, on_hub, GLUE_ROWS[on_hub.split("_")[0]])
        write_table(tmp_path / "hub" / folder, on_hub, values)
        sentences = list(zip(*list(values.values())[: len(task.sentences)], strict=True))
        lines = ["\t".join(["index", *task.sentences])]
        rows = [["0", *row] for row in sentences]
        if split in task.labeled:
            labels = [published_label(name, value) for value in values["label"]]
            rows = [[*row, label] for row, label in zip(rows, labels, strict=True)]
            lines = ["\t".join(["index", *task.sentences, task.label])]
            if name == "CoLA":
                lines = []
                rows = [["gj04", label, "", *row] for row, label in zip(sentences, labels, strict=True)]
        lines += ["\t".join(row) for row in rows]
        (tmp_path / "published" / name / file).write_text("".join(f"{line}\n" for line in lines))
    found = []
    for source in ("published", "hub"):
        out = tmp_path / f"{source}-out"
        run("glue", tmp_path / source, out, "--bpe", tiny_bpe, name)
        found.append(binaries(out / name / "bin"))
    assert found[0] == found[1]


def test_reviews(tmp_path):
    """The hub has no names of the reviews, which decide the order in the published archive."""
    for split in ("train", "test"):
        texts = [f"A {'good' if i % 2 else 'bad'} {split} film {i}<br />." for i in range(24)]
        write_table(tmp_path / "hub", split, {"text": texts, "label": [i % 2 for i in range(24)]})
    data = run("imdb", tmp_path / "hub", tmp_path / "out")
    rows = [*classified(data, "train"), *classified(data, "valid")]
    assert len(rows) == 24
    for text, label in rows:
        assert ("good" in text.split()) == (label == "pos")


@pytest.mark.parametrize("corpus, splits, columns, message", [
    ("wikitext_mini", ["train"], {"text": ["a"]}, "--from has no Parquet files of the split validation"),
    ("wikitext_mini", ["validation", "test"], {"x": ["a"]}, "has no column 'text', only x: pass the"),
    ("multi30k", ["train"], {"en": ["a"]}, "has no column 'de', only en: pass the published data set"),
    ("imdb", ["train", "test"], {"text": ["a"], "label": [2]}, "IMDB has the class 2: expected 0 to 1"),
])  # fmt: skip
def test_incomplete_tables(corpus, splits, columns, message, tmp_path):
    for split in splits:
        write_table(tmp_path / "hub", split, columns)
    assert message in error_of(corpus, "--from", tmp_path / "hub", "--out", tmp_path / "out")
    assert not list((tmp_path / "out").glob("*"))


def test_names_of_splits(tmp_path):
    """Longer names of splits are not taken for shorter ones; other Parquet files are ignored."""
    for name in ("test_matched-00000-of-00001", "validation", "train-1", "train-0", "other"):
        (tmp_path / f"{name}.parquet").touch()
    found = {}
    for split, paths in find_tables(tmp_path).items():
        found[split] = [path.stem for path in paths]
    assert found == {
        "test_matched": ["test_matched-00000-of-00001"],
        "train": ["train-0", "train-1"],
        "validation": ["validation"],
    }
