"""The part of LSTM and GRU that must run step by step, for weights that fit on the chip: a program takes a tile of rows
through a block of steps, with the weights in registers and shared memory all the time.

What is saved of a step: `gates`, four arrays of units side by side (LSTM: enter, forget, candidate, leave; GRU: reset,
update, candidate, and what the hidden state gives to the candidate), `hidden`, the state in the precision of the matrix
multiplications, in lines of WIDTH, and `memory`, the state in float32 (LSTM: the cell; GRU: the hidden state). Arrays
are laid out as in `matmul`, gates with `slots` slots for each row and states with one more: step s reads the states in
slot s and writes those in s + 1, both less `origin`. The backward pass packs the gradients of the gates: see `matmul`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rankcode.engines.triton.matmul import store_parts
from rankcode.engines.triton.readout import logits_of

NEVER = tl.constexpr(2**30)


@triton.jit
def _tanh(x, FAST: tl.constexpr):
    if FAST:  # one instruction of the GPU, with the error of tf32
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _sigmoid(x, FAST: tl.constexpr):
    if FAST:
        return 0.5 * _tanh(0.5 * x, FAST) + 0.5
    return tl.sigmoid(x)


@triton.jit
def gated(a, b, c, d, memory, GRU: tl.constexpr, FAST: tl.constexpr):
    """One step, from the inputs of the gates: the four arrays that are saved, the memory and the hidden state."""
    a, b = _sigmoid(a, FAST), _sigmoid(b, FAST)
    if GRU:
        c = _tanh(c + a * d, FAST)
        memory = c + b * (memory - c)
        return a, b, c, d, memory, memory
    c, d = _tanh(c, FAST), _sigmoid(d, FAST)
    memory = b * memory + a * c
    return a, b, c, d, memory, d * _tanh(memory, FAST)


@triton.jit
def gated_backward(a, b, c, d, before, after, into_hidden, into_memory, GRU: tl.constexpr, FAST: tl.constexpr):
    """Gradients of the inputs of the gates, of the memory before the step, and of the hidden state before it without
    the part that flows through the gates."""
    if GRU:
        into_update = into_hidden * (before - c) * b * (1 - b)
        into_candidate = into_hidden * (1 - b) * (1 - c * c)
        into_reset = into_candidate * d * a * (1 - a)
        return into_reset, into_update, into_candidate, into_candidate * a, into_memory, into_hidden * b
    squashed = _tanh(after, FAST)
    into_memory += into_hidden * d * (1 - squashed * squashed)
    into_leave = into_hidden * squashed * d * (1 - d)
    into_enter = into_memory * c * a * (1 - a)
    into_forget = into_memory * before * b * (1 - b)
    into_candidate = into_memory * a * (1 - c * c)
    return into_enter, into_forget, into_candidate, into_leave, into_memory * b, tl.zeros_like(into_hidden)


@triton.jit
def first_spike(
    hidden, order, ends, table, inner, inner_bias, outer, outer_bias, origin, slots, begin, stop, tile,
    UNITS: tl.constexpr, TRUE_UNITS: tl.constexpr, WIDTH: tl.constexpr, INNER: tl.constexpr, CLASSES: tl.constexpr,
    SIGMOID: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
    STEPS: tl.constexpr, CHUNK: tl.constexpr, PADDED_INNER: tl.constexpr, PADDED_CLASSES: tl.constexpr,
):  # fmt: skip
    """The step in begin … stop at which each row of a tile first fires, [TILE]; NEVER if it does not. INNER is the
    width of the readout's hidden layer: see `readout`. One SIGMOID output z stands for the logits (0, z)."""
    inside = tl.arange(0, TILE * STEPS)
    position, there = tile * ROWS + inside % TILE, inside % TILE < ROWS
    step = begin + inside // TILE
    end = tl.load(ends + position, mask=there, other=0)
    row = tl.load(order + position, mask=there, other=0).to(tl.int64)
    number = tl.arange(0, PADDED_CLASSES)
    line = number - 1 if SIGMOID else number  # of the last layer's weights
    counts = (number < CLASSES)[None, :]
    asked = (there & (step < stop))[:, None] & counts
    thresholds = tl.load(table + step[:, None] * CLASSES + number[None, :], mask=asked, other=float("inf"))
    read = (step < end) & (step < stop)
    at = (row * (slots + 1) + step + 1 - origin) * WIDTH
    total, _ = logits_of(
        hidden, at, read, inner, inner_bias, outer, outer_bias, line, (line >= 0) & (number < CLASSES),
        UNITS, TRUE_UNITS, INNER, ACTIVATION, PRECISION, CHUNK, PADDED_INNER, PADDED_CLASSES,
    )  # fmt: skip
    total = tl.where(counts, total, float("-inf"))
    likely = tl.exp(total - tl.max(total, 1)[:, None])
    likely = likely / tl.sum(likely, 1)[:, None]
    fires = read & (tl.max((likely >= thresholds).to(tl.int32), 1) > 0)
    return tl.min(tl.reshape(tl.where(fires, step + 1, NEVER), (STEPS, TILE)), 0)


