"""A published table with its experiments, and runs of it."""

import pytest
from support.tiny import write_configs, write_run

from fairseq_lrpe.experiments.definition import config_files

ROWS = ("Base", "RoPE", "Type1", "Type2", "PER", "SPE")
METHODS = ("base", "rope", "tmlr_type1", "iclr_type2", "per", "spe")
PUBLISHED = (10.0, 9.0, {"mean": 8.0, "std": 0.1}, 8.5, 9.5, 12.0)
VALID = {  # {seed: perplexity}
    "linear_base": {1: 100, 2: 102, 3: 104},
    "linear_rope": {1: 92, 2: 95, 3: 98},
    "linear_tmlr_type1": {2: 96},
    "softmax_base": {1: 50, 2: 52},
    "softmax_rope": {1: 48, 2: 47},
}


@pytest.fixture
def configs(tmp_path, monkeypatch):
    """A published table with two attentions, six rows and two columns; the second column has no runs."""
    rows = [
        {"row": row, "attention": attention, "method": method, "values": {"a_valid": value, "b_test": 7.0}}
        for attention in ("linear", "softmax")
        for row, method, value in zip(ROWS, METHODS, PUBLISHED, strict=True)
    ]
    del rows[-1]["values"]["a_valid"]  # a dash in the paper
    columns = {name: {"metric": "perplexity", "better": "lower"} for name in ("a_valid", "b_test")}
    paper_table = {"shows": "x", "columns": columns, "rows": rows}
    table = {
        "paper": "paper",
        "table": "table9",
        "title": "A <i>title</i>",
        "baseline": "base",
        "columns": {"a_valid": {"experiment": "lm/big", "mini": "lm/small", "evaluation": "valid"}},
    }
    own = [{key: row[key] for key in ("row", "attention", "method")} for row in rows]
    figure = {key: value for key, value in table.items() if key != "table"}
    flags = {"kind": "lm", "data": "x", "batch": {"total": 8, "per_gpu": 8}}
    evaluations = {"valid": {"split": "valid"}}
    files = {
        "paper/paper": {"source": "Someone (2020)", "tables": {"table9": paper_table}},
        "tables/some_table9": table,
        "tables/some_figure": figure | {"rows": own},
        "lm/big": flags | {"seeds": [1, 2, 3], "updates": 100, "evaluations": evaluations},
        "lm/small": {"defaults": "lm/big", "seeds": [1, 2]},
    }
    monkeypatch.setattr(config_files, "CONFIGS", tmp_path / "configs")
    return write_configs(tmp_path / "configs", files)


@pytest.fixture
def runs(configs, tmp_path):
    """A results folder with finished runs, and one that stopped at 40 of 100 updates."""
    folder = tmp_path / "results"
    for name, seeds in VALID.items():
        for seed, valid in seeds.items():
            write_run(folder / "lm/big" / name / f"seed-{seed}", {50: 2 * valid, 100: valid}, valid)
    # iclr_type2 has the same flags as tmlr_type2 and shares its runs.
    write_run(folder / "lm/big/linear_tmlr_type2/seed-1", {20: 300, 40: 200})
    return folder
