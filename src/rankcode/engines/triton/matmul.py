"""Matrix multiplications over the steps that rows read, and what prepares their operands.

Rows are arranged in tiles of `TILE` positions: `order` is the row at a position and `ends` the number of steps it
reads, 0 at a position without a row. Sorted rows end together, and a program returns at once if all rows of its tile
have ended. Arrays of steps are [rows, slots, columns], with one slot for each step, and one more for states. Only steps
before a row's end are loaded: anything may follow it, NaN too. Steps are processed in blocks: `bounds` [blocks + 1,
tiles] are the steps at which those of a tile begin.

The gradients of the weights are a product over all steps that were read. The gradients of the gates are *packed* for
it, row after row without gaps; `row_after` is where each row ends. They are multiplied with lines of the hidden state
before the step, the layer's input and, for the bias, a 1, side by side. In bfloat16 the forward pass stores such lines,
and `line_of` [packed steps] is the line of each step; otherwise they are packed, too. If matrix multiplications run in
tf32, a number is packed as the sum of two bfloat16 numbers (`PARTS` = 2): three multiplications of those are as fast as
one in tf32, and more exact.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rounded(x):
    """Rounded to the mantissa of tf32, which `tl.dot` would otherwise truncate to."""
    return ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def store_parts(at, x, mask, apart, PARTS: tl.constexpr):
    first = x.to(at.dtype.element_ty)
    tl.store(at, first, mask=mask)
    if PARTS == 2:
        tl.store(at + apart, (x - first.to(tl.float32)).to(at.dtype.element_ty), mask=mask)


@triton.jit
def load_parts(at, mask, apart, PARTS: tl.constexpr):
    x = tl.load(at, mask=mask, other=0.0)
    if PARTS == 2:
        x = x.to(tl.float32) + tl.load(at + apart, mask=mask, other=0.0).to(tl.float32)
    return x


@triton.jit(do_not_specialize=["block", "blocks", "given_slots", "given_first", "result_slots", "result_first"])
def matmul(
    given, weight, bias, result, order, ends, row_after, bounds, block, blocks, given_slots, given_first, result_slots,
    result_first, DEPTH: tl.constexpr, WIDTH: tl.constexpr, GIVEN_COLUMN: tl.constexpr, GIVEN_WIDTH: tl.constexpr,
    WEIGHT_WIDTH: tl.constexpr, RESULT_WIDTH: tl.constexpr, TRANSPOSED: tl.constexpr, BIAS: tl.constexpr,
    PARTS: tl.constexpr, PRECISION: tl.constexpr, TILE: tl.constexpr, STEPS: tl.constexpr, COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """result[…, :WIDTH] = given · weight + bias for the steps that are read in so many blocks, from `block` on. DEPTH
    columns of `given` are multiplied, from GIVEN_COLUMN on; if PARTS > 0, it is packed. `weight` is [DEPTH, WIDTH], or
    if TRANSPOSED [WIDTH, DEPTH], in lines of WEIGHT_WIDTH. `…_first` is the slot of step 0."""
    n = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = tl.arange(0, TILE * STEPS)
    bounds += block * tl.num_programs(2) + tl.program_id(2)
    position = tl.program_id(2) * TILE + inside % TILE
    end = tl.load(ends + position)
    first, last = tl.load(bounds), tl.load(bounds + blocks * tl.num_programs(2))
    last = tl.minimum(last, tl.max(end, 0))
    # What does not depend on the step is computed anew for each: kept instead, it takes all registers and more.
    for begin in tl.range(first + tl.program_id(1) * STEPS, last, tl.num_programs(1) * STEPS, disable_licm=True):
        step = begin + inside // TILE
        live = (step < end) & (step < last)
        row = tl.load(order + position).to(tl.int64)
        if PARTS > 0:
            at = (tl.load(row_after + row, mask=live, other=0) - end + step) * (GIVEN_WIDTH * PARTS)
        else:
            at = (row * given_slots + given_first + step) * GIVEN_WIDTH + GIVEN_COLUMN
        total = tl.zeros((TILE * STEPS, COLUMNS), tl.float32)
        for chunk in range(0, DEPTH, CHUNK):
            k = chunk + tl.arange(0, CHUNK)
            x = load_parts(given + at[:, None] + k[None, :], live[:, None] & (k < DEPTH)[None, :], GIVEN_WIDTH, PARTS)
            if TRANSPOSED:
                w_at = n[None, :] * WEIGHT_WIDTH + k[:, None]
            else:
                w_at = k[:, None] * WEIGHT_WIDTH + n[None, :]
            w = tl.load(weight + w_at, mask=(k < DEPTH)[:, None] & (n < WIDTH)[None, :], other=0.0)
            if PRECISION == "tf32" and x.dtype == tl.float32 and w.dtype == tl.float32:
                x = _rounded(x)
            total = tl.dot(x.to(w.dtype), w, total, input_precision=PRECISION)
        if BIAS:
            total += tl.load(bias + n, mask=n < WIDTH, other=0.0)[None, :]
        to = (row * result_slots + result_first + step) * RESULT_WIDTH
        total = total.to(result.dtype.element_ty)
        tl.store(result + to[:, None] + n[None, :], total, mask=live[:, None] & (n < WIDTH)[None, :])


@triton.jit(do_not_specialize=["rows", "positions", "steps", "block", "blocks", "is_planted", "is_expected"])
def arrange(
    lengths, planted, order, expected, ends, fired, bounds, rows, positions, steps, block, blocks, is_planted,
    is_expected, POSITIONS: tl.constexpr, TILE: tl.constexpr, ROUNDED: tl.constexpr,
):  # fmt: skip
    """The most steps that the row at each position reads, whether a planted spike ends it, and the bounds of the blocks
    of each tile: every `block` steps, or, if rows are sorted by the steps at which they are expected to answer,
    `expected` [positions], first the step, ROUNDED up, by which all rows of the tile should have answered."""
    position = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    there = position < rows
    row = tl.load(order + position, mask=there, other=0)
    length, spike = tl.load(lengths + row, mask=there, other=0), tl.load(planted + row, mask=there, other=0)
    tl.store(ends + position, tl.minimum(length, spike).to(tl.int32), mask=position < positions)
    tl.store(fired + row, (spike <= length) & (is_planted > 0), mask=there)
    is_first = (position < positions) & (position % TILE == 0)  # a tile's longest row, if they are sorted
    bounds += position // TILE
    tl.store(bounds, tl.zeros((POSITIONS,), tl.int32), mask=is_first)
    next = tl.full((POSITIONS,), block, tl.int32)
    if is_expected > 0:
        longest = tl.minimum(tl.maximum(tl.load(expected + position, mask=is_first & there, other=0), 0), steps)
        next = (longest + ROUNDED - 1) // ROUNDED * ROUNDED
    for number in range(1, blocks + 1):
        if number == blocks:
            next = tl.full((POSITIONS,), steps, tl.int32)
        tl.store(bounds + number * (positions // TILE), tl.minimum(next, steps), mask=is_first)
        next += block


@triton.jit(do_not_specialize=["block", "given_slots", "given_first", "slots", "origin"])
def store_inputs(
    given, stored, order, ends, bounds, block, given_slots, given_first, slots, origin,
    TRUE_INPUTS: tl.constexpr, GIVEN_WIDTH: tl.constexpr, INPUTS: tl.constexpr, UNITS: tl.constexpr,
    WIDTH: tl.constexpr, TILE: tl.constexpr, STEPS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Store the inputs of the steps of a block that are read behind the hidden state, padded with zeros to INPUTS
    columns, and a 1 behind them. `given_first` is the slot of step 0 in `given`."""
    position = tl.program_id(0)
    tiles = tl.num_programs(0) // TILE
    bounds += block * tiles + position // TILE
    first, last = tl.load(bounds), tl.minimum(tl.load(bounds + tiles), tl.load(ends + position))
    row = tl.load(order + position).to(tl.int64)
    for begin in range(first + tl.program_id(1) * STEPS, last, tl.num_programs(1) * STEPS):
        step = (begin + tl.arange(0, STEPS))[:, None]
        at = given + (row * given_slots + given_first + step) * GIVEN_WIDTH
        to = stored + (row * (slots + 1) + step - origin) * WIDTH + UNITS
        for column in range(0, WIDTH - UNITS, COLUMNS):
            n = (column + tl.arange(0, COLUMNS))[None, :]
            x = tl.load(at + n, mask=(step < last) & (n < TRUE_INPUTS), other=0.0).to(tl.float32)
            x = tl.where(n == INPUTS, 1.0, x)
            tl.store(to + n, x.to(stored.dtype.element_ty), mask=(step < last) & (n < WIDTH - UNITS))


