"""Trained language models in Transformers, compared with those that load_model returns."""

import os
import shutil

import pytest
import torch
from fairseq.models import MODEL_DATACLASS_REGISTRY
from omegaconf import OmegaConf
from support.documents import block, commands
from support.parameters import slow_after
from support.tensors import perturbed
from support.tiny import BIN, REPOSITORY, run_command, run_here, succeeded, write_byte_pairs
from support.tiny_models import ONE_PER_ENCODING, SIZES, architectures
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoModelForCausalLM, AutoTokenizer

import fairseq_lrpe
from fairseq_lrpe.cli import main as lrpe
from fairseq_lrpe.data import line_codec
from fairseq_lrpe.experiments.inference.export import shared_weights
from fairseq_lrpe.hf import from_pretrained
from fairseq_lrpe.hf.exported import ExportedConfig, ExportedLanguageModel
from fairseq_lrpe.hf.tokenizer import ExportedTokenizer

EOS, PAD = 2, 1
TEXT = "w1 w3 w9 w28\nw2 unknown w4"


def built(arch, **flags):
    """Returns an exported model with random weights for texts of 24 tokens."""
    config = OmegaConf.structured(MODEL_DATACLASS_REGISTRY[arch]())
    lengths = {"tokens_per_sample": 24, "max_target_positions": 24, "add_bos_token": False, "tpu": False}
    sizes = {f"decoder_{name}": value for name, value in SIZES.items()}
    for name, value in (sizes | lengths | flags).items():
        setattr(config, name, value)
    flags = OmegaConf.to_container(OmegaConf.create({"model": config}), resolve=True, enum_to_str=True)[
        "model"
    ] | {"_name": arch}
    torch.manual_seed(0)
    config = ExportedConfig(flags=flags, vocab_size=24, pad_token_id=PAD, bos_token_id=EOS)
    config.shared_weights = shared_weights(ExportedLanguageModel(config).model, "model.")
    return perturbed(ExportedLanguageModel(config)).eval()


def generated(model, prompts, mask=None, **options):
    options = {"max_new_tokens": 9, "do_sample": False, "use_cache": True, "suppress_tokens": [PAD]} | options
    mask = torch.ones_like(prompts) if mask is None else mask
    return model.generate(prompts, attention_mask=mask, **options)[:, prompts.size(1) :]


def check(model, tokens):
    """Asserts that generation does not depend on the cache, and that rows do not depend on padding."""
    for search in ({}, {"num_beams": 3}):
        expected = generated(model, tokens, use_cache=False, **search)
        assert generated(model, tokens, **search).equal(expected)
    padded, mask = tokens.clone(), torch.ones_like(tokens)
    mask[0, :3] = 0
    with torch.no_grad():
        expected = model(tokens[:1, 3:]).logits
        found = model(padded, attention_mask=mask).logits[:1, 3:]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert generated(model, padded, mask)[:1].equal(generated(model, tokens[:1, 3:]))


EVERY = list(dict.fromkeys([*architectures("lm"), *architectures("lm", ONE_PER_ENCODING)]))


@pytest.mark.parametrize("arch", slow_after(len(architectures("lm")), EVERY))
def test_every_encoding(arch, tmp_path):
    model = built(arch)
    tokens = torch.randint(4, 24, (2, 9))
    model.save_pretrained(tmp_path)
    read = ExportedLanguageModel.from_pretrained(tmp_path)
    own = model.state_dict()
    assert own.keys() == read.state_dict().keys()
    assert all(value.equal(own[key]) for key, value in read.state_dict().items())
    with torch.no_grad():
        expected = model.model(tokens)[0]
        torch.testing.assert_close(read(tokens).logits, expected, rtol=1e-5, atol=1e-5)
        whole = read(tokens, use_cache=True)
        torch.testing.assert_close(whole.logits, expected, rtol=1e-5, atol=1e-5)
        next_tokens = torch.randint(4, 24, (2, 3))
        more = read(next_tokens, past_key_values=whole.past_key_values, use_cache=True).logits
        expected = model.model(torch.cat([tokens, next_tokens], dim=1))[0][:, -3:]
        torch.testing.assert_close(more, expected, rtol=1e-3, atol=1e-4)
    check(read, tokens)


