"""Tests of the headings, tables of contents and links between sections of the Markdown pages."""

import re

import pytest
from support.tiny import REPOSITORY

DOCS = REPOSITORY / "docs"
RESULTS = [DOCS / "results.md", *DOCS.glob("results/*.md")]
WRITTEN = sorted({*DOCS.rglob("*.md")} - {*RESULTS, *DOCS.glob("results/*/*.md")})  # not generated
PAGES = [*sorted(REPOSITORY.glob("*.md")), *WRITTEN, *sorted(RESULTS)]
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([\w./-]*\.md)?#([^)]+)\)")
FILE_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def headings(page):
    """Returns [(level, title)] of the headings of a page."""
    found = re.findall(r"^(#+) (.+)$", CODE.sub("", page.read_text()), re.MULTILINE)
    return [(len(marks), title.strip()) for marks, title in found]


def anchor(title):
    """Returns the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_headings_and_links(page):
    shown = [(title, anchor(title)) for level, title in headings(page) if level == 2]
    anchors = [anchor(title) for _, title in headings(page)]
    assert len(anchors) == len(set(anchors))
    contents = re.findall(r"^- \[(.+)\]\(#(.+)\)$", page.read_text(), re.MULTILINE)
    assert contents in ([], shown)
    for file, target in LINK.findall(CODE.sub("", page.read_text())):
        there = (page.parent / file).resolve() if file else page
        assert target in {anchor(title) for _, title in headings(there)}, f"{file}#{target}"


@pytest.mark.parametrize("page", [*PAGES, *DOCS.glob("results/notes/*.md")], ids=lambda page: page.name)
def test_linked_files_exist(page):
    """On GitHub, too, which shows every file by itself; the site's own pages are tested in test_site.py."""
    linked = FILE_LINK.findall(CODE.sub("", page.read_text()))
    assert [name for name in linked if not (page.parent / name).exists()] == []


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_a_page_can_be_read_in_one_go(page):
    assert len(page.read_text().splitlines()) <= 300
