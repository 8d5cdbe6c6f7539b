"""Measures the time that a language model's memory costs, with random tokens and weights.

Evaluation with a memory of hidden states as long as a segment, and with the running sums of linear attention,
is compared with evaluation without a memory. With running sums, the last of many segments are compared with
the first ones. A training step of Transformer-XL is compared with a direct implementation of its formula. All
measurements but the second are interleaved.
"""

import copy
import statistics
from argparse import Namespace
from functools import partial
from itertools import count

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from rich.progress import track
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import fairseq_lrpe.models  # noqa: F401  (fairseq imports a plugin's models only if it is the first to import it)
from fairseq_lrpe.attention.fairseq_adapter import FairseqSelfAttention
from fairseq_lrpe.benchmarks import shared
from fairseq_lrpe.benchmarks.speed import training_config
from fairseq_lrpe.encodings.xl import sinusoids
from fairseq_lrpe.methods import architecture
from fairseq_lrpe.models.memory import Memory, StateMemory
from fairseq_lrpe.tasks.memory_lm import MemoryLMTask, Segment

EDGE = 100
"""Number of the first segments, and of the last ones, that are compared."""


def build(arch: str, args: Namespace) -> nn.Module:
    """Returns a decoder with the layers of Transformer-XL and a memory as long as a segment."""
    flags = {
        "arch": arch,
        "task": "memory_lm",
        "tokens_per_sample": args.length,
        "memory_length": args.length,
        "token_positions": "none",
        "decoder_layers": args.layers,
        "decoder_embed_dim": args.width,
        "decoder_attention_heads": args.heads,
        "decoder_ffn_embed_dim": args.ffn,
        "no_decoder_normalize_before": True,
        "share_decoder_input_output_embed": True,
        "dropout": 0.0,
        "max_tokens": args.length,
    }
    cfg, dictionary = training_config(flags, ["no data"]), Dictionary()
    for number in range(args.vocab_size - len(dictionary)):
        dictionary.add_symbol(f"w{number}")
    return MemoryLMTask(cfg.task, dictionary).build_model(cfg.model).decoder.to(shared.DEVICE)


def random_tokens(args: Namespace) -> Tensor:
    """Returns a tensor (streams, length) of random token ids."""
    return torch.randint(4, args.vocab_size, (args.streams, args.length), device=shared.DEVICE)


@torch.no_grad()
def evaluation_times(attention: str, method: str, args: Namespace) -> dict[str, list[float]]:
    """Returns {"none", "hidden" or "state": seconds of a segment in each round} for each kind of memory.

    Two rounds at the beginning, which fill the memory, are not included.
    """
    decoder = build(architecture(attention, "lm", method), args).eval()
    memories = {"none": None, "hidden": decoder.memory}
    if attention == "linear" and method != "spe":
        memories["state"] = StateMemory(decoder.layers)
    tokens = random_tokens(args)

    def evaluate(memory, numbers):
        decoder.memory = memory
        decoder(tokens, segment=Segment("x", 0, next(numbers)))

    steps = {name: partial(evaluate, memory, count()) for name, memory in memories.items()}
    return shared.interleave(steps, track(range(args.rounds + 2), f"{attention} {method}"), warm_up=2)


@torch.no_grad()
def long_evaluation(method: str, args: Namespace) -> tuple[list[float], list[int]]:
    """Evaluates many consecutive segments with a memory of running sums.

    Returns:
        The time of each segment in seconds, and the size of the sums after it in bytes.
    """
    decoder = build(architecture("linear", "lm", method), args).eval()
    decoder.memory, times, sizes = StateMemory(decoder.layers), [], []
    tokens = random_tokens(args)
    for number in track(range(args.segments), f"{args.segments:,} segments, {method}"):
        times.append(shared.seconds(lambda: decoder(tokens, segment=Segment("x", 0, number))))  # noqa: B023
        [(_, states)] = decoder.memory.saved.values()
        sizes.append(sum(x.nbytes for x in tree_leaves(states) if isinstance(x, Tensor)))
    return times, sizes


class PlainXL(FairseqSelfAttention):
    """Transformer-XL's attention, implemented as in Dai et al. 2019, Section 3.3 and Appendix B.

    The output at position i is Σ_j softmax_j(((q_i + u)·k_j + (q_i + v)·W_r R_{i−j}) / √d) v_j. One matrix
    product projects memory and segment to queries, keys and values. The position scores are shifted by
    padding them with a column and reshaping.
    """

    def __init__(self, ours: FairseqSelfAttention):
        super().__init__(ours.encoding)
        self.to(ours.out_proj.weight).load_state_dict(ours.state_dict())

    def forward(self, query, key=None, value=None, **_):
        heads, length = (self.num_heads, self.head_dim), len(query)
        x = query if self.memory is None else torch.cat([self.memory, query])
        weight = torch.cat([p.weight for p in (self.q_proj, self.k_proj, self.v_proj)])
        bias = torch.cat([p.bias for p in (self.q_proj, self.k_proj, self.v_proj)])
        q, k, v = (y.unflatten(-1, heads) for y in F.linear(x, weight, bias).chunk(3, dim=-1))
        q, keys, encoding = q[-length:], len(x), self.encoding
        distances = torch.arange(keys - 1, -1, -1, device=x.device)
        r = encoding.w_r(sinusoids(distances, heads[0] * heads[1]).to(x.dtype)).unflatten(-1, heads)
        content = torch.einsum("ibhd,jbhd->ijbh", q + encoding.u, k)
        position = torch.einsum("ibhd,jhd->ijbh", q + encoding.v, r)
        padded = torch.cat([position.new_zeros(length, 1, *position.shape[2:]), position], dim=1)
        position = padded.view(keys + 1, length, *position.shape[2:])[1:].view_as(position)
        scores = (content + position) * encoding.scale
        later = torch.ones(length, keys, dtype=torch.bool, device=x.device).triu(keys - length + 1)
        weights = scores.masked_fill(later[..., None, None], float("-inf")).softmax(dim=1)
        return self.out_proj(torch.einsum("ijbh,jbhd->ibhd", weights, v).flatten(2)), None


