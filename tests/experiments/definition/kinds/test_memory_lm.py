"""Evaluation of language models with a memory."""

import pytest
from support.tiny import SMALL_LM

SMALL = [*SMALL_LM, "train.tokens_per_sample=16", "train.memory_length=16", "train.log_interval=2"]
SMALL += ["train.validate_interval_updates=4", "train.save_interval_updates=4", "updates=8", "train.lr=0.02"]


def test_evaluation_with_several_memories(data_bin, evaluated):
    more = "evaluations.far={split: test, segment: 8, memory: 40, clamp: 20, same_length: true, streams: 2}"
    words = ["--attention", "softmax", f"data={data_bin}", *SMALL, more]
    _, found = evaluated("lm/transformer_xl_mini", "xl", *words)
    assert set(found) == {"training", "test_m0", "test_m64", "test_m256", "far"}
    none, some, all_, far = (found[x]["perplexity"] for x in ("test_m0", "test_m64", "test_m256", "far"))
    assert len({none, some, far}) == 3 and all(1 < x < 100 for x in (none, some, far))
    assert some == all_  # a stream of this text has fewer than 64 tokens
    assert found["test_m0"]["tokens"] == found["test_m256"]["tokens"]
    # However many streams there are, all tokens but the first of the split are predicted.
    assert found["far"]["tokens"] == found["test_m0"]["tokens"]


@pytest.mark.slow
def test_the_papers_model_with_adaptive_softmax(data_bin, evaluated):
    cutoffs = ["train.adaptive_softmax_cutoff=10,20,30", "train.adaptive_input_cutoff=10,20,30"]
    changes = ["--attention", "softmax", f"data={data_bin}", *SMALL, "train.lr=5e-3"]
    changes += ["train.decoder_embed_dim=82", "train.decoder_attention_heads=2"]
    changes += [*cutoffs, "updates=40", "evaluate.flags.streams=2"]
    changes += ["train.validate_interval_updates=20", "train.save_interval_updates=20"]
    _, found = evaluated("lm/transformer_xl", "lfhc", *changes)
    assert found["test_m150"]["tokens"] == found["test_m640"]["tokens"]
    assert max(found[name]["perplexity"] for name in ("test_m150", "test_m640")) < 40  # words
