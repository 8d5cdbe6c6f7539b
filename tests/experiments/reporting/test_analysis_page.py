"""The examples in Python of docs/analysis.md."""

import pandas as pd
from support.documents import block
from support.tiny import REPOSITORY


def test_examples(monkeypatch, capsys):
    monkeypatch.chdir(REPOSITORY)
    names = {}
    exec(block("python", "by_method = recall.groupby"), names)
    best = names["by_method"]["mean"].max()
    assert 90 < best <= 100 and "softmax" in capsys.readouterr().out
    exec(block("python", "wide = recall.pivot_table"), names)
    wide = names["wide"]
    assert list(wide.columns) == ["linear", "softmax"]
    assert isinstance(wide, pd.DataFrame) and {"rope", "nope"} <= set(wide.index)
