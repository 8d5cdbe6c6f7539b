"""Corpora prepared from published data have the files of recorded runs (with LRPE_DATA)."""

import pytest
from support.tiny import BIN, run_command, succeeded

from fairseq_lrpe.cli.results import RECORDED
from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.execution.run_settings import data_sizes
from fairseq_lrpe.experiments.reporting.recorded_files import data_digest
from fairseq_lrpe.experiments.reporting.recorded_results import read_settings

PIECES = ["--pieces", 4000, "--longest", 192]
CORPORA = {
    "transformer/multi30k": ["multi30k", "multi30k"],
    "question_generator/cmrc2018_mini": [
        "cmrc2018",
        "cmrc2018/cmrc2018_dev.json",
        "--cut",
        2700,
        500,
        *PIECES,
    ],
    "lm/mini": ["wikitext_mini", "wikitext-mini"],
    "lm/extrapolation_mini": ["wikitext_mini_chars", "wikitext-mini"],
}
"""{experiment: name of a corpus, its published files, and further arguments of `lrpe prepare`}"""


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("name", CORPORA)
def test_prepared_data_are_those_of_recorded_runs(name, published, tmp_path):
    corpus, files, *options = CORPORA[name]
    out = tmp_path / corpus
    succeeded(
        run_command(BIN / "lrpe", "prepare", corpus, "--from", published / files, "--out", out, *options)
    )
    experiment = Experiment.load(name, [f"data={out}/bin"])
    digest = data_digest({"data": data_sizes(experiment.kind, experiment.cfg)})
    recorded = {}
    for run, line in read_settings(RECORDED).items():
        if run.experiment == name:
            recorded[line["data"]] = None
    assert list(recorded) == [digest]
