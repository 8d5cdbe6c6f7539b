"""The commands that prepare data folders."""

from pathlib import Path

import pytest

from fairseq_lrpe.data.corpora import prepare_command
from fairseq_lrpe.experiments.definition.config_files import experiments
from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.utils.files import display_path

SQUAD_MINI = "squad --from dev-v2.0.json --cut 2400 500 --pieces 4000 --longest 192 --out data/squad_mini"


@pytest.mark.parametrize("folder, words", [
    ("data/wikitext_mini/bin", "wikitext_mini"),
    ("data/multi30k/bin", "multi30k --from FOLDER"),
    ("data/lra_retrieval_mini/bin", "lra_retrieval_mini --from data/wikitext_mini/text"),
    ("data/squad_mini/bin", SQUAD_MINI),
    ("data/glue_mini/RTE/bin", "glue RTE --train-rows 8000 --bpe-types 8000 --out data/glue_mini"),
    ("data/glue/bin", None),
    ("data/other/bin", None),
    ("/data/text/bin", None),
])  # fmt: skip
def test_the_command_that_prepares_a_folder(folder, words):
    assert prepare_command(Path(folder)) == (words and f"bash data_prep/prepare.sh {words}")


@pytest.mark.parametrize("name", experiments())
def test_the_data_of_each_experiment_can_be_prepared(name):
    experiment = Experiment.load(name)
    if name.startswith("glue/"):
        experiment.cfg.task = "RTE"
    for folder in experiment.kind.folders(experiment.cfg)[:1]:
        assert prepare_command(display_path(folder)), f"no corpus of data/corpora.py prepares {folder}"
