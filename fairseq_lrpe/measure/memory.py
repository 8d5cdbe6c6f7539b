"""Measures what a memory of language models costs, on random tokens and with random weights.

``python -m fairseq_lrpe.measure.memory`` compares, in turn: an evaluated token with a memory as long as a
segment, and with running sums, to one without a memory; the last of many segments with running sums to the
first; and a training step of Transformer-XL to one whose attention is its formula written plainly.
"""

import copy
import logging
import statistics
from argparse import ArgumentParser, Namespace

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import fairseq_lrpe.models  # noqa: F401  (fairseq imports a plugin's models only if it is the first to import it)
from fairseq_lrpe.attention import SelfAttention
from fairseq_lrpe.encodings.xl import sinusoids
from fairseq_lrpe.measure.shared import add_methods, measuring, numbers, plan, seconds, spread
from fairseq_lrpe.measure.speed import settings
from fairseq_lrpe.methods import architecture
from fairseq_lrpe.models.memory import Memory, StateMemory
from fairseq_lrpe.programs import at_least, show_wide
from fairseq_lrpe.tasks.memory_lm import MemoryLMTask, Segment

ENDS = 100
"""Segments at either end of many that are compared."""


def build(arch: str, args: Namespace) -> nn.Module:
    """Returns a decoder of Transformer-XL's form, whose memory is as long as a segment."""
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
    cfg, dictionary = settings(flags, ["no data"]), Dictionary()
    for number in range(args.vocab_size - len(dictionary)):
        dictionary.add_symbol(f"w{number}")
    decoder = MemoryLMTask(cfg.task, dictionary).build_model(cfg.model).decoder
    return decoder.cuda() if torch.cuda.is_available() else decoder


