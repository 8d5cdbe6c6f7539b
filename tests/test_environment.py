"""A model of each family with fairseq's commands: the short suite for other environments.

CONTRIBUTING.md has its command. ``--junitxml`` writes the losses, with which environments are compared.
"""

import re

import pytest
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from support.commands import SHORT_TRAINING, assert_resumes, generated_lines, sizes
from support.labeled_data import write_text_dataset
from support.tiny import BIN, PLUGIN, preprocess, run_command, succeeded, write_text

import fairseq_lrpe.models  # noqa: F401  (for safe loading of checkpoints)
from fairseq_lrpe.encodings import ENCODINGS

pytestmark = pytest.mark.slow

DECODER, ENCODER = sizes("decoder", layers=2), sizes("encoder", layers=2)
BLOCKS = "--tokens-per-sample 32 --task".split()
MODELS = {  # {architecture: (data, flags of the task and the model)}
    "linear_lm_tmlr_type1": ("text", [*BLOCKS, "language_modeling", *DECODER]),
    "softmax_lm_cope": ("text", [*BLOCKS, "language_modeling", "--sample-break-mode", "eos", *DECODER]),
    "softmax_lm_xl": ("text", [*BLOCKS, "memory_lm", "--streams", 8, *DECODER]),
    "linear_roberta_tmlr_type2": ("text", [*BLOCKS, "masked_lm", "--criterion", "masked_lm", *ENCODER]),
    "softmax_transformer_shaw": ("pairs", ["--task", "translation", *ENCODER, *DECODER]),
    "linear_classifier_rope": ("labeled", ["--task", "classification", *ENCODER]),
    "softmax_question_generator_gcdf": (
        "questions",
        ["--task", "question_generation", *ENCODER, "--decoder-attention-heads", 2],
    ),
    "linear_vit_liere": ("images", ["--task", "image_classification", *ENCODER]),
}
MORE = {
    "classification": "--criterion label_smoothed_cross_entropy".split(),
    "image_classification": "--criterion soft_target_cross_entropy --image-size 16 --patch-size 4".split(),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Prepared data of all tasks, except for those whose preparation needs packages that are missing."""
    folder = tmp_path_factory.mktemp("data")
    write_text(folder)
    for split in ("train", "valid", "test"):
        text = (folder / f"{split}.txt").read_text()
        (folder / f"{split}.a").write_text(text)
        (folder / f"{split}.b").write_text(
            "".join(" ".join(x.split()[::-1]) + "\n" for x in text.splitlines())
        )
    for bin, suffix, more in (("text", ".txt", ["--only-source"]), ("pairs", "", ["-s", "a", "-t", "b"])):
        prefixes = [x for s in ("train", "valid", "test") for x in (f"--{s}pref", folder / f"{s}{suffix}")]
        preprocess(*more, *prefixes, "--destdir", folder / bin)
    write_text_dataset(folder / "labeled")
    return folder


@pytest.fixture
def data(folder, arch):
    path = folder / MODELS[arch][0]
    if path.name == "questions":
        pytest.importorskip("rich", reason="data preparation needs the extra [train]")
        from support.question_data import prepare_questions

        return prepare_questions(folder / "squad") / "bin"
    if path.name == "images" and not path.exists():
        pytest.importorskip("PIL")
        from support.image_files import write_image_dataset

        write_image_dataset(path)
    return path


@pytest.mark.parametrize("arch", MODELS)
def test_training_resuming_evaluation_and_generation(arch, data, tmp_path, record_property):
    task = MODELS[arch][1]
    name, losses = task[task.index("--task") + 1], []

    def train(save, *flags):
        done = run_command("fairseq-train", data, "--arch", arch, "--save-dir", save, *SHORT_TRAINING, *flags)
        losses.extend(map(float, re.findall(r"train_inner .*? loss=([\d.]+)", done.stdout)))
        return done

    log = ["--log-interval", 1, "--log-format", "simple", "--dropout", 0.1]
    assert_resumes(train, tmp_path, (2, 4), *task, *MORE.get(name, []), *log)
    assert len(losses) == 8
    [model], cfg, _ = load_model_ensemble_and_task([str(tmp_path / "resumed/checkpoint_last.pt")])
    assert ENCODINGS[cfg.model.encoding] in {type(module) for module in model.modules()}
    # fairseq 0.12.2 would evaluate such layers with plain softmax attention.
    assert not any(getattr(module, "can_use_fastpath", False) for module in model.modules())

    def evaluate(command, *flags):
        shared = ["--path", tmp_path / "resumed/checkpoint_last.pt", "--user-dir", PLUGIN, "--cpu"]
        return succeeded(run_command(command, data, *shared, "--batch-size", 8, *flags))

    done = evaluate("fairseq-validate", "--task", name, "--log-format", "simple")
    losses += [float(re.search(r"valid .*? loss ([\d.]+)", done.stdout)[1])]
    if name in ("translation", "question_generation"):
        search = ["--gen-subset", "valid", "--beam", 2, "--max-len-b", 9]
        assert len(generated_lines(evaluate("fairseq-generate", "--task", name, *search), "H")) > 9
    if "_lm_" in arch:
        done = evaluate("fairseq-eval-lm", "--gen-subset", "valid", "--tokens-per-sample", 32)
        losses += [float(re.search(r"Loss \(base 2\): ([\d.]+)", done.stdout + done.stderr)[1])]
    record_property("losses", " ".join(f"{loss:.4f}" for loss in losses))
    print(arch, *losses)


SPAWN = """
import multiprocessing, sys
multiprocessing.set_start_method("spawn")
sys.argv[0] = "fairseq-train"
from fairseq_cli.train import cli_main
cli_main()
"""


@pytest.mark.parametrize("arch", ["softmax_lm_xl", "linear_classifier_rope", "linear_vit_liere"])
def test_workers_that_are_not_forked(arch, data, tmp_path):
    """As on macOS."""
    task = MODELS[arch][1]
    flags = [*SHORT_TRAINING, *task, *MORE.get(task[task.index("--task") + 1], []), "--num-workers", 1]
    words = [data, "--arch", arch, "--save-dir", tmp_path, *flags, "--max-update", 1, "--disable-validation"]
    succeeded(run_command(BIN / "python", "-c", SPAWN, *words))
