"""Matrix products over the steps that rows read, and what prepares those that PyTorch does.

Rows stand in tiles of `TILE`: `order` says which row stands where, `ends` how many steps it reads, 0 where none stands.
Sorted rows end together, and a program leaves at once where all rows of its tile have ended. Arrays of steps are
[rows, slots, columns], a slot for each step and where states are kept one more. Only steps before a row's end are
loaded: what lies past it may be anything, NaN too.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rounded(x):
    """To the digits of tf32, which products would otherwise cut off."""
    return ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["first", "last", "given_slots", "given_first", "result_slots", "result_first"])
def product(
    given, weight, bias, result, order, ends, first, last, given_slots, given_first, result_slots, result_first,
    DEPTH: tl.constexpr, WIDTH: tl.constexpr, GIVEN_WIDTH: tl.constexpr, RESULT_WIDTH: tl.constexpr,
    TRANSPOSED: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr, STEPS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """result[…, :WIDTH] = given[…, :DEPTH] · weight + bias for the steps first … last that are read; `weight` is
    [DEPTH, WIDTH], or where TRANSPOSED [WIDTH, DEPTH]. `…_first` is the slot of step 0."""
    n = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = tl.arange(0, TILE * STEPS)
    begin = first + tl.program_id(1) * STEPS
    position = tl.program_id(2) * TILE + inside % TILE
    step = begin + inside // TILE
    end = tl.load(ends + position)
    if begin >= tl.max(end, 0):
        return
    live = (step < end) & (step < last)
    row = tl.load(order + position).to(tl.int64)
    at = (row * given_slots + given_first + step) * GIVEN_WIDTH
    total = tl.zeros((TILE * STEPS, COLUMNS), tl.float32)
    for chunk in range(0, DEPTH, CHUNK):
        k = chunk + tl.arange(0, CHUNK)
        x = tl.load(given + at[:, None] + k[None, :], mask=live[:, None] & (k < DEPTH)[None, :], other=0.0)
        if TRANSPOSED:
            w_at = n[None, :] * DEPTH + k[:, None]
        else:
            w_at = k[:, None] * WIDTH + n[None, :]
        w = tl.load(weight + w_at, mask=(k < DEPTH)[:, None] & (n < WIDTH)[None, :], other=0.0)
        if PRECISION == "tf32" and x.dtype == tl.float32 and w.dtype == tl.float32:
            x = _rounded(x)
        total = tl.dot(x.to(w.dtype), w, total, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + n, mask=n < WIDTH, other=0.0)[None, :]
    to = (row * result_slots + result_first + step) * RESULT_WIDTH
    total = total.to(result.dtype.element_ty)
    tl.store(result + to[:, None] + n[None, :], total, mask=live[:, None] & (n < WIDTH)[None, :])


@triton.jit(do_not_specialize=["rows", "positions", "is_planted"])
def arrange(lengths, planted, order, ends, fired, rows, positions, is_planted, MANY: tl.constexpr):
    """How many steps the row at each position reads at most, and whether a planted spike ends it."""
    position = tl.program_id(0) * MANY + tl.arange(0, MANY)
    there = position < rows
    row = tl.load(order + position, mask=there, other=0)
    length, spike = tl.load(lengths + row, mask=there, other=0), tl.load(planted + row, mask=there, other=0)
    tl.store(ends + position, tl.minimum(length, spike).to(tl.int32), mask=position < positions)
    tl.store(fired + row, (spike <= length) & (is_planted > 0), mask=there)


@triton.jit(do_not_specialize=["first", "given_slots", "given_first", "slots", "steps", "base"])
def gather(
    given, hidden, gates, left, right, read, offsets, first, given_slots, given_first, slots, steps, base,
    GIVEN_WIDTH: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr, FILL: tl.constexpr, STEPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Copy what was read of some rows, from `first` on, to entries that follow each other: a row's begin at its offset
    less `base`. `left` gets the gradients of the gates, `right` what the weights were multiplied with, side by side:
    hidden, given, and a 1 for the bias. Steps past a row's end have no entry, or where FILL one of zeros."""
    row = first + tl.program_id(0).to(tl.int64)
    step = tl.program_id(1) * STEPS + tl.arange(0, STEPS)
    end = tl.load(read + row)
    if FILL == 0:
        if tl.program_id(1) * STEPS >= end:
            return
    live = (step < end)[:, None]
    there = (step < steps)[:, None] if FILL else live
    at, entry = (row * slots + step)[:, None], (tl.load(offsets + row) - base + step)[:, None]
    for column in range(0, 4 * UNITS, COLUMNS):
        n = (column + tl.arange(0, COLUMNS))[None, :]
        x = tl.load(gates + at * (4 * UNITS) + n, mask=live & (n < 4 * UNITS), other=0.0)
        tl.store(left + entry * (4 * UNITS) + n, x, mask=there & (n < 4 * UNITS))
    for column in range(0, UNITS, COLUMNS):
        n = (column + tl.arange(0, COLUMNS))[None, :]
        x = tl.load(hidden + at * UNITS + n, mask=live & (n < UNITS), other=0.0)
        tl.store(right + entry * WIDTH + n, x, mask=there & (n < UNITS))
    for column in range(0, WIDTH - UNITS, COLUMNS):
        n = (column + tl.arange(0, COLUMNS))[None, :]
        given_at = (row * given_slots + given_first + step)[:, None] * GIVEN_WIDTH + n
        x = tl.load(given + given_at, mask=live & (n < GIVEN_WIDTH), other=0.0).to(right.dtype.element_ty)
        x = tl.where(live & (n == GIVEN_WIDTH), 1.0, x)
        tl.store(right + entry * WIDTH + UNITS + n, x, mask=there & (n < WIDTH - UNITS))