@pytest.mark.parametrize("flags", [
    {"token_positions": "learned"}, {"token_positions": "convolution"}, {"token_positions": "rnn"},
    {"token_positions": "floater"}, {"share_decoder_input_output_embed": True},
    {"adaptive_softmax_cutoff": "8,16", "adaptive_input": True, "adaptive_input_cutoff": "8,16",
     "tie_adaptive_weights": True},
    {"encoding_interval": 2}, {"encoding_interval": 2, "encoding_window": 4},
], ids=str)  # fmt: skip
def test_other_flags(flags, tmp_path):
    arch = "softmax_lm_t5" if "encoding_window" in flags else "linear_lm_rope"
    model = built(arch, **flags)
    tokens = torch.randint(4, 24, (2, 9))
    with torch.no_grad():
        assert model(tokens, labels=tokens).loss.isfinite()
    check(model, tokens)


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
    """Returns {name: checkpoint} of trained models."""
    flags = {
        "lines": ("linear_lm_tmlr_type1", "--sample-break-mode", "eos"),
        "shared": ("softmax_lm_tupe_r", "--share-decoder-input-output-embed"),
        "adaptive": (
            "softmax_lm_alibi",
            "--adaptive-softmax-cutoff",
            "8,16",
            "--criterion",
            "adaptive_loss",
            "--ddp-backend",
            "legacy_ddp",
        ),
        "bos": ("linear_lm_nope", "--add-bos-token", "--token-positions", "none"),
        "random": ("linear_lm_rope", "--randomized-positions", 64),
    }
    checkpoints = {}
    for name, (arch, *more) in flags.items():
        folder = tmp_path_factory.mktemp(name)
        done = train(arch, folder, "--max-update", 3, "--no-epoch-checkpoints", "--disable-validation", *more)
        succeeded(done)
        checkpoints[name] = folder / "checkpoint_last.pt"
    return checkpoints


def loaded(folder):
    """Returns the model and the tokenizer in an exported folder."""
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    return model, AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


@pytest.mark.parametrize("name", ["lines", "shared", "adaptive", "random", "bos"])
def test_exported_models_equal_trained_ones(name, trained, tmp_path):
    done = run_here(lrpe, "export", trained[name], tmp_path / "out")
    assert done.stdout == f"written: {tmp_path / 'out'}\n", done.stderr
    model, tokenizer = loaded(tmp_path / "out")
    ours = fairseq_lrpe.load_model(trained[name], cpu=True)
    tokens = tokenizer(TEXT, return_tensors="pt").input_ids
    assert tokens[0].equal(ours.encode(TEXT))
    with torch.no_grad():
        expected = ours.model(tokens)[0]
        if name == "adaptive":
            expected = ours.model.decoder.adaptive_softmax.get_log_prob(expected, None)
        torch.testing.assert_close(model(tokens).logits, expected, rtol=1e-5, atol=1e-5)
    text = tokenizer.decode(generated(model, tokens)[0])
    assert text.strip() == ours.sample(TEXT, 9, temperature=0).strip()
    assert generated(model, tokens).equal(generated(model, tokens, use_cache=False))
    model.save_pretrained(tmp_path / "again")
    tokenizer.save_pretrained(tmp_path / "again")
    again, tokenizer = loaded(tmp_path / "again")
    assert (
        again(tokens).logits.equal(model(tokens).logits) and tokenizer(TEXT).input_ids == tokens[0].tolist()
    )


@pytest.mark.slow
def test_pipeline(trained, tmp_path):
    """A batch of texts of different lengths is padded, also in a process of its own."""
    succeeded(run_here(lrpe, "export", trained["lines"], tmp_path / "out"))
    program = (
        "import sys; from transformers import pipeline; "
        "p = pipeline('text-generation', sys.argv[1], trust_remote_code=True, device='cpu'); "
        "print([x[0]['generated_text'] for x in p(['w1', 'w1 w3 w9'], max_new_tokens=5, batch_size=2)])"
    )
    done = succeeded(run_command(BIN / "python", "-c", program, tmp_path / "out"))
    assert done.stdout.startswith("['w1") and "', 'w1 w3 w9" in done.stdout


def test_padding_that_is_refused():
    model = built("linear_lm_rope")
    mask = torch.tensor([[1, 0, 1]])
    with pytest.raises(
        ValueError, match=r"^padding between tokens changes their distances: put it before the"
    ):
        model(torch.full((1, 3), 9), attention_mask=mask)
    for name, value in {"position_ids": mask, "output_attentions": True}.items():
        with pytest.raises(ValueError, match=f"^the model does not support {name}: omit it$"):
            model(torch.full((1, 3), 9), **{name: value})
    learned = built("linear_lm_rope", token_positions="learned")
    with pytest.raises(ValueError, match="learned positions support sequences of at most 24 tokens, not 25"):
        learned(torch.full((1, 25), 9))


