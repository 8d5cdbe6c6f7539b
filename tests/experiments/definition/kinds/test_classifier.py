"""Classification: evaluation of a trained model, and choosing among options of an encoding."""

import pytest
from support.labeled_data import write_gray_image_dataset
from support.tiny import SMALL_ENCODER, job_of

from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.definition.setting_differences import setting_differences


def test_metrics_are_those_of_the_predictions(tmp_path, evaluated):
    words = ["tmlr_type1", *SMALL_ENCODER, "batch.total=8", "batch.per_gpu=8", "train.warmup_updates=1"]
    words += ["updates=4", "train.log_interval=1", f"data={write_gray_image_dataset(tmp_path / 'data')}"]
    folder, found = evaluated("lra/image_mini", *words)
    measured = found["test"]
    _, *lines = (folder / "predictions-test.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines]
    right, up = sum(row[1] == row[2] for row in rows), sum(row[2] == "up" for row in rows)
    assert measured["rows"] == len(rows) == 24
    assert measured["accuracy"] == pytest.approx(100 * right / 24)
    assert measured["majority"] == pytest.approx(100 * max(up, 24 - up) / 24)
    assert found["training"].keys() == {"rows_per_second"}


def test_word_vectors_are_read_from_the_data_folder():
    """They do not identify a run, just as the data folder."""
    configs = []
    for overrides in ([], ["data=/scratch/snli"]):
        job = job_of("classifier/snli", "gcdf", "softmax", overrides)
        assert job.train_flags["embed_path"] == f"{job.cfg.data}/vectors.txt"
        configs.append(job.recorded_config)
    assert configs[1]["data"] == "/scratch/snli" and setting_differences(*configs) == []


def test_settings_match_the_papers():
    """Table 4 of Qu et al. and Table 9 of LRPE."""
    for name, *expected in (
        ("imdb", 4000, 200, 200),
        ("sst2", 20_000, 1000, 500),
        ("snli", 80_000, 5000, 5000),
        ("qnli", 40_000, 4000, 1000),
        ("qqp", 80_000, 4000, 4000),
        ("mnli", 120_000, 4000, 4000),
    ):
        cfg = Experiment.load(f"classifier/{name}").cfg
        given = cfg.train
        assert [cfg.updates, given.warmup_updates, given.validate_interval_updates] == expected
        assert given.total_num_update == cfg.updates and cfg.batch.total == 64 and given.lr == 2e-5
        assert given.dropout == 0.15 and given.clip_norm == 0.25 and given.encoder_ffn_embed_dim == 2048
        assert given.embed_path == f"{cfg.data}/vectors.txt"
    for name, *expected in (
        ("text", 128, 4, 256, 32, 1e-3, 3136, 25_000),
        ("listops", 128, 4, 256, 40, 1e-4, 15_000, 96_000),
        ("retrieval", 64, 4, 64, 20, 1e-3, 45_980, 147_086),
        ("pathfinder", 32, 4, 128, 200, 5e-4, 250_000, 160_000),
        ("image", 100, 12, 100, 200, 1e-3, 90_000, 45_000),
    ):
        cfg = Experiment.load(f"lra/{name}").cfg
        width, layers, batch, epochs, rate, updates, rows = expected
        given = cfg.train
        assert [given.encoder_embed_dim, given.encoder_layers, given.lr] == [width, layers, rate]
        assert [cfg.batch.total, cfg.updates] == [batch, updates] and given.encoder_norm == "batch"
        per_epoch = -(-rows // batch)
        assert per_epoch * epochs == updates and given.warmup_updates == per_epoch
        assert given.encoder_ffn_embed_dim == 2 * width
