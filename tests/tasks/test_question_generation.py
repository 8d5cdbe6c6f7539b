"""The task question_generation: fairseq's commands, ROUGE-L and initialization from BERT."""

import io
import shutil

import pytest
import torch
from fairseq_cli import generate, interactive, validate
from support import commands
from support.commands import assert_rejected, load_last_checkpoint, validated
from support.question_data import prepare_questions
from support.tiny import PLUGIN, run_command, run_here
from transformers import BertConfig, BertModel

from fairseq_lrpe import load_model
from fairseq_lrpe.data import word_pieces
from fairseq_lrpe.data.rouge import rouge_l
from fairseq_lrpe.experiments.execution.evaluators.hypotheses import parse_hypotheses


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return prepare_questions(tmp_path_factory.mktemp("questions") / "squad")


TASK = (
    "--task question_generation --criterion cross_entropy --max-update 6 --decoder-layers 1 "
    "--decoder-ffn-embed-dim 16 --decoder-attention-heads 2 --max-source-positions 40"
).split()


def train(data, save, arch="softmax_question_generator_gcdf", *more):
    return commands.train(data, arch, save, *TASK, *commands.sizes("encoder"), *more)


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """A checkpoint."""
    folder = tmp_path_factory.mktemp("trained")
    assert train(corpus / "bin", folder).returncode == 0
    return folder / "checkpoint_last.pt"


SEARCH = "--beam 5 --lenpen 0.6 --no-repeat-ngram-size 3 --max-len-a 0 --max-len-b 20".split()


def test_commands(trained, corpus):
    """fairseq-validate reports the ROUGE-L of greedy search, and beam search repeats no trigram."""
    shared = [corpus / "bin", "--user-dir", PLUGIN, "--task", "question_generation", "--cpu"]
    shared += ["--path", trained, "--batch-size", 7, "--num-workers", 0]
    shared += ["--required-batch-size-multiple", 1]
    logged = validated(corpus / "bin", trained, "--task", "question_generation")["rouge_l"]
    greedy = ["--beam", 1, "--max-len-a", 0, "--max-len-b", 50]
    found = {}
    for name, search in (("greedy", greedy), ("best", SEARCH)):
        out = run_here(generate.cli_main, *shared, "--gen-subset", "valid", *search)
        assert out.returncode == 0, out.stderr
        found[name] = parse_hypotheses(out.stdout)["H"]
    pieces = word_pieces.load(corpus / "bin")
    questions = (corpus / "text/valid.question").read_text().splitlines()
    generated = [pieces.text(found["greedy"][i].split()) for i in range(len(questions))]
    assert float(logged) == pytest.approx(rouge_l(generated, questions, "en"), abs=0.01)
    for tokens in found["best"].values():
        tokens = tokens.split()
        trigrams = [*zip(tokens, tokens[1:], tokens[2:], strict=False)]
        assert len(trigrams) == len(set(trigrams))


def test_training_from_bert_saves_a_standalone_checkpoint(corpus, tmp_path):
    """With a random BERT, as transformers saves one."""
    vocabulary, bert = corpus / "bin/vocab.txt", tmp_path / "bert"
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    sizes |= {"vocab_size": len(word_pieces.read_types(vocabulary)), "max_position_embeddings": 40}
    BertModel(BertConfig(**sizes)).save_pretrained(bert)
    shutil.copy(vocabulary, bert)
    data = prepare_questions(tmp_path / "data", "--bert", str(bert)) / "bin"
    still = ["--encoder", bert, "--lr", 0, "--max-update", 1]  # keeps the weights
    done = train(data, tmp_path / "save", "softmax_question_generator_xl", *still)
    assert done.returncode == 0, done.stderr
    theirs = BertModel.from_pretrained(bert).state_dict()
    ours = load_last_checkpoint(tmp_path / "save")["model"]
    key = theirs["encoder.layer.0.attention.self.key.weight"]
    assert torch.equal(ours["encoder.layers.0.self_attn.k_proj.weight"], key)
    shutil.rmtree(bert)
    validated(data, tmp_path / "save/checkpoint_last.pt", "--task", "question_generation")


@pytest.mark.parametrize("flags, message", [
    ("--max-source-positions 20", "a source has 25 tokens, more than --max-source-positions 20"),
    ("--attention linear", "needs the score matrix, which linear attention does not compute"),
    ("--task translation -s source -t question", "--task translation requires an architecture"),
])  # fmt: skip
def test_invalid_flags(flags, message, corpus, tmp_path):
    done = train(corpus / "bin", tmp_path / "save", "softmax_question_generator_gcdf", *flags.split())
    assert_rejected(done, message, tmp_path / "save")


def test_checkpoint_of_another_vocabulary(trained, corpus, tmp_path):
    """Of the same size with one other type."""
    other = shutil.copytree(corpus / "bin", tmp_path / "other")
    for name in ("vocab.txt", "dict.source.txt", "dict.question.txt"):
        (other / name).write_text((other / name).read_text().replace("How", "Now"))
    words = ["--path", trained, "--task", "question_generation", "--cpu"]
    words += ["--user-dir", PLUGIN, "--batch-size", 8, "--num-workers", 0]
    out = run_here(validate.cli_main, other, *words)
    assert out.returncode == 1 and "has another vocabulary" in out.stderr, out.stderr


def test_generation_from_standard_input(trained):
    words = ["python", "-m", "fairseq_lrpe", "generate", trained, "--cpu"]
    long = "Rome\tOnce Anna lived in Rome" + ", far away from home" * 12
    done = run_command(*words, text=f"Anna\tAnna lived in Rome.\n{long}\n")
    assert done.returncode == 0 and len(done.stdout.split("\n")) == 3, done.stderr
    model = load_model(trained, cpu=True)
    pairs = [("Anna lived in Rome.", "Anna"), long.split("\t")[::-1]]
    assert [model.ask(*pair) for pair in pairs] == done.stdout.splitlines()
    assert done.stderr.startswith("line 2: the text is too long and was truncated around the answer")


def test_questions_are_those_of_fairseq(trained, corpus, monkeypatch):
    """fairseq-interactive with the same search gives the same questions for tokenized sources."""
    model = load_model(trained, cpu=True)
    pairs = [(f"In 10 Anna lived in {city}.", city) for city in ("Rome", "Oslo", "Lima")]
    sources = "".join(" ".join(model.source(*pair).tokens[:-1]) + "\n" for pair in pairs)
    words = [corpus / "bin", "--user-dir", PLUGIN, "--path", trained, "--cpu", *SEARCH, "--max-len-b", 50]
    monkeypatch.setattr("sys.stdin", io.StringIO(sources))
    done = run_here(interactive.cli_main, *words, "--batch-size", 2, "--buffer-size", 9)
    found = parse_hypotheses(done.stdout)["H"]
    expected = [model.task.pieces.text(found[i].split()) for i in range(3)]
    assert [model.ask(*pair) for pair in pairs] == expected