@triton.jit(do_not_specialize=["given_slots", "given_first", "steps"])
def gather(
    given, hidden, packed, read, row_after, given_slots, given_first, steps,
    GIVEN_WIDTH: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, STEPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Pack what the weights were multiplied with."""
    row = tl.program_id(0).to(tl.int64)
    end, after = tl.load(read + row), tl.load(row_after + row)
    for begin in range(tl.program_id(1) * STEPS, end, tl.num_programs(1) * STEPS):
        step = begin + tl.arange(0, STEPS)
        line, live = after - end + step, (step < end)[:, None]
        to = packed + line[:, None] * (WIDTH * PARTS)
        hidden_at = hidden + (row * (steps + 1) + step)[:, None] * UNITS
        given_at = given + (row * given_slots + given_first + step)[:, None] * GIVEN_WIDTH
        for column in range(0, UNITS, COLUMNS):
            n = (column + tl.arange(0, COLUMNS))[None, :]
            mask = live & (n < UNITS)
            store_parts(to + n, tl.load(hidden_at + n, mask=mask, other=0.0), mask, WIDTH, PARTS)
        for column in range(0, WIDTH - UNITS, COLUMNS):
            n = (column + tl.arange(0, COLUMNS))[None, :]
            x = tl.load(given_at + n, mask=live & (n < GIVEN_WIDTH), other=0.0).to(tl.float32)
            x = tl.where(n == GIVEN_WIDTH, 1.0, x)
            store_parts(to + UNITS + n, x, live & (n < WIDTH - UNITS), WIDTH, PARTS)


@triton.jit(do_not_specialize=["rows"])
def packed_matmul(
    left, right, result, line_of, row_after, rows,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, PACKED: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr,
    SHARES: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """leftᵀ · right over all packed steps, in SHARES that are summed later: result is [SHARES, LEFT, RIGHT]. `left` is
    packed; so is `right`, if PACKED, otherwise `line_of` are its lines."""
    number = tl.load(row_after + rows - 1).to(tl.int32)
    share = tl.program_id(2)
    each = tl.cdiv(tl.cdiv(number, CHUNK), SHARES) * CHUNK
    stop = tl.minimum((share + 1) * each, number)
    m, n = tl.program_id(0) * LINES + tl.arange(0, LINES), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known = (n < RIGHT)[None, :]
    total = tl.zeros((LINES, COLUMNS), tl.float32)
    for chunk in range(share * each, stop, CHUNK):
        step = chunk + tl.arange(0, CHUNK)
        there = (step < stop)[:, None]
        line = step
        if not PACKED:
            line = tl.load(line_of + step, mask=step < stop, other=0)
        a_at = left + step.to(tl.int64)[:, None] * (LEFT * PARTS) + m[None, :]
        b_at = right + line.to(tl.int64)[:, None] * (RIGHT * PARTS) + n[None, :]
        a, b = tl.load(a_at, mask=there, other=0.0), tl.load(b_at, mask=there & known, other=0.0)
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
        if PARTS == 2:
            rest_a = tl.load(a_at + LEFT, mask=there, other=0.0)
            rest_b = tl.load(b_at + RIGHT, mask=there & known, other=0.0)
            total = tl.dot(tl.trans(rest_a), b, total, input_precision=PRECISION)
            total = tl.dot(tl.trans(a), rest_b, total, input_precision=PRECISION)
    to = result + share * (LEFT * RIGHT) + m[:, None] * RIGHT + n[None, :]
    tl.store(to, total, mask=known)
