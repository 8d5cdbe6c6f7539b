"""Every paper that a method, an encoding or a kind of token positions cites is in docs/references.md."""

import inspect
import re

from support.tiny import REPOSITORY

from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.methods import METHODS
from fairseq_lrpe.positions import POSITIONS


def test_cited_papers_are_listed():
    page = (REPOSITORY / "docs/references.md").read_text()
    texts = [inspect.getdoc(cls) for cls in (*ENCODINGS.values(), *POSITIONS.values())]
    texts += [method.source for method in METHODS.values()]
    cited = re.findall(r"\b[A-Z]\w+(?: et al\.| and [A-Z]\w+)? \d{4}\b", " ".join(" ".join(texts).split()))
    assert "Press et al. 2022" in cited
    assert not {paper for paper in cited if f"| {paper} |" not in page and f"| LRPE, {paper}" not in page}
