"""Tests of the headings, tables of contents and links between sections of the Markdown pages."""

import re
from collections import Counter

import pytest
from tiny import REPOSITORY

PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md")])
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([\w./-]*\.md)?#([^)]+)\)")


def headings(page):
    """Returns [(level, title)] of the headings of a page."""
    found = re.findall(r"^(#+) (.+)$", CODE.sub("", page.read_text()), re.MULTILINE)
    return [(len(marks), title.strip()) for marks, title in found]


def anchor(title):
    """Returns the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_headings_of_a_page_are_unique(page):
    assert not [title for title, n in Counter(anchor(title) for _, title in headings(page)).items() if n > 1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_table_of_contents_is_complete(page):
    contents = re.findall(r"^- \[(.+)\]\(#(.+)\)$", page.read_text(), re.MULTILINE)
    if contents:
        assert contents == [(title, anchor(title)) for level, title in headings(page) if level == 2]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_sections_lead_somewhere(page):
    for file, target in LINK.findall(CODE.sub("", page.read_text())):
        there = (page.parent / file).resolve() if file else page
        assert target in {anchor(title) for _, title in headings(there)}, f"{file}#{target}"
