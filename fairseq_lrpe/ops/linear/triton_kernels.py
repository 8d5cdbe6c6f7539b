"""Triton kernel of causal linear attention and its gradients, which :mod:`.triton_backend` launches.

The kernel computes the output and all gradients, which have the same form: with rows x_i, y_j and z_j, and
sums c of log decays up to each position,

    o_i = Σ_{j≤i} exp(c_i − c_j) (x_i·y_j + s_i t_j) z_j.

| result        | x | y | z | s      | t      | order of rows |
|---------------|---|---|---|--------|--------|---------------|
| output        | q | k | v |        |        | forward       |
| gradient of q | g | v | k | g_sums | 1      | forward       |
| gradient of k | v | g | q | 1      | g_sums | reversed      |
| gradient of v | k | q | g |        |        | reversed      |

Here, g and g_sums are the gradients of the dividend and of the denominator. A program computes Z columns of
the rows of a segment of a head, in chunks of C rows. The state in registers is Σ y zᵀ (X, Z), where X is the
next power of two of the width of x. Before a segment, the state is the sum of the initial state and of
additions of earlier segments, which another launch has stored. In memory, states are Σ k vᵀ (d, dv) and Σ k
(d). All sums are in float32; each product is computed by three products in TF32, which together are about as
exact.
"""

import triton
import triton.language as tl

_PRECISION = tl.constexpr("tf32x3")