@pytest.mark.parametrize("kind", ["words", "characters", "sentencepiece", "byte pairs", "tokenizer.json"])
def test_tokenizers(kind, tmp_path):
    (tmp_path / "gpt2_bpe").mkdir()
    data, files = tmp_path / "bin", {}
    data.mkdir()
    lines = ["the tokens, then", "  <unk>  two  words ", "", "déjà vu"]
    if kind == "sentencepiece":
        import sentencepiece

        (data / "text").write_text("\n".join(["the then tokens words two"] * 9))
        prefix = data / "spm"
        options = {"vocab_size": 40, "hard_vocab_limit": False, "minloglevel": 2}
        sentencepiece.SentencePieceTrainer.train(
            input=str(data / "text"), model_prefix=str(prefix), **options
        )
        files = {"spm_file": data / "spm.model"}
    if kind == "tokenizer.json":
        tokenizer = Tokenizer(WordLevel({"the": 0, "then": 1, "tokens": 2, "[UNK]": 3}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = Whitespace()
        tokenizer.save(str(data / "tokenizer.json"))
        files = {"units_file": data / "tokenizer.json"}
    if kind == "byte pairs":
        write_byte_pairs(tmp_path / "gpt2_bpe")
        files = {"encoder_file": "encoder.json", "merges_file": "vocab.bpe"}
        files = {name: tmp_path / "gpt2_bpe" / file for name, file in files.items()}
        shutil.copyfile(tmp_path / "gpt2_bpe/dict.txt", data / "dict.txt")
    else:
        symbols = {
            "words": "the tokens, then two",
            "characters": "▁ t h e n w o d",
            "sentencepiece": "▁the ▁ n",
            "tokenizer.json": "3 0 2 1",
        }
        (data / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in symbols[kind].split()))
    tokenizer = ExportedTokenizer(data / "dict.txt", **files)
    tokenizer.save_pretrained(tmp_path / "saved")
    read = ExportedTokenizer.from_pretrained(tmp_path / "saved")
    dictionary = read.dictionary
    codec = line_codec.load(data, dictionary.symbols[dictionary.nspecial :])
    expected = [EOS]
    for number, line in enumerate(lines):
        encoded = dictionary.encode_line(codec.encode(line), append_eos=False, add_if_not_exist=False)
        expected += [EOS] * (number > 0) + encoded.tolist()
    assert read("\n".join(lines)).input_ids == tokenizer("\n".join(lines)).input_ids == expected
    assert len(set(expected)) > 4
    assert read.decode(read("the then").input_ids[1:]) == codec.decode(
        " ".join(dictionary[i] for i in read("the then").input_ids[1:])
    )


def test_what_cannot_be_exported(trained, checkpoint, train, tmp_path):
    state = torch.load(checkpoint)
    del state["model"]["decoder.layers.0.fc1.weight"]
    torch.save(state, tmp_path / "less.pt")
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    succeeded(train("transformer_lm", tmp_path / "own", "--max-update", 1, "--disable-validation"))
    calls = {
        (tmp_path / "less.pt", "out"): 'Missing key(s) in state_dict: "decoder.layers.0.fc1.weight"',
        (tmp_path / "nothing", "out"): "nothing does not exist",
        (tmp_path / "empty", "out"): "is a folder without a run",
        (tmp_path / "own/checkpoint_last.pt", "out"): "is fairseq's own model: export a model of this plugin",
        (checkpoint, "file"): "file exists: remove it, or choose another folder",
        (checkpoint, "empty"): "empty exists: remove it, or choose another folder",
        (checkpoint, "file/out"): "is not a writable folder",
    }
    before = sorted(tmp_path.rglob("*"))
    for (run, folder), message in calls.items():
        done = run_here(lrpe, "export", run, tmp_path / folder)
        [line] = done.stderr.strip().splitlines()
        assert done.returncode == 1 and message in line and line.startswith("export: ")
        assert sorted(tmp_path.rglob("*")) == before
    done = run_here(lrpe, "export", checkpoint, "/dev/null/out")
    assert "is not a writable folder" in done.stderr


def test_interruption_leaves_nothing(checkpoint, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(ExportedTokenizer, "save_pretrained", interrupt)
    assert run_here(lrpe, "export", checkpoint, tmp_path / "new/out").returncode == 130
    assert not os.listdir(tmp_path)


def test_example_of_the_documentation(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [command] = [line for line in commands([REPOSITORY / "docs/hugging_face.md"]) if "export RUN" in line]
    words = command.replace("RUN", str(trained["lines"])).split()
    succeeded(run_here(lrpe, *words[1:]))
    names = {}
    exec(block("python", 'AutoTokenizer.from_pretrained("linear-rope"'), names)
    assert len(names["texts"]) == 2 and names["tokens"].size(1) > 5
    expected = fairseq_lrpe.load_model(trained["lines"], cpu=True).encode("The city")
    assert names["inputs"].input_ids[0, -len(expected) :].equal(expected)
    with pytest.raises(
        ValueError, match=r"^linear-rope has no model that replace_positions has changed, but Ex"
    ):
        from_pretrained("linear-rope")


def test_model_with_an_encoding_that_is_not_imported():
    flags = {"_name": "linear_lm_mine", "encoding": "mine"}
    with pytest.raises(ValueError, match="encoding 'mine' of the exported model is not registered"):
        ExportedLanguageModel(ExportedConfig(flags=flags))
