"""The documentation site: mkdocs builds it without warnings, its links are valid, and it needs no network."""

import re
from collections import defaultdict
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest
from support.tiny import BIN, REPOSITORY, run_command

from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.positions import POSITIONS

pytestmark = pytest.mark.slow


class Page(HTMLParser):
    """A page: its tags, anchors and links [(tag, URL)], and the text below each heading's anchor."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.anchors, self.links = set(), set(), []
        self.text, self.heading = defaultdict(str), None
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.add(tag)
        self.anchors |= {attrs.get("id"), attrs.get("name")} - {None}
        self.links += [(tag, attrs[name]) for name in ("href", "src") if attrs.get(name)]
        if tag in ("h1", "h2", "h3", "h4", "h5"):
            self.heading = attrs.get("id")

    def handle_data(self, data):
        self.text[self.heading] += data


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Returns the folder of the site, built from the repository."""
    folder = tmp_path_factory.mktemp("site")
    words = "-m mkdocs build --strict --site-dir".split()  # --quiet hides warnings
    hidden = {"NO_MKDOCS_2_WARNING": "1"}  # an announcement of the theme
    done = run_command(BIN / "python", *words, folder, **hidden)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """Returns {path of an HTML file: its Page}."""
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def test_every_page_is_in_the_site(site, pages):
    """The notes on tables are parts of these tables' pages, and the atlas is an HTML file in docs."""
    sources = [path.relative_to(REPOSITORY / "docs") for path in (REPOSITORY / "docs").rglob("*.md")]
    expected = {site / path.with_suffix(".html") for path in sources if path.parent.name != "notes"}
    expected |= {site / f"{name}.html" for name in ("index", "CONTRIBUTING", "CHANGELOG", "404", "atlas")}
    assert expected == set(pages)


def test_links_and_images_lead_somewhere(site, pages):
    for path, page in pages.items():
        for tag, link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                assert tag == "a", f"{path}: {tag} loads {link}"
                continue
            base = site if url.path.startswith("/") else path.parent
            target = (base / unquote(url.path).lstrip("/")).resolve() if url.path else path
            assert target.is_file(), f"{path}: {link}"
            if url.fragment and target.suffix == ".html":
                assert unquote(url.fragment) in pages[target].anchors, f"{path}: {link}"


@pytest.mark.parametrize(("name", "registry"), [("encodings", ENCODINGS), ("positions", POSITIONS)])
def test_reference_has_every_registered_class(site, pages, name, registry):
    page = pages[site / f"api/{name}.html"]
    for key, cls in registry.items():
        if not cls.__module__.startswith("fairseq_lrpe."):
            continue  # registered by another test
        text = page.text[f"{cls.__module__}.{cls.__name__}"]
        assert text.split()[:1] == [key]
        for option, help_text in getattr(cls, "option_help", {}).items():
            assert option in text and " ".join(help_text.split()) in " ".join(text.split()), key


def test_tables_in_folded_parts_are_tables(site, pages):
    for path in (site / "index.html", site / "results/extrapolation.html"):
        assert not [text for text in pages[path].text.values() if "\n| " in text], path


def test_markup_of_docstrings_is_converted(pages):
    for path, page in pages.items():
        if "api" in path.parts:
            assert not {"s", "em", "mask"} & page.tags, path
            assert not re.findall(r":(?:class|func|meth):|``", "".join(page.text.values())), path
