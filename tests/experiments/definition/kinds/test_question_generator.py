"""Question generation: evaluation by ROUGE-L, and the sizes and settings of the paper."""

import pytest
from support.question_data import prepare_questions
from support.tiny import SMALL_ENCODER, job_of

from fairseq_lrpe.data.rouge import rouge_l
from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.estimation import cost
from fairseq_lrpe.experiments.execution.launch import train_command

SMALL = [*SMALL_ENCODER, "train.decoder_layers=1", "train.decoder_ffn_embed_dim=16"]
SMALL += ["train.decoder_attention_heads=2", "updates=4", "train.warmup_updates=1"]


def test_metric_is_that_of_the_questions(tmp_path, evaluated):
    data = prepare_questions(tmp_path / "squad")
    words = ["xl", "--attention", "softmax", f"data={data / 'bin'}", *SMALL]
    folder, found = evaluated("question_generator/squad_mini", *words, "train.validate_interval_updates=2")
    measured = found["valid"]
    head, *rows = (folder / "questions-valid.tsv").read_text().splitlines()
    assert head == "answer\tquestion\tgenerated" and len(rows) == measured["questions"] == 10
    answers, questions, generated = zip(*(row.split("\t") for row in rows), strict=True)
    assert list(questions) == (data / "text/valid.question").read_text().splitlines()
    assert list(answers) == (data / "text/valid.answer").read_text().splitlines()
    assert measured["rouge_l"] == pytest.approx(rouge_l(list(generated), list(questions), "en"))


@pytest.mark.parametrize("name, types", [("squad", 28_996), ("cmrc2018", 21_128)])
def test_sizes_match_the_paper(name, types):
    """BERT base without its pooler, a decoder with three layers, and the copy mechanism."""
    job = job_of(f"question_generator/{name}", "t5", "softmax")
    model = cost.build(tuple(train_command(job)), cost.Corpus((types, types))).model
    layer = 4 * (768 * 768 + 768) + 2 * 768 * 3072 + 3072 + 768
    encoder = types * 768 + 512 * 768 + 2 * 768 + 2 * 768 + 12 * (layer + 2 * 2 * 768)
    decoder = 3 * (layer + 4 * (768 * 768 + 768) + 3 * 2 * 768 + 32 * 12)
    copying = 2 * (768 * 768 + 768) + 768 + 1
    unused = 2 * 768  # fairseq's offset of positions
    assert sum(p.numel() for p in model.parameters()) == encoder + decoder + copying + unused
    assert encoder == {"squad": 107_719_680, "cmrc2018": 101_677_056}[name]  # BertModel's, without its pooler


@pytest.mark.parametrize("name, updates, warmup, interval", [
    ("squad", 30_000, 4000, 2000), ("cmrc2018", 4500, 600, 300),
])  # fmt: skip
def test_settings_match_the_paper(name, updates, warmup, interval):
    """Table 4 of Qu et al., and the beam search of Appendix A.3."""
    cfg = Experiment.load(f"question_generator/{name}").cfg
    given, search = cfg.train, cfg.evaluate.flags
    assert [cfg.updates, given.warmup_updates, given.validate_interval_updates] == [updates, warmup, interval]
    assert given.total_num_update == updates and cfg.batch.total == 32 and given.lr == 2e-5
    assert given.dropout == 0.1 and given.clip_norm == 0.25 and given.decoder_ffn_embed_dim == 3072
    assert [search.beam, search.lenpen, search.no_repeat_ngram_size] == [5, 0.6, 3]
