"""Lets fairseq's --no-repeat-ngram-size do what it says where fairseq has no CUDA extension for it.

fairseq's Python version compares the end of the buffer that a search fills, which is padding until the last
step, in place of the tokens before the next one: it never blocks anything.
"""

from fairseq.ngram_repeat_block import NGramRepeatBlock


def mend_blocking() -> None:
    """Has fairseq's search compare the tokens that it has found so far."""
    of_all = NGramRepeatBlock._no_repeat_ngram

    def of_found(self, tokens, lprobs, bsz, beam_size, step):
        return of_all(self, tokens[:, : step + 1], lprobs, bsz, beam_size, step)

    NGramRepeatBlock._no_repeat_ngram = of_found
