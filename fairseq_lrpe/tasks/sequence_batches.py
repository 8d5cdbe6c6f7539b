"""Base class of datasets of sequences in which each token is predicted from the previous ones."""

import torch
from fairseq.data import FairseqDataset


class SequenceDataset(FairseqDataset):
    """Sequences (index, tokens) with one token followed by at most ``length`` predicted tokens."""

    length: int

    def num_tokens(self, index):
        return self.length

    size = num_tokens

    def collater(self, samples):
        """Returns a language modeling batch of sequences of equal length."""
        if not samples:
            return {}
        tokens = torch.stack([sequence for _, sequence in samples])
        source, target = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        lengths = torch.full((len(samples),), source.size(1))
        return {
            "id": torch.tensor([int(index) for index, _ in samples]),
            "nsentences": len(samples),
            "ntokens": target.numel(),
            "net_input": {"src_tokens": source, "src_lengths": lengths},
            "target": target,
        }
