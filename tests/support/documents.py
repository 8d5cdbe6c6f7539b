"""Extraction of the commands and code blocks in README.md, CONTRIBUTING.md and the pages of docs."""

import re

from support.tiny import REPOSITORY

PAGES = [
    *REPOSITORY.glob("docs/*.md"),
    *REPOSITORY.glob("docs/deviations/*.md"),
    *REPOSITORY.glob("docs/results/*.md"),
]
DOCUMENTS = [REPOSITORY / "README.md", *sorted(PAGES), REPOSITORY / "CONTRIBUTING.md"]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`]+)`")
PROGRAMS = r"lrpe|bash|python|pip|sudo|sbatch|torchrun|fairseq-[\w-]+|\.venv/bin/\w+|[\w/]+\.sh"
COMMAND = re.compile(rf"(?:\w+=\S+ +)*(?:{PROGRAMS}) +\S")
SHELL = ("", "bash", "sh", "shell", "console")


def blocks(*languages):
    found = (pair for document in DOCUMENTS for pair in BLOCK.findall(document.read_text()))
    return [text for language, text in found if language in languages]


def block(language, part):
    """Returns the only code block in a language that contains ``part``."""
    [found] = [text for text in blocks(language) if part in text]
    return found


def commands(documents=DOCUMENTS):
    """Returns the distinct shell commands in fenced blocks and inline code, as lines without comments."""
    found = []
    for document in documents:
        text = document.read_text()
        for match in re.finditer(f"{BLOCK.pattern}|{INLINE.pattern}", text, BLOCK.flags):
            language, block, inline = match.groups()
            if inline:
                lines = [inline.replace("\n", " ")]
            else:
                lines = block.replace("\\\n", " ").splitlines() if language in SHELL else []
            found += [re.sub(r"\s#.*", "", line) for line in lines if COMMAND.match(line)]
    return list(dict.fromkeys(" ".join(line.split()) for line in found))