@triton.jit
def store_answers(
    hidden, features, answered, row, end, first, last, origin, slots,
    UNITS: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Store the hidden state, at their end, of the rows that end within the block."""
    leaves = (end > first) & (end <= last)
    tl.store(answered + row, end.to(tl.int64), mask=leaves)
    at, to = (row * (slots + 1) + end - origin) * WIDTH, row * UNITS
    for chunk in range(0, UNITS, CHUNK):
        k = chunk + tl.arange(0, CHUNK)
        h = tl.load(hidden + at[:, None] + k[None, :], mask=leaves[:, None], other=0.0)
        tl.store(features + to[:, None] + k[None, :], h.to(tl.float32), mask=leaves[:, None])


@triton.jit(do_not_specialize=["block", "tiles", "origin", "slots"])
def forward(
    gates, hidden, memory, weight, recall_bias, order, ends, answered, fired, features,
    table, inner, inner_bias, outer, outer_bias, bounds, block, tiles, origin, slots,
    UNITS: tl.constexpr, TRUE_UNITS: tl.constexpr, WIDTH: tl.constexpr, GRU: tl.constexpr, SAVE: tl.constexpr,
    TOP: tl.constexpr, RULE: tl.constexpr, INNER: tl.constexpr, CLASSES: tl.constexpr, SIGMOID: tl.constexpr,
    ACTIVATION: tl.constexpr, PADDED_INNER: tl.constexpr, PADDED_CLASSES: tl.constexpr, PRECISION: tl.constexpr,
    FAST: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr,
    STEPS: tl.constexpr,
):  # fmt: skip
    """A block of steps. The top layer evaluates the rule, and stores the features that rows answer with. Unless SAVE,
    the state after the block is copied to slot 0, where the next one begins. A program takes ROWS rows, of which GROUP
    have the same bounds."""
    tile = tl.program_id(0)
    bounds += block * tiles + tile * ROWS // GROUP
    first, last = tl.load(bounds), tl.load(bounds + tiles)
    position, there = tile * ROWS + tl.arange(0, TILE), tl.arange(0, TILE) < ROWS
    end = tl.load(ends + position, mask=there, other=0)
    limit = tl.minimum(tl.max(end, 0), last)
    if first >= limit:
        return
    square: tl.constexpr = UNITS * UNITS
    units = tl.arange(0, UNITS)
    type = hidden.dtype.element_ty
    row = tl.load(order + position, mask=there, other=0).to(tl.int64)
    valid = (end > 0)[:, None]  # there is a row at the position
    gates_at = ((row * slots + first - origin) * (4 * UNITS))[:, None]
    slot = (row * (slots + 1) + first - origin)[:, None]
    hidden_at, memory_at = slot * WIDTH + units[None, :], slot * UNITS + units[None, :]
    if first == 0:
        zero = tl.zeros((TILE, UNITS), tl.float32)
        tl.store(hidden + hidden_at, zero.to(type), mask=valid)
        tl.store(memory + memory_at, zero, mask=valid)
        tl.debug_barrier()
    w_at = weight + units[None, :] * UNITS + tl.arange(0, UNITS)[:, None]
    w0, w1, w2 = tl.load(w_at), tl.load(w_at + square), tl.load(w_at + 2 * square)
    w3 = w2
    if not GRU:
        w3 = tl.load(w_at + 3 * square)
    h = tl.load(hidden + hidden_at, mask=valid, other=0.0)
    m = tl.load(memory + memory_at, mask=valid, other=0.0)
    at = gates + gates_at + units[None, :]
    a, b = tl.load(at, mask=valid, other=0.0), tl.load(at + UNITS, mask=valid, other=0.0)
    c, d = tl.load(at + 2 * UNITS, mask=valid, other=0.0), tl.zeros((TILE, UNITS), type)
    if GRU:
        recall = tl.load(recall_bias + units)[None, :]
    else:
        d = tl.load(at + 3 * UNITS, mask=valid, other=0.0)
    begin = first + 0
    while begin < limit:
        stop = tl.minimum(begin + STEPS, limit)
        for step in range(begin, stop):
            since = step - first
            at = gates + gates_at + since * (4 * UNITS) + units[None, :]
            ahead = at + tl.where(step + 1 < limit, 4 * UNITS, 0)
            next_a = tl.load(ahead, mask=valid, other=0.0)
            next_b = tl.load(ahead + UNITS, mask=valid, other=0.0)
            next_c, next_d = tl.load(ahead + 2 * UNITS, mask=valid, other=0.0), d
            h = h.to(w0.dtype)
            e = tl.dot(h, w0, input_precision=PRECISION) + a.to(tl.float32)
            f = tl.dot(h, w1, input_precision=PRECISION) + b.to(tl.float32)
            if GRU:
                g = c.to(tl.float32)
                i = tl.dot(h, w2, input_precision=PRECISION) + recall
            else:
                next_d = tl.load(ahead + 3 * UNITS, mask=valid, other=0.0)
                g = tl.dot(h, w2, input_precision=PRECISION) + c.to(tl.float32)
                i = tl.dot(h, w3, input_precision=PRECISION) + d.to(tl.float32)
            e, f, g, i, m, new = gated(e, f, g, i, m, GRU, FAST)
            h = new.to(type)
            if SAVE:
                tl.store(at, e.to(type), mask=valid)
                tl.store(at + UNITS, f.to(type), mask=valid)
                tl.store(at + 2 * UNITS, g.to(type), mask=valid)
                tl.store(at + 3 * UNITS, i.to(type), mask=valid)
            tl.store(memory + memory_at + (since + 1) * UNITS, m, mask=valid)
            tl.store(hidden + hidden_at + (since + 1) * WIDTH, h, mask=valid)
            a, b, c, d = next_a, next_b, next_c, next_d
        if RULE:
            tl.debug_barrier()
            spike = first_spike(
                hidden, order, ends, table, inner, inner_bias, outer, outer_bias, origin, slots, begin, stop, tile,
                UNITS, TRUE_UNITS, WIDTH, INNER, CLASSES, SIGMOID, ACTIVATION, PRECISION, TILE, ROWS, STEPS, UNITS,
                PADDED_INNER, PADDED_CLASSES,
            )  # fmt: skip
            tl.store(fired + row, spike <= end, mask=spike <= end)
            end = tl.minimum(end, spike)
            tl.store(ends + position, end, mask=there)
            tl.debug_barrier()
            limit = tl.minimum(limit, tl.max(end, 0))
        begin = stop
    tl.debug_barrier()
    if TOP:
        store_answers(hidden, features, answered, row, end, first, last, origin, slots, UNITS, WIDTH, UNITS)
    if not SAVE:
        if limit == last:
            start = (row * (slots + 1))[:, None]
            tl.store(hidden + start * WIDTH + units[None, :], h, mask=valid)
            tl.store(memory + start * UNITS + units[None, :], m, mask=valid)


@triton.jit(do_not_specialize=["slots", "arriving_step"])
def backward(
    gates, memory, weight, arriving, base, packed, line_of, row_after, order, ends, slots, arriving_step,
    UNITS: tl.constexpr, GRU: tl.constexpr, SCALED: tl.constexpr, AT_END: tl.constexpr, PARTS: tl.constexpr,
    PRECISION: tl.constexpr, FAST: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """From the last answer of a tile back to its first step. The gradient of the features after step s is
    `arriving[base[row] + s · arriving_step]`, or if AT_END `arriving[base[row]]` at the row's end only. The gradients
    of the inputs of the gates are written to `packed`, and the lines of `hidden` that step s reads to `line_of`."""
    tile = tl.program_id(0)
    position, there = tile * ROWS + tl.arange(0, TILE), tl.arange(0, TILE) < ROWS
    end = tl.load(ends + position, mask=there, other=0)
    limit = tl.max(end, 0)
    square: tl.constexpr = UNITS * UNITS
    units = tl.arange(0, UNITS)
    type = gates.dtype.element_ty
    row = tl.load(order + position, mask=there, other=0).to(tl.int64)
    valid = (end > 0)[:, None]
    start = tl.load(base + row, mask=end > 0, other=0).to(tl.int64)
    gates_at = (row * slots * (4 * UNITS))[:, None]
    states_at = (row * (slots + 1) * UNITS)[:, None]
    wide: tl.constexpr = 4 * UNITS * PARTS
    begin = tl.load(row_after + row, mask=end > 0, other=0) - end
    packed_at, first_line = (begin * wide)[:, None], row * (slots + 1)
    w_at = weight + tl.arange(0, UNITS)[:, None] * UNITS + units[None, :]
    w0, w1, w2 = tl.load(w_at), tl.load(w_at + square), tl.load(w_at + 2 * square)
    w3 = w2
    if not GRU:
        w3 = tl.load(w_at + 3 * square)
    flow, keep = tl.zeros((TILE, UNITS), tl.float32), tl.zeros((TILE, UNITS), tl.float32)
    at = memory + states_at + limit * UNITS + units[None, :]
    after, before = tl.load(at, mask=valid, other=0.0), tl.load(at - UNITS, mask=valid, other=0.0)
    at = gates + gates_at + (limit - 1) * (4 * UNITS) + units[None, :]
    a, b = tl.load(at, mask=valid, other=0.0), tl.load(at + UNITS, mask=valid, other=0.0)
    c, d = tl.load(at + 2 * UNITS, mask=valid, other=0.0), tl.load(at + 3 * UNITS, mask=valid, other=0.0)
    for back in range(1, limit + 1):
        step = limit - back
        if AT_END:
            outside = step == end - 1
        else:
            outside = step < end
        from_outside = arriving + ((start + step.to(tl.int64) * arriving_step) * UNITS)[:, None]
        read = (step < end)[:, None]
        at = gates + gates_at + step * (4 * UNITS) + units[None, :]
        to = packed + packed_at + step * wide + units[None, :]
        down = tl.where(step > 0, 1, 0)
        ahead = at - down * (4 * UNITS)
        next_a = tl.load(ahead, mask=valid, other=0.0)
        next_b = tl.load(ahead + UNITS, mask=valid, other=0.0)
        next_c = tl.load(ahead + 2 * UNITS, mask=valid, other=0.0)
        next_d = tl.load(ahead + 3 * UNITS, mask=valid, other=0.0)
        next_before = tl.load(memory + states_at + (step - down) * UNITS + units[None, :], mask=valid, other=0.0)
        flow += tl.load(from_outside + units[None, :], mask=outside[:, None], other=0.0)
        a, b, c, d = a.to(tl.float32), b.to(tl.float32), c.to(tl.float32), d.to(tl.float32)
        e, f, g, i, keep, flow = gated_backward(a, b, c, d, before, after, flow, keep, GRU, FAST)
        e, f = tl.where(read, e, 0.0).to(type), tl.where(read, f, 0.0).to(type)
        g, i = tl.where(read, g, 0.0).to(type), tl.where(read, i, 0.0).to(type)
        keep, flow = tl.where(read, keep, 0.0), tl.where(read, flow, 0.0)
        tl.store(line_of + begin + step, (first_line + step).to(tl.int32), mask=step < end)
        store_parts(to, e, read, 4 * UNITS, PARTS)
        store_parts(to + UNITS, f, read, 4 * UNITS, PARTS)
        store_parts(to + 2 * UNITS, g, read, 4 * UNITS, PARTS)
        store_parts(to + 3 * UNITS, i, read, 4 * UNITS, PARTS)
        if SCALED:  # float16 has the mantissa of tf32 but not its range: each row is scaled to at most 1 and back
            largest = tl.maximum(tl.maximum(tl.abs(e), tl.abs(f)), tl.maximum(tl.abs(g), tl.abs(i)))
            largest = tl.maximum(tl.max(largest, 1), 1e-37)[:, None]
            e, f, g, i = e / largest, f / largest, g / largest, i / largest
        e, f, g, i = e.to(w0.dtype), f.to(w0.dtype), g.to(w0.dtype), i.to(w0.dtype)
        product = tl.dot(e, w0, input_precision=PRECISION) + tl.dot(f, w1, input_precision=PRECISION)
        if GRU:
            product += tl.dot(i, w2, input_precision=PRECISION)
        else:
            product += tl.dot(g, w2, input_precision=PRECISION) + tl.dot(i, w3, input_precision=PRECISION)
        if SCALED:
            product *= largest
        flow += product
        a, b, c, d, after, before = next_a, next_b, next_c, next_d, before, next_before
