"""Compare time and memory of generation by language and translation models with random weights and inputs.

fairseq's beam search generates --length tokens for each sentence. A translation model also reads --length
tokens, and a language model starts without a prompt. The models take turns, so that other work on the machine
affects all of them. Flags after -- apply to all models; an ARCH in quotes can have flags of its own. For
example:

  lrpe bench generate linear_lm_base softmax_lm_base --length 1024
  lrpe bench generate transformer 'linear_transformer_base --decoder-attention linear --encoding-in both'
"""

import shlex
from argparse import Namespace
from collections.abc import Callable
from functools import partial

import torch
from fairseq import utils
from fairseq.sequence_generator import SequenceGenerator

from fairseq_lrpe.benchmarks import measurement
from fairseq_lrpe.benchmarks.train import family_of, random_batch, setup, sizes
from fairseq_lrpe.utils.cli import min_int
from fairseq_lrpe.utils.errors import UserError


def generation(model: str, args: Namespace) -> Callable[[], None]:
    family = family_of(shlex.split(model)[0])
    if "decoder_layers" not in family.layer_flags:
        raise UserError(f"{model} does not generate text: choose language or translation models")
    args = sizes(family, args)
    # The end of a sentence precedes the first token.
    cfg, task = setup(model, Namespace(**{**vars(args), "length": args.length + 1}))
    dtype = torch.float
    if cfg.common.fp16:
        dtype = torch.half
    elif cfg.common.bf16:
        dtype = torch.bfloat16
    network = task.build_model(cfg.model).eval().to(measurement.device(args.cpu), dtype)
    dictionary = task.target_dictionary
    generator = SequenceGenerator(
        [network],
        dictionary,
        beam_size=args.beam,
        max_len_a=0,
        max_len_b=args.length,
        min_len=args.length,
        max_len=args.length + 1,
    )
    batch = random_batch(family, args, dictionary.pad())
    if not family.has_target:
        batch["net_input"]["src_tokens"] = torch.full((args.batch_size, 1), dictionary.eos())
        batch["net_input"]["src_lengths"] = torch.ones(args.batch_size, dtype=torch.long)
    if measurement.device(args.cpu) == "cuda":
        batch = utils.move_to_cuda(batch)
    return lambda: generator.generate([], batch)


def main(arguments: list[str] | None = None) -> None:
    parser = measurement.model_parser("generate", __doc__)
    parser.add_argument("--beam", type=min_int(1), default=1, help="beam size (default: %(default)s)")
    args = measurement.parse(parser, arguments)
    args.length = args.length or 128
    with measurement.measuring(parser.prog):
        rows = measurement.compare(partial(generation, args=args), args.archs, args)
        for row in rows:
            row["ms a token"] = row.pop("ms") / args.length
            row["tokens/s"] = 1000 * args.batch_size / row["ms a token"]
        sizes = f"{args.length:,} tokens for each of {args.batch_size} sentences, beam {args.beam}"
        measurement.report(rows, f"generation of {sizes}", args)
