"""The pages of recorded results: the index, a page per table, and what they replace."""

import re

import pytest
from support.recorded import call, write
from support.tiny import REPOSITORY

from fairseq_lrpe.experiments.definition.config_files import tables
from fairseq_lrpe.experiments.reporting import measured_tables, pages

TABLES = ["quickstart", "tmlr_table2"]
RECORDED = REPOSITORY / "docs/results"
PERPLEXITIES = {"base": (40, 41, 42), "rope": (33, 34, 36), "per": (31, 32)}  # of three or two seeds


@pytest.fixture
def records(tmp_path, monkeypatch):
    """A folder with recorded runs and a note of tmlr_table2, and no other tables than ``TABLES``."""
    for method, values in PERPLEXITIES.items():
        for seed, value in enumerate(values, 1):
            write(tmp_path / "results", value, method, seed)
    monkeypatch.setattr(measured_tables, "tables", lambda: TABLES)
    folder = tmp_path / "records"
    assert call(tmp_path / "results", "--record", folder).returncode == 0
    (folder / "notes").mkdir()
    note = f"Our findings, as on [a page](../rope.md).\n\n{pages.METHOD}\n\nOur method.\n"
    (folder / "notes/tmlr_table2.md").write_text(note)
    return folder


def written(records):
    done = call(records, "--write-docs", records)
    assert done.returncode == 0, done.stderr
    return (records / "tmlr_table2.md").read_text()


@pytest.mark.slow
def test_the_pages_agree_with_the_records():
    """If this test fails, run `lrpe results --write-docs`."""
    expected = pages.pages(RECORDED)
    assert {path: path.read_text() for path in expected} == expected
    assert {path for path in RECORDED.glob("*.md") if pages.is_generated(path)} <= expected.keys()


def prose(text):
    """Returns a Markdown text without code blocks, tables, images and addresses of links."""
    for pattern in (r"^```.*?^```$", r"^\|.*?$", r"!\[.*?\]\(.*?\)"):
        text = re.sub(pattern, "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"\]\(.*?\)", "]", text)


NOTES = [*RECORDED.glob("notes/*.md")]
NOTES += [path for path in RECORDED.glob("*.md") if not pages.is_generated(path)]


@pytest.mark.parametrize("path", sorted(NOTES), ids=lambda path: path.stem)
def test_texts_written_by_hand(path):
    """They have at most 250 words, and state findings before the method."""
    text = path.read_text()
    findings, _, method = text.partition(pages.METHOD)
    assert findings.strip() and method.strip()
    assert "```" not in findings and not re.search(r"\d%?/\d+\.?\d*%?/\d", prose(text))
    assert len(prose(text).split()) <= 250
    assert path.parent == RECORDED or path.stem in tables()


def test_page_of_a_table(records):
    text = written(records)
    parts = ("Our findings, as on [a page](rope.md).", "Scale mini:", pages.METHOD, "<details")
    findings, caption, method, details = (text.index(part) for part in parts)
    assert findings < caption < method < text.index("Our method.") < details
    assert "mean ± sample standard deviation of 3 seeds, or of the number in brackets" in text
    assert "| linear | RoPE | 33.36 ± 0.20 | 34.33 ± 1.53 |" in text
    assert "| linear | PER | 32.88 ± 0.09 | **31.50 ± 0.71 (2 of 3)** |" in text
    assert "- Command: `bash scripts/table.sh tmlr_table2 --scale mini`" in text
    shown = text[details:]
    assert re.search(r"^\| linear \| RoPE \| -6.\d\d \[.+, .+\] \|", shown, re.MULTILINE)
    assert re.search(r"^\| linear \| PER \| -\d.\d\d \|", shown, re.MULTILINE)  # two seeds have no interval
    assert "no interval" not in shown and "| linear | Spearman ρ |" in shown
    assert not re.search(r"<details.*>\n<summary>.*</summary>\n\S", text)  # Markdown needs a blank line


def test_one_seed_has_no_deviation(records, tmp_path):
    for method in PERPLEXITIES:
        write(tmp_path / "one", 30.0, method)
    call(tmp_path / "one", "--record", tmp_path / "one-record")
    text = written(tmp_path / "one-record")
    assert "perplexity (lower is better), 1 of 3 seeds; bold" in text and "| 30.00 |" in text


def test_index(records):
    (records / "own.md").write_text("# A page of ours\n")
    written(records)
    index = records.with_name("records.md").read_text()
    [row] = [line for line in index.splitlines() if "tmlr_table2" in line]
    assert row.startswith("| [tmlr_table2](records/tmlr_table2.md) | ")
    assert row.endswith(" | 8 | 8 of 24 | 0 of 24 | 0 of 80 |")
    assert "| quickstart | " in index and not (records / "quickstart.md").exists()
    assert "- [A page of ours](records/own.md)" in index


def test_index_with_estimated_hours(records):
    (records / "estimated_hours.csv").write_text('table,hours\ntmlr_table2,"1,070"\n')
    written(records)
    index = records.with_name("records.md").read_text()
    assert "| rows | mini | small | full | V100 hours |" in index and " | 0 of 80 | 1,070 |" in index
    assert re.search(r"\| quickstart \| .* \| - \|\n", index) and "hours of one V100" in index
    for damaged in ("", "table,hours\ntmlr_table2\n", "name,hours\n"):
        (records / "estimated_hours.csv").write_text(damaged)
        done = call(records, "--write-docs", records)
        [line] = done.stderr.splitlines()
        assert done.returncode == 1 and "estimated_hours.csv is damaged: restore it" in line


def test_outdated_pages_are_removed(records, monkeypatch):
    written(records)
    (records / "own.md").write_text("# A page of ours\n")
    monkeypatch.setattr(measured_tables, "tables", lambda: TABLES[:-1])
    assert call(records, "--write-docs", records).returncode == 0
    assert not (records / "tmlr_table2.md").exists() and (records / "own.md").exists()
    assert "tmlr_table2" not in records.with_name("records.md").read_text()


def test_nothing_is_written_unless_all_pages_are(records):
    page, index = records / "tmlr_table2.md", records.with_name("records.md")
    page.write_text("# Written by hand\n")
    done = call(records, "--write-docs", records)
    assert done.returncode == 1 and f"{page} is not a page that this command wrote" in done.stderr
    assert page.read_text() == "# Written by hand\n" and not index.exists()
    page.unlink()
    page.with_suffix(".md.part").mkdir()  # the page cannot be written
    assert call(records, "--write-docs", records).returncode == 1
    assert not index.exists() and not page.exists() and not list(records.parent.glob("*.part"))
