"""Translation: parsing fairseq's output, BLEU, and tiny trained models."""

import itertools
import shutil

import pytest
import sacrebleu
from omegaconf import OmegaConf
from support.tiny import job_of, output_of

import fairseq_lrpe
from fairseq_lrpe.cli import results as results_command
from fairseq_lrpe.data import text_codec
from fairseq_lrpe.experiments.execution import runner
from fairseq_lrpe.experiments.execution.evaluators import transformer
from fairseq_lrpe.experiments.execution.launch import train_command
from fairseq_lrpe.utils.errors import UserError


def test_bleu_of_raw_text_and_of_words(corpus, tmp_path):
    codec = text_codec.load(corpus / "bin")
    references = (corpus / "text/test.de").read_text().splitlines()
    hypotheses = [line.replace("Hund", "Katze", 1) for line in references]
    log = tmp_path / "log"
    lines = [
        f"T-{i}\t{codec.encode('de', r)}\nH-{i}\t-0.5\t{codec.encode('de', h)}"
        for i, (r, h) in enumerate(zip(references, hypotheses, strict=True))
    ]
    log.write_text("\n".join(reversed(lines)) + "\n")
    found = transformer.bleu(log, corpus / "bin", "test", "de")
    raw = [codec.decode("de", codec.encode("de", line)) for line in hypotheses]
    assert found["sacrebleu"] == sacrebleu.corpus_bleu(raw, [references]).score < 100
    assert "tok:13a" in found["sacrebleu_signature"] and "tok:none" in found["bleu_signature"]
    assert 0 < found["bleu"] < 100 and found["sentences"] == 20
    log.write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(ValueError, match="lacks those of 1 and has 0 others"):
        transformer.bleu(log, corpus / "bin", "test", "de")


def test_training_and_evaluation(translating):
    run, output = translating
    assert run.parts[-1] == "seed-1" and "transformer/multi30k/linear_iclr_type4/" in str(run)
    assert "test: sacrebleu " in output
    evaluations = OmegaConf.load(run / "evaluation.json").evaluations
    assert "valid" not in evaluations  # null omits it
    assert evaluations.test.sentences == 20 and 0 <= evaluations.test.sacrebleu <= 100


def test_fairseqs_own_model(train_translation, tmp_path):
    run, _ = train_translation(tmp_path, "fairseq", "--attention", "softmax")
    assert "transformer/multi30k/softmax_fairseq/" in str(run)
    assert "--arch transformer " in (run / "command.sh").read_text()
    found = OmegaConf.load(run / "evaluation.json").evaluations.test.sacrebleu
    words = ["--results", tmp_path, "--table", "iclr_table4", "--scale", "mini", "seeds=[1]"]
    shown = output_of(results_command.main, *words, *train_translation.overrides)
    row = next(line for line in shown.splitlines() if line.startswith("| softmax | fairseq |"))
    assert row.endswith(f"| - | {found:.2f} (1) |")  # no published number
    assert "wmt14_en_de_test: sacrebleu, signature nrefs:1|case:mixed|eff:no|tok:13a" in shown
    model = fairseq_lrpe.load_model(run / "checkpoints/checkpoint_best.pt", cpu=True)
    assert len(model.translate(["A cat ."])) == 1


@pytest.mark.parametrize("gpus, update_freq", [(0, 8), (8, 1)])
def test_batches_are_counted_in_tokens(gpus, update_freq):
    job = job_of("transformer/wmt14_en_de", "iclr_type4", "softmax", gpus=gpus, cpu=not gpus)
    words = train_command(job)
    given = dict(itertools.pairwise(words))
    assert given["--max-tokens"] == "4400" and given["--update-freq"] == str(update_freq)
    assert "--batch-size" not in words and given["--encoding-in"] == "encoder"  # as in the authors' code


def test_files_of_evaluations_are_needed_before_the_training(corpus, tmp_path):
    shutil.copytree(corpus, tmp_path, dirs_exist_ok=True)
    job = job_of("transformer/multi30k", "base", overrides=[f"data={tmp_path}/bin"], cpu=True)
    runner.check(job)
    missing = ("bin/preparation.json", "codes", "text/test.de")
    for name in missing:
        (tmp_path / name).unlink()
    with pytest.raises(UserError, match=r"lacks preparation\.json, \.\./codes, \.\./text/test\.de: "):
        runner.check(job)
    evaluations = OmegaConf.to_container(job.cfg.evaluations)
    omitted = [f"evaluations.{name}=null" for name in evaluations]
    overrides = [f"data={tmp_path}/bin", *omitted]
    runner.check(job_of("transformer/multi30k", "base", overrides=overrides, cpu=True))
