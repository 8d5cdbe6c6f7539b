"""Extends mkdocs and mkdocstrings for the documentation site (mkdocs.yml)."""

import re
from pathlib import Path

from griffe import Extension
from mkdocs.structure.files import File

from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.experiments.reporting import atlas
from fairseq_lrpe.positions import POSITIONS

TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "LICENSE")
REGISTRIES = {"api/encodings.md": ENCODINGS, "api/positions.md": POSITIONS}
SOURCE = re.compile(
    r"\[(?P<text>[^\]]+)\]\((?P<file>fairseq_lrpe/[\w/]+\.py)\)"
)  # the site has no source files
OPTIONS = {f"{cls.__module__}.{cls.__name__}": cls.option_help for cls in ENCODINGS.values()}


def on_files(files, config):
    """Adds the files of the top folder, and the atlas of encodings, to those of docs/."""
    root = Path(config.config_file_path).parent
    page = atlas.render(root / "docs/results", home="index.html")
    files.append(File.generated(config, "atlas.html", content=page))
    for name in TOP:
        files.append(File.generated(config, name, abs_src_path=str(root / name)))


def on_page_markdown(markdown, page, **_):
    """Adapts a page to the site.

    Links between docs/ and the top folder, and from there to code, are rewritten, the list of sections is
    removed, because the theme shows one, and the classes of a registry are appended to its page.
    """
    name = page.file.src_uri
    up = "../" * name.count("/")
    if name in TOP:
        markdown = SOURCE.sub(_link_to_api, markdown)
    markdown = markdown.replace("](docs/" if name in TOP else f"]({up}../", f"]({up}")
    markdown = re.sub(r"^(- \[.+\]\(#.+\)\n)+", "", markdown, count=1, flags=re.MULTILINE)
    for key, cls in sorted(REGISTRIES.get(name, {}).items()):
        options = f"{{heading_level: 3, heading: {key}, toc_label: {key}}}"
        markdown += f"\n\n::: {cls.__module__}.{cls.__name__}\n    options: {options}"
    return markdown


def _link_to_api(match):
    """Returns the link to a class of a registry in the API reference, or the text of a link to other code."""
    for page, registry in REGISTRIES.items():
        cls = registry.get(match["text"].strip("`"))
        if cls is not None and cls.__module__.replace(".", "/") + ".py" == match["file"]:
            return f"[{match['text']}]({page}#{cls.__module__}.{cls.__name__})"
    return match["text"]


class Docstrings(Extension):
    """Turns cross-references in docstrings into links, and adds an encoding's options to its docstring."""

    def on_object(self, *, obj, **_):
        if obj.docstring:
            obj.docstring.value = re.sub(r":\w+:`([\w.]+)`", r"[`\1`][\1]", obj.docstring.value)
            options = OPTIONS.get(obj.path)
            if options:
                obj.docstring.value += "\n\nArgs:"
                for name, text in options.items():
                    obj.docstring.value += f"\n    {name}: {text}"
