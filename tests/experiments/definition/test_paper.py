"""The papers' published results in configs/paper."""

import pytest
from omegaconf import OmegaConf
from support.tiny import REPOSITORY

from fairseq_lrpe.config import option_flag
from fairseq_lrpe.encodings import ENCODINGS, encoding_options
from fairseq_lrpe.experiments.definition.table_settings import Paper, read_model
from fairseq_lrpe.methods import METHODS


def load(paper):
    return OmegaConf.to_container(OmegaConf.load(REPOSITORY / "configs/paper" / f"{paper}.yaml"))


@pytest.mark.parametrize("path", (REPOSITORY / "configs/paper").glob("*.yaml"), ids=lambda path: path.stem)
def test_every_table_is_well_formed(path):
    for name, table in read_model(path, Paper).tables.items():
        labels = [(row.attention, row.row) for row in table.rows]
        assert labels and len(labels) == len(set(labels)), name
        for row in table.rows:
            where = f"{name}, {row.row}"
            if row.method and row.attention:
                assert row.attention in METHODS[row.method].attentions(), where
            if row.changes:  # options of the row's own encoding
                encoding = METHODS[row.method].encoding
                flags = {option_flag(encoding, option) for option in encoding_options(ENCODINGS[encoding])}
                assert set(row.changes) <= {f"train.{flag}" for flag in flags}, where
                assert all(isinstance(x, int) and x > 0 for x in row.changes.values()), where
            assert row.values and set(row.values) <= set(table.columns), where
            numbers = [x for column in row.values for x in row.published(column) or () if x is not None]
            assert all(x > 0 for x in numbers), where


def test_numbers_agree_with_each_other():
    """Typing errors would break these relations: perplexity = 2 ** loss, and means of columns."""
    iclr, tmlr = load("lrpe_iclr")["tables"], load("lrpe_tmlr")["tables"]
    for row in iclr["table8"]["rows"]:
        values = row["values"]
        assert 2 ** values["wikitext103_valid_loss"] == pytest.approx(values["wikitext103_valid"], rel=0.01)
    for row in tmlr["table4"]["rows"]:
        *tasks, average = row["values"].values()
        assert sum(task["mean"] for task in tasks) / len(tasks) == pytest.approx(average, abs=0.011)
    cells = [row["values"]["wikitext103"] for row in tmlr["table5"]["rows"]]
    for i in range(0, len(cells), 4):
        assert sum(cells[i : i + 3]) / 3 == pytest.approx(cells[i + 3], abs=0.011)
    for row in iclr["table3"]["rows"]:
        mnli, mismatched, *others, average = row["values"].values()
        parts = [mnli, *others]
        if (row["attention"], row["row"]) == ("linear", "Base"):  # see the table's note
            parts.append(mismatched)
        assert sum(parts) / len(parts) == pytest.approx(average, abs=0.011)