def with_plain_attention(decoder: nn.Module) -> nn.Module:
    """Returns a copy of a decoder with :class:`PlainXL` as self-attention."""
    plain = copy.deepcopy(decoder)
    for layer in plain.layers:
        layer.self_attn = PlainXL(layer.self_attn)
    plain.memory = Memory(plain.layers, decoder.memory.length)
    return plain


def training_times(args: Namespace) -> list[tuple[float, float]]:
    """Returns [(seconds of a training step of our Transformer-XL, of one with PlainXL)] for each round."""
    ours, tokens = build("softmax_lm_xl", args).train(), random_tokens(args)

    def train(decoder, numbers):
        decoder.zero_grad()
        logits = decoder(tokens, segment=Segment("train", 0, next(numbers)))[0]
        F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()

    decoders = {"ours": ours, "plain": with_plain_attention(ours)}
    steps = {name: partial(train, decoder, count()) for name, decoder in decoders.items()}
    times = shared.interleave(steps, track(range(args.rounds + 2), "training"), warm_up=2)
    return list(zip(*times.values(), strict=True))


def measure_evaluation(args: Namespace, selected: dict[str, list[str]], sizes: str) -> None:
    """Measures evaluation with and without a memory, and prints a table."""
    table = shared.Table(
        f"evaluation: {sizes}, {args.rounds} interleaved rounds",
        "medians of a segment's seconds with a memory / without; spread: range of the rounds' ratios",
    )
    for attention, method in [(attention, name) for attention, names in selected.items() for name in names]:
        times = evaluation_times(attention, method, args)
        speed = args.streams * args.length / statistics.median(times["none"])
        row = {"model": architecture(attention, "lm", method), "tokens/s without": speed}
        for name in ("hidden", "state"):
            pairs = zip(times["none"], times[name], strict=True) if name in times else None
            row[f"{name} / without"], row[f"{name}: spread"] = shared.ratios(pairs) if pairs else (None, None)
        table.rows.append(row)
    table.print()


def measure_many_segments(args: Namespace, methods: list[str], sizes: str) -> None:
    """Measures many segments with running sums, and prints a table of the first and the last ones."""
    table = shared.Table(
        f"milliseconds of a segment with running sums: {sizes}, of {args.segments:,} segments",
        f"medians of the first and the last {min(EDGE, args.segments)} segments",
    )
    for method in methods:
        times, memory = long_evaluation(method, args)
        first, last = (1000 * statistics.median(part) for part in (times[:EDGE], times[-EDGE:]))
        size = " to ".join(f"{n:,}" for n in sorted({min(memory), max(memory)}))
        row = {"first": first, "last": last, "last / first": last / first, "kept, bytes": size}
        table.rows.append({"model": f"linear_lm_{method}", **row})
    if methods:
        table.print()


def measure_training(args: Namespace, sizes: str) -> None:
    """Measures training steps of Transformer-XL, and prints a table."""
    pairs = training_times(args)
    ours, plain = (1000 * statistics.median(times) for times in zip(*pairs, strict=True))
    ratio, spread = shared.ratios(pairs)
    row = {"ours": ours, "plain formula": plain}
    row |= {"times as fast": ratio, "spread": spread}
    shared.Table(f"milliseconds of a training step with a memory: {sizes}", rows=[row]).print()


def main(arguments: list[str] | None = None) -> None:
    parser = shared.BenchmarkParser("memory", __doc__)
    default = ["xl", "rope", "tmlr_type1"]
    parser.add_methods(", ".join(default))
    parser.add_int("--streams", 4, "number of parallel streams of text, which is the batch size")
    parser.add_int("--length", 150, "number of tokens of a segment, and of the memory")
    parser.add_int("--width", 512, "embedding dimension", minimum=2)
    parser.add_int("--heads", 8, "number of attention heads")
    parser.add_int("--ffn", 2100, "dimension of the feed-forward layers")
    parser.add_int("--segments", 1000, "number of segments with running sums")
    parser.add_sizes(rounds=15, layers=16, vocab_size=10000)
    args = parser.parse_args(arguments)
    selected = parser.methods_by_attention(args, default)
    sizes = f"{args.layers} layers of {args.width}, {args.streams} × {args.length} tokens"
    with shared.measuring(parser.prog):
        measure_evaluation(args, selected, sizes)
        measure_many_segments(args, [m for m in selected.get("linear", ()) if m != "spe"], sizes)
        measure_training(args, sizes)