@triton.jit
def _load_rows(matrix, start, stride, length, column, WIDTH: tl.constexpr, C: tl.constexpr):
    """Returns columns of C rows, which are 0 beyond the matrix, (C, columns)."""
    position = start + tl.arange(0, C)[:, None]
    inside = (position < length) & (column[None, :] < WIDTH)
    return tl.load(matrix + position * stride + column[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _store_rows(matrix, rows, start, stride, length, column, WIDTH: tl.constexpr):
    position = start + tl.arange(0, rows.shape[0])[:, None]
    inside = (position < length) & (column[None, :] < WIDTH)
    tl.store(matrix + position * stride + column[None, :], rows, mask=inside)


@triton.jit
def _load_state(kv, k_sum, row, column, WIDTH: tl.constexpr, VALUES: tl.constexpr, TRANSPOSED: tl.constexpr):
    """Returns rows and columns of Σ k vᵀ, or of its transpose, (X, Z), and Σ k of the keys among them."""
    key = column[None, :] if TRANSPOSED else row[:, None]
    value = row[:, None] if TRANSPOSED else column[None, :]
    index = column if TRANSPOSED else row
    matrix = tl.load(kv + key * VALUES + value, mask=(key < WIDTH) & (value < VALUES), other=0.0)
    return matrix, tl.load(k_sum + index, mask=index < WIDTH, other=0.0)


@triton.jit
def _store_state(kv, k_sum, state, vector, row, column, WIDTH: tl.constexpr, VALUES: tl.constexpr):
    inside = (row[:, None] < WIDTH) & (column[None, :] < VALUES)
    tl.store(kv + row[:, None] * VALUES + column[None, :], state, mask=inside)
    tl.store(k_sum + row, vector, mask=row < WIDTH)


@triton.jit
def _decays(log_decay, start, stride, length, C: tl.constexpr, REVERSED: tl.constexpr):
    """Returns the decays of a chunk.

    The decays are the weights of rows j of y for rows i of x (C, C), the decays of the state before the chunk
    for rows of x (C) and of rows of y for the state after it (C), and the sum of the log decays.
    """
    row = tl.arange(0, C)
    causal = row[:, None] <= row[None, :] if REVERSED else row[:, None] >= row[None, :]
    if log_decay is None:
        one = tl.full([C], 1.0, tl.float32)
        return tl.where(causal, 1.0, 0.0), one, one, 0.0
    else:
        position = start + row
        own = tl.load(log_decay + position * stride, mask=position < length, other=0.0).to(tl.float64)
        sums = tl.cumsum(own, 0)
        total = tl.sum(own, 0)
        # Two float32 numbers, because differences of sums after a strong decay are small.
        high = sums.to(tl.float32)
        low = (sums - high.to(tl.float64)).to(tl.float32)
        between = (high[:, None] - high[None, :]) + (low[:, None] - low[None, :])
        between = tl.where(causal, -between if REVERSED else between, 0.0)
        weights = tl.where(causal, tl.exp(between), 0.0)
        from_start = tl.exp(high)
        to_end = tl.exp((total - sums).to(tl.float32))
        x_decay = to_end if REVERSED else from_start
        y_decay = from_start if REVERSED else to_end
        return weights, x_decay, y_decay, total.to(tl.float32)


@triton.jit(do_not_specialize=["length", "chunks", "segments"])
def attend(
    x, y, z, log_decay, first_kv, first_k_sum, additions, out, sums, last_kv, last_k_sum, g_sums,
    decay_b, decay_h, decay_l, x_b, x_h, x_l, y_b, y_h, y_l, z_b, z_h, z_l,
    out_b, out_h, out_l, heads, length, chunks, segments, eps,
    WIDTH: tl.constexpr, VALUES: tl.constexpr, X: tl.constexpr, Z: tl.constexpr, C: tl.constexpr,
    TRANSPOSED: tl.constexpr, REVERSED: tl.constexpr,
):  # fmt: skip
    """Computes rows of ``out``, or, if it is None, the additions of segments to the state.

    Matrices have adjacent columns; log decays, ``sums`` (the denominators) and ``g_sums`` are (B, H, L).
    Arguments that are None are zero, or results that are not needed. ``first`` and ``last`` are the states
    before the first and after the last row of the sequence.
    """
    head = tl.program_id(0).to(tl.int64)  # of all sequences
    segment = tl.program_id(1)
    row = tl.arange(0, X)
    column = tl.program_id(2) * Z + tl.arange(0, Z)  # of z and out
    size: tl.constexpr = WIDTH * VALUES
    addition_size: tl.constexpr = size + WIDTH + 4 - WIDTH % 4
    x_width: tl.constexpr = VALUES if TRANSPOSED else WIDTH
    z_width: tl.constexpr = WIDTH if TRANSPOSED else VALUES
    b = head // heads
    h = head % heads
    x += b * x_b + h * x_h
    y += b * y_b + h * y_h
    z += b * z_b + h * z_h
    additions += head * (segments - 1) * addition_size
    if log_decay is not None:
        log_decay += b * decay_b + h * decay_h

    state = tl.zeros([X, Z], tl.float32)
    vector = tl.zeros([Z if TRANSPOSED else X], tl.float32)  # Σ t z if transposed, else Σ t y
    if out is not None:
        out += b * out_b + h * out_h
        if first_kv is not None:
            own = first_kv + head * size
            state, vector = _load_state(
                own, first_k_sum + head * WIDTH, row, column, WIDTH, VALUES, TRANSPOSED
            )
        for n in range(0, segment):
            own = additions + n * addition_size
            matrix, numbers = _load_state(own, own + size, row, column, WIDTH, VALUES, TRANSPOSED)
            decay = tl.exp(tl.load(own + size + WIDTH))
            state = state * decay + matrix
            vector = vector * decay + numbers

    first_chunk = (segments - segment) * chunks - 1 if REVERSED else segment * chunks
    start = first_chunk.to(tl.int64) * C
    log_total = 0.0
    for _ in range(0, chunks):
        y_rows = _load_rows(y, start, y_l, length, row, x_width, C)
        z_rows = _load_rows(z, start, z_l, length, column, z_width, C)
        if out is not None:
            x_rows = _load_rows(x, start, x_l, length, row, x_width, C)
            scores = tl.dot(x_rows, tl.trans(y_rows), None, _PRECISION)
            rows = tl.dot(x_rows, state, None, _PRECISION)
        # After the products, which need most registers.
        weights, x_decay, y_decay, total = _decays(log_decay, start, decay_l, length, C, REVERSED)
        inside = start + tl.arange(0, C) < length
        index = head * length + start + tl.arange(0, C)
        one = tl.full([C], 1.0, tl.float32)
        factor = tl.zeros([C], tl.float32)
        if g_sums is not None:
            factor = tl.load(g_sums + index, mask=inside, other=0.0)
        s = one if REVERSED else factor
        t = factor if REVERSED else one
        if out is not None:
            if TRANSPOSED:
                scores += s[:, None] * t[None, :]
                rows += s[:, None] * vector[None, :]
            scores *= weights
            rows = tl.dot(scores, z_rows, rows * x_decay[:, None], _PRECISION)
            if sums is not None:
                numbers = tl.sum(scores, 1) + tl.sum(x_rows * vector[None, :], 1) * x_decay
                tl.store(sums + index, numbers, mask=inside)
                rows = rows / tl.maximum(numbers, eps)[:, None]
            _store_rows(out, rows, start, out_l, length, column, z_width)
        if log_decay is not None:
            state *= tl.exp(total)
            vector *= tl.exp(total)
            log_total += total
        y_rows *= y_decay[:, None]
        state = tl.dot(tl.trans(y_rows), z_rows, state, _PRECISION)
        summed = y_decay[:, None] * z_rows if TRANSPOSED else y_rows
        vector += tl.sum(t[:, None] * summed, 0)
        start += -C if REVERSED else C

    if out is None:
        own = additions + segment * addition_size
        _store_state(own, own + size, state, vector, row, column, WIDTH, VALUES)
        tl.store(own + size + WIDTH, log_total)
    if last_kv is not None and segment == segments - 1:
        own = last_kv + head * size
        _store_state(own, last_k_sum + head * WIDTH, state, vector, row, column, WIDTH, VALUES)
