"""Packed sequences: rows that contain several documents, each of which is computed as a row of its own.

Attention of a document is exactly that of a separate call, with any encoding, decay and normalization,
because the document becomes a row of a batch, with padding only after it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_lrpe.ops.autograd import is_exporting
from fairseq_lrpe.ops.position_index import integer_positions

_MAX_PADDED = 1.25
"""Number of tokens with padding, relative to that without, up to which all documents form one batch."""


class DocumentGroup(NamedTuple):
    """Documents of similar lengths, which are the rows of one padded batch.

    Attributes:
        count: number of documents.
        length: length of the longest one.
        tokens: index of each token of the group among all B·L tokens, (n,).
        places: index of each token among the count·length places of the batch, (n,).
    """

    count: int  # type: ignore[assignment]  # a field may be named as a method of tuples
    length: int
    tokens: Tensor
    places: Tensor

    def rows(self, x: Tensor, padding: float = 0) -> Tensor:
        """Returns the documents (count, length, ...) of x (B, L, ...), followed by ``padding``."""
        own = x.flatten(0, 1).index_select(0, self.tokens.to(x.device))
        rows = own.new_full((self.count * self.length, *own.shape[1:]), padding)
        return rows.index_copy(0, self.places.to(x.device), own).unflatten(0, (self.count, self.length))

    def without_padding(self, rows: Tensor) -> Tensor:
        """Returns the tokens (n, ...) of the documents (count, length, ...)."""
        return rows.flatten(0, 1).index_select(0, self.places.to(rows.device))

    def has_padding(self) -> bool:
        """Returns whether the documents have different lengths."""
        return self.count * self.length != len(self.tokens)


class Documents(NamedTuple):
    """The documents in the rows of a batch, as :meth:`from_ids` computes them from their numbers.

    Attributes:
        shape: (B, L), the shape of the batch.
        groups: the documents. They are one group if its padding is at most a quarter of the tokens.
            Otherwise, a group has the documents with more than 2^(n−1) and at most 2^n tokens, for each n, so
            that there is never more padding than tokens.
        order: index of each of the B·L tokens in the concatenated ``tokens`` of the groups.
    """

    shape: tuple[int, int]
    groups: list[DocumentGroup]
    order: Tensor

    @classmethod
    def from_ids(cls, document_ids: Tensor) -> "Documents":
        """Returns the documents with the given numbers, which are read from their device.

        Args:
            document_ids: integers (B, L), the number of the document of each token. Numbers of a row must not
                descend. Tokens of different rows belong to different documents.

        Raises:
            TypeError: if ``document_ids`` are not a tensor of integers.
            ValueError: if they do not have two dimensions, descend, or have no values.
        """
        numbers = integer_positions(document_ids, "document_ids")
        if numbers.dim() != 2:
            raise ValueError(f"document_ids must have shape (batch, length), not {tuple(numbers.shape)}")
        if numbers.is_meta or is_exporting():
            raise ValueError(
                "document_ids have no values on the meta device and in torch.export: pass "
                "Documents.from_ids(...) of numbers that have"
            )
        numbers = numbers.cpu()
        changes = numbers.diff(dim=1)
        if (changes < 0).any():
            raise ValueError(
                "document_ids must not descend along a row, because a document is contiguous: number the "
                "documents of a row in their order, including padding at its end"
            )
        starts = torch.cat([torch.ones_like(numbers[:, :1], dtype=torch.bool), changes > 0], dim=1).flatten()
        first = starts.nonzero().squeeze(1)  # (D,), the first token of each document
        lengths = first.diff(append=torch.tensor([numbers.numel()]))
        document = starts.cumsum(0) - 1  # (B·L,)
        groups = []
        for members in _group(lengths):
            tokens = members[document].nonzero().squeeze(1)
            own = document[tokens]
            longest = int(lengths[members].max()) if len(tokens) else 0
            places = (members.cumsum(0)[own] - 1) * longest + tokens - first[own]
            indices = tokens.to(document_ids.device), places.to(document_ids.device)
            groups.append(DocumentGroup(int(members.sum()), longest, *indices))
        order = torch.cat([group.tokens for group in groups]).argsort()
        batch, length = numbers.shape
        return cls((batch, length), groups, order)


def _group(lengths):
    """Returns a list of bools (D,), which are True at the documents of a group."""
    if not len(lengths) or len(lengths) * lengths.max() <= _MAX_PADDED * lengths.sum():
        return [torch.ones_like(lengths, dtype=torch.bool)]
    exponents = torch.bucketize(lengths, 2 ** torch.arange(int(lengths.max()).bit_length() + 1))
    return [exponents == n for n in exponents.unique().tolist()]


def document_ids_from_cu_seqlens(cu_seqlens: Tensor) -> Tensor:
    """Returns the numbers (1, L) of documents that are given by their boundaries, as for flash-attention.

    Args:
        cu_seqlens: integers (n + 1,), the cumulative lengths of n documents: 0, .., L.

    Raises:
        TypeError: if ``cu_seqlens`` is not a tensor of integers.
        ValueError: if it does not have one dimension, does not start with 0, or descends.
    """
    ends = integer_positions(cu_seqlens, "cu_seqlens")
    lengths = ends.diff()
    if ends.dim() != 1 or not len(ends) or ends[0] != 0 or (lengths < 0).any():
        raise ValueError(
            "cu_seqlens must be the cumulative lengths (documents + 1,) of documents, such as [0, 5, 8]"
        )
    return torch.arange(len(lengths), device=ends.device).repeat_interleave(lengths)[None]


def by_document(
    function: Callable[..., Any],
    document_ids: Tensor | Documents,
    *,
    causal: bool,
    key_padding_mask: Tensor | None = None,
    **inputs: Tensor | None,
) -> Tensor:
    """Returns the outputs (B, L, ...) of a function that is applied to each document as a row of a batch.

    Args:
        function: function of the keyword arguments ``inputs`` and ``key_padding_mask``, from (D, M, ...) to
            (D, M, ...) for D documents of at most M tokens. It is called once for each group of documents.
        document_ids: numbers (B, L) of the documents, or the result of :meth:`Documents.from_ids`.
        causal: whether the function is causal, so that padding after a document has no effect without a mask.
        key_padding_mask: (B, L), True at padding in the documents, or None.
        **inputs: tensors (B, L, ...); None is not passed to the function.

    Raises:
        ValueError: if an input does not have the shape (B, L, ...), and as :meth:`Documents.from_ids` does.
        TypeError: if ``document_ids`` are not a tensor of integers.
    """
    documents = document_ids if isinstance(document_ids, Documents) else Documents.from_ids(document_ids)
    given = {name: x for name, x in inputs.items() if x is not None}
    for x in given.values():
        if x.shape[:2] != documents.shape:
            raise ValueError(
                f"document_ids must have shape {tuple(x.shape[:2])} of the tokens, not {documents.shape}"
            )
    is_padded = any(group.has_padding() for group in documents.groups)
    if key_padding_mask is None and is_padded and not causal:
        key_padding_mask = torch.zeros(documents.shape, dtype=torch.bool, device=x.device)
    outputs = []
    for group in documents.groups:
        rows = {name: group.rows(x) for name, x in given.items()}
        mask = None if key_padding_mask is None else group.rows(key_padding_mask, padding=True)
        outputs.append(group.without_padding(function(**rows, key_padding_mask=mask)))
    out = torch.cat(outputs)
    return out.index_select(0, documents.order.to(out.device)).unflatten(0, documents.shape)
