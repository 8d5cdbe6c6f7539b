"""Translation from raw text to raw text: what fairseq prints, BLEU, a tiny model trained and asked."""

import itertools
import random
import shutil
import subprocess
import sys

import pytest
import sacrebleu
from omegaconf import OmegaConf
from tiny import BIN, REPOSITORY, run_command

from fairseq_lrpe.experiments import compose, translation

SMALL = (
    "batch.total=300 batch.per_gpu=300 updates=30 train.encoder_layers=1 train.decoder_layers=1 "
    "train.warmup_updates=10 train.validate_interval_updates=15 train.save_interval_updates=15 "
    "evaluate.flags.beam=2 evaluate.splits=[test]"
).split()


def test_hypotheses_and_targets_are_found():
    printed = (
        "S-1\ta b\nT-1\tx y\nH-1\t-0.25\tx@@ z\nD-1\t-0.25\tx@@ z\nP-1\t-0.1 -0.2\nH-1\t-2.0\tsecond\n"
        "H-0\t-1.2e-05\tone\n2026-01-01 | INFO | x | T-0 no line of its own\nT-0\t1 2\nH-12\t0.0\t\n"
    )
    assert translation.found_in(printed) == {"H": {1: "x@@ z", 0: "one", 12: ""}, "T": {1: "x y", 0: "1 2"}}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder as data_prep/multi30k.sh makes it: German is English word by word."""
    folder, draw = tmp_path_factory.mktemp("corpus"), random.Random(0)
    words = {"dog": "Hund", "cat": "Katze", "sees": "sieht", "a": "ein", "the": "der", "big": "große"}
    for split, count in (("train", 300), ("val", 20), ("test", 20)):
        english = [[draw.choice(list(words)) for _ in range(draw.randrange(3, 9))] for _ in range(count)]
        for language, translate in (("en", str), ("de", words.get)):
            lines = (" ".join(map(translate, line)).capitalize() + " .\n" for line in english)
            (folder / f"{split}.{language}").write_text("".join(lines))
    command = [sys.executable, "-m", "data_prep.translation", "multi30k", "--from", folder, "--workers", "1"]
    done = subprocess.run(
        [*map(str, command), "--out", str(folder / "out"), "--bpe-types", "30"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_bleu_of_raw_text_and_of_words(corpus, tmp_path):
    cfg = compose.load("mt/multi30k", [f"data={corpus}/bin"])
    codec = translation.codec_of(corpus / "bin")
    references = (corpus / "text/test.de").read_text().splitlines()
    said = [line.replace("Hund", "Katze", 1) for line in references]
    log = tmp_path / "log"
    lines = [
        f"T-{i}\t{codec.encode('de', r)}\nH-{i}\t-0.5\t{codec.encode('de', h)}"
        for i, (r, h) in enumerate(zip(references, said, strict=True))
    ]
    log.write_text("\n".join(reversed(lines)) + "\n")
    found = translation.read_generated(log, "test", cfg)
    raw = [codec.decode("de", codec.encode("de", line)) for line in said]
    assert found["sacrebleu"] == sacrebleu.corpus_bleu(raw, [references]).score < 100
    assert "tok:13a" in found["sacrebleu_signature"] and "tok:none" in found["bleu_signature"]
    assert 0 < found["bleu"] < 100 and found["sentences"] == 20
    log.write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(ValueError, match="has 19 translations for the 20 lines"):
        translation.read_generated(log, "test", cfg)


def ask(checkpoint, text, *flags):
    return subprocess.run(
        [BIN / "python", "-m", "fairseq_lrpe.experiments.translation", checkpoint, "--cpu", *flags],
        cwd=REPOSITORY,
        input=text,
        capture_output=True,
        text=True,
    )


def test_a_model_is_trained_evaluated_and_asked(corpus, tmp_path):
    words = ["mt/multi30k", "iclr_type4", "--cpu", "--results", tmp_path, f"data={corpus}/bin", *SMALL]
    done = run_command("python", "-m", "fairseq_lrpe.experiments.train", *words)
    assert done.returncode == 0, done.stderr
    assert "test: sacrebleu " in done.stdout
    run = tmp_path / "mt/multi30k/linear_iclr_type4/seed-1"
    measured = OmegaConf.load(run / "evaluation.json").splits.test
    assert measured.sentences == 20 and 0 <= measured.sacrebleu <= 100
    checkpoint = run / "checkpoints/checkpoint_best.pt"
    asked = ask(checkpoint, "The big dog sees a cat .\n\nA cat .\n")
    assert asked.returncode == 0, asked.stderr
    assert len(asked.stdout.splitlines()) == 3 and not asked.stdout.splitlines()[1]
    assert "@@" not in asked.stdout
    # What was generated in the evaluation is what the raw sentences give now.
    sources = (corpus / "text/test.en").read_text()
    again = ask(checkpoint, sources, "--beam", "2").stdout.splitlines()
    log = translation.found_in((run / "eval-test.log").read_text())["H"]
    codec = translation.codec_of(corpus / "bin")
    assert again == [codec.decode("de", log[i]) for i in range(20)]


def test_fairseqs_own_model_stands_beside_ours(corpus, tmp_path):
    for method in ("base", "fairseq"):
        words = ["mt/multi30k", method, "--attention", "softmax", "--cpu", "--results", tmp_path]
        done = run_command(
            "python", "-m", "fairseq_lrpe.experiments.train", *words, f"data={corpus}/bin", *SMALL
        )
        assert done.returncode == 0, done.stderr
    runs = {m: tmp_path / f"mt/multi30k/softmax_{m}/seed-1" for m in ("base", "fairseq")}
    assert OmegaConf.load(runs["fairseq"] / "run.json").arch == "transformer"
    found = {m: OmegaConf.load(run / "evaluation.json").splits.test.sacrebleu for m, run in runs.items()}
    words = [tmp_path, "--table", "iclr_table4", "--scale", "mini"]
    shown = run_command("python", "-m", "fairseq_lrpe.experiments.results", *words)
    assert shown.returncode == 0, shown.stderr
    row = next(line for line in shown.stdout.splitlines() if line.startswith("| softmax | fairseq |"))
    assert row.endswith(f"| - | {found['fairseq']:.2f} (1) |")  # the paper has none
    assert "wmt14_en_de_test: sacrebleu, signature nrefs:1|case:mixed|eff:no|tok:13a" in shown.stdout
    asked = ask(runs["fairseq"] / "checkpoints/checkpoint_best.pt", "A cat .\n")
    assert asked.returncode == 0 and len(asked.stdout.splitlines()) == 1, asked.stderr


def test_another_dictionary_or_language_than_the_checkpoints(corpus, tmp_path):
    arch = ["--arch", "softmax_transformer_base", "--encoder-layers", 1, "--decoder-layers", 1]
    for part in ("encoder", "decoder"):
        arch += [f"--{part}-embed-dim", 16, f"--{part}-ffn-embed-dim", 16, f"--{part}-attention-heads", 2]
    shared = [corpus / "bin", "--user-dir", "fairseq_lrpe", "--task", "translation", "--cpu"]
    training = [*shared, *arch, "-s", "en", "-t", "de", "--max-tokens", 300, "--max-update", 1]
    training += ["--optimizer", "adam", "--data-buffer-size", 0, "--save-dir", tmp_path]
    done = run_command("fairseq-train", *training)
    assert done.returncode == 0, done.stderr
    longer = tmp_path / "longer"
    shutil.copytree(corpus / "bin", longer)
    with (longer / "dict.de.txt").open("a") as types:
        types.writelines(f"more{i} 1\n" for i in range(16))
    for data, target, sentence in (
        (longer, "de", "types of the target language and the model"),
        (corpus / "bin", "fr", "has no dict.fr.txt: its languages are de, en, give its languages"),
    ):
        words = [data, *shared[1:], "--path", tmp_path / "checkpoint_last.pt", "-s", "en", "-t", target]
        done = run_command("fairseq-generate", *words)
        last = done.stderr.strip().splitlines()[-1]
        assert done.returncode == 1 and last.startswith("fairseq_lrpe: ") and sentence in last


def test_wrong_requests_get_one_sentence(corpus, tmp_path):
    missing = ask(tmp_path / "none.pt", "a\n")
    assert missing.returncode == 1 and "none.pt does not exist" in missing.stderr
    (tmp_path / "broken.pt").write_text("x")
    broken = ask(tmp_path / "broken.pt", "a\n")
    assert broken.returncode == 1 and "is no checkpoint of fairseq" in broken.stderr
    with pytest.raises(ValueError, match=r"preparation\.json is missing"):
        translation.codec_of(tmp_path)
    words = [corpus / "bin", "--user-dir", "fairseq_lrpe", "--task", "translation", "--source-lang", "fr"]
    words += ["--target-lang", "de", "--arch", "linear_transformer_base", "--max-tokens", 100, "--cpu"]
    done = run_command("fairseq-train", *words, "--save-dir", tmp_path / "save")
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and "dict.fr.txt" in last and "give its languages" in last


@pytest.mark.parametrize("gpus, update_freq", [(0, 8), (1, 8), (8, 1)])
def test_batches_are_counted_in_tokens(gpus, update_freq):
    cfg = compose.load("mt/wmt14_en_de")
    words = compose.train_command(cfg, "iclr_type4", "linear", 1, gpus)
    given = dict(itertools.pairwise(words))
    assert given["--max-tokens"] == "4400" and given["--update-freq"] == str(update_freq)
    assert "--batch-size" not in words and given["--arch"] == "linear_transformer_iclr_type4"
    with pytest.raises(
        ValueError, match="total batch of 35200 tokens is no multiple of 3 GPUs × 4400 tokens"
    ):
        compose.train_command(cfg, "iclr_type4", "linear", 1, 3)
