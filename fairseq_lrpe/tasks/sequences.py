"""Datasets of sequences in which each token is predicted from those before it."""

import torch
from fairseq.data import FairseqDataset


class Predicted(FairseqDataset):
    """Sequences (index, tokens) of ``length`` predicted tokens at most, and one before them."""

    length: int

    def num_tokens(self, index):
        return self.length

    def size(self, index):
        return self.length

    def collater(self, samples):
        """Returns a batch of language modelling of sequences that are equally long."""
        if not samples:
            return {}
        tokens = torch.stack([sequence for _, sequence in samples])
        source, target = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        return {
            "id": torch.tensor([int(index) for index, _ in samples]),
            "nsentences": len(samples),
            "ntokens": target.numel(),
            "net_input": {
                "src_tokens": source,
                "src_lengths": torch.full((len(samples),), source.size(1)),
            },
            "target": target,
        }