def text(args: Namespace, segments: int) -> Tensor:
    """Returns random tokens (streams, segments · length)."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.randint(4, args.vocab_size, (args.streams, segments * args.length), device=device)


@torch.no_grad()
def evaluated(attention: str, method: str, args: Namespace) -> dict[str, list[float]]:
    """Returns {memory: seconds of a segment in each round}, the memory filled before."""
    decoder = build(architecture(attention, "lm", method), args).eval()
    memories = {"none": None, "hidden": decoder.memory}
    if attention == "linear" and method != "spe":
        memories["state"] = StateMemory(decoder.layers)
    times, tokens = {name: [] for name in memories}, text(args, 1)
    for number in track(range(args.rounds + 2), f"{attention} {method}"):
        names = list(memories)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            decoder.memory = memories[name]
            taken = seconds(lambda: decoder(tokens, segment=Segment("x", 0, number)))  # noqa: B023
            if number > 1:
                times[name].append(taken)
    return times


@torch.no_grad()
def many_segments(method: str, args: Namespace) -> tuple[list[float], list[int]]:
    """Returns the seconds and the bytes that are kept of each of many segments with running sums."""
    decoder = build(architecture("linear", "lm", method), args).eval()
    decoder.memory, times, sizes = StateMemory(decoder.layers), [], []
    tokens = text(args, 1)
    for number in track(range(args.segments), f"{args.segments:,} segments, {method}"):
        times.append(seconds(lambda: decoder(tokens, segment=Segment("x", 0, number))))  # noqa: B023
        [(_, kept)] = decoder.memory.kept.values()
        tensors = [x for layer in kept for x in tree_leaves(layer)]
        sizes.append(sum(x.nbytes for x in tensors if isinstance(x, Tensor)))
    return times, sizes


class PlainXL(SelfAttention):
    """Computes softmax((q_i + u)·k_j + (q_i + v)·W_r R_{i−j}) v_j as Dai et al. 2019 do (Eq. 5, App. B).

    Queries, keys and values of memory and segment come from one product; the scores are two sums over the
    features, of which the second is shifted by padding it with a column and reading it anew.
    """

    def __init__(self, ours: SelfAttention):
        super().__init__(ours.encoding)
        self.to(ours.out_proj.weight).load_state_dict(ours.state_dict())

    def forward(self, query, key=None, value=None, **_):
        heads, length = (self.num_heads, self.head_dim), len(query)
        x = query if self.before is None else torch.cat([self.before, query])
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


def plainly(decoder: nn.Module) -> nn.Module:
    """Returns a copy of a decoder whose attention is written plainly."""
    copied = copy.deepcopy(decoder)
    for layer in copied.layers:
        layer.self_attn = PlainXL(layer.self_attn)
    copied.memory = Memory(copied.layers, decoder.memory.length)
    return copied


def training(args: Namespace) -> list[tuple[float, float]]:
    """Returns the seconds of a training step of (ours, the plain formula) in each round."""
    ours = build("softmax_lm_xl", args).train()
    decoders, tokens, pairs = (ours, plainly(ours)), text(args, 1), []

    def step(decoder, number):
        decoder.zero_grad()
        logits = decoder(tokens, segment=Segment("train", 0, number))[0]
        F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()

    for number in track(range(args.rounds + 2), "training"):
        taken = [0.0, 0.0]
        for i in (0, 1) if number % 2 else (1, 0):
            taken[i] = seconds(lambda: step(decoders[i], number))  # noqa: B023
        if number > 1:
            pairs.append(tuple(taken))
    return pairs


def main():
    parser = ArgumentParser(prog="python -m fairseq_lrpe.measure.memory", description=__doc__)
    add = parser.add_argument
    add_methods(parser, "xl, rope, tmlr_type1")
    add("--streams", type=at_least(1), default=4, help="default: %(default)s")
    add(
        "--length",
        type=at_least(1),
        default=150,
        help="of a segment and its memory (default: %(default)s)",
    )
    add("--layers", type=at_least(1), default=16, help="default: %(default)s")
    add("--width", type=at_least(2), default=512, help="default: %(default)s")
    add("--heads", type=at_least(1), default=8, help="default: %(default)s")
    add("--ffn", type=at_least(1), default=2100, help="default: %(default)s")
    add("--vocab-size", type=at_least(5), default=10000, help="default: %(default)s")
    add("--rounds", type=at_least(1), default=15, help="default: %(default)s")
    add("--segments", type=at_least(1), default=1000, help="with running sums (default: %(default)s)")
    args = parser.parse_args()
    chosen = plan(parser, args, ["xl", "rope", "tmlr_type1"])
    logging.disable(logging.INFO)
    with measuring("memory"):
        show(args, chosen)


def show(args: Namespace, chosen: dict[str, list[str]]) -> None:
    """Measures and prints, a table for each of the three."""
    sizes = f"{args.layers} layers of {args.width}, {args.streams} × {args.length} tokens"
    table = Table(
        "model",
        *numbers("tokens/s without", "hidden / without", "spread", "state / without", "spread"),
        title=f"an evaluated token: {sizes}, {args.rounds} interleaved rounds",
        caption="medians of a segment's seconds with a memory / without; spread: least to greatest",
    )
    for attention, methods in chosen.items():
        for method in methods:
            times = evaluated(attention, method, args)
            speed = args.streams * args.length / statistics.median(times["none"])
            cells = [architecture(attention, "lm", method), f"{speed:,.0f}"]
            for name in ("hidden", "state"):
                pairs = list(zip(times["none"], times.get(name, []), strict=False))
                ratio = statistics.median(b / a for a, b in pairs) if pairs else None
                cells += [f"{ratio:.2f}", spread(pairs)] if pairs else ["-", "-"]
            table.add_row(*cells)
    show_wide(table)
    table = Table(
        "model",
        *numbers("first", "last", "last / first", "kept, bytes"),
        title=f"milliseconds of a segment with running sums: {sizes}, of {args.segments:,} segments",
        caption=f"medians of {min(ENDS, args.segments)} segments at either end",
    )
    for method in (m for m in chosen.get("linear", ()) if m != "spe"):
        times, kept = many_segments(method, args)
        first, last = (1000 * statistics.median(part) for part in (times[:ENDS], times[-ENDS:]))
        told = " to ".join(f"{size:,}" for size in sorted({min(kept), max(kept)}))
        table.add_row(f"linear_lm_{method}", f"{first:.1f}", f"{last:.1f}", f"{last / first:.2f}", told)
    show_wide(table)
    pairs = training(args)
    ours, plain = (1000 * statistics.median(times) for times in zip(*pairs, strict=True))
    table = Table(
        *numbers("ours", "Transformer-XL's formula written plainly", "times as fast", "spread"),
        title=f"milliseconds of a training step with a memory: {sizes}",
    )
    ratio = statistics.median(b / a for a, b in pairs)
    table.add_row(f"{ours:,.0f}", f"{plain:,.0f}", f"{ratio:.2f}", spread(pairs))
    show_wide(table)


if __name__ == "__main__":
    main()
