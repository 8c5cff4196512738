"""The part of LSTM and GRU that must run step by step, for weights that are too large for one program.

A launch computes one step; a program of it, some of the units of a tile of rows. Arrays are those of `recurrence`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rankcode.engines.triton.matmul import store_parts
from rankcode.engines.triton.recurrence import first_spike, gated, gated_backward, store_answers


@triton.jit(do_not_specialize=["positions", "step", "origin", "slots", "is_last"])
def forward_step(
    gates, hidden, memory, weight, recall_bias, recent, order, ends, positions, step, origin, slots, is_last,
    UNITS: tl.constexpr, WIDTH: tl.constexpr, GRU: tl.constexpr, SAVE: tl.constexpr, PRECISION: tl.constexpr,
    FAST: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Step `step`, counted from 0. If it is the last of its block, the memory after it is copied to slot 0, where the
    next block begins. `recent` [2, positions, units] holds the hidden state before and after the step, in the type of
    the weights."""
    position = tl.program_id(1) * TILE + tl.arange(0, TILE)
    end = tl.load(ends + position, mask=position < positions, other=0)
    if step >= tl.max(end, 0):
        return
    square: tl.constexpr = UNITS * UNITS
    unit = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    type = hidden.dtype.element_ty
    row = tl.load(order + position, mask=position < positions, other=0).to(tl.int64)
    live = (step < end)[:, None]
    start = (row * (slots + 1))[:, None]
    hidden_at = hidden + (start + step - origin) * WIDTH + unit[None, :]
    memory_at = memory + (start + step - origin) * UNITS + unit[None, :]
    # What the input gives to the gates is loaded while the state is multiplied.
    at = gates + ((row * slots + step - origin) * (4 * UNITS))[:, None] + unit[None, :]
    a, b = tl.load(at, mask=live, other=0.0), tl.load(at + UNITS, mask=live, other=0.0)
    c = tl.load(at + 2 * UNITS, mask=live, other=0.0)
    d = c
    if not GRU:
        d = tl.load(at + 3 * UNITS, mask=live, other=0.0)
    e, f = tl.zeros((TILE, COLUMNS), tl.float32), tl.zeros((TILE, COLUMNS), tl.float32)
    g, i = tl.zeros((TILE, COLUMNS), tl.float32), tl.zeros((TILE, COLUMNS), tl.float32)
    m = tl.zeros((TILE, COLUMNS), tl.float32)
    if step == 0:
        tl.store(hidden_at, m.to(type), mask=live)
        tl.store(memory_at, m, mask=live)
    else:
        m = tl.load(memory_at, mask=live, other=0.0)
        recent_at = recent + (((step % 2) * positions + position) * UNITS)[:, None]
        for chunk in range(0, UNITS, CHUNK):
            k = chunk + tl.arange(0, CHUNK)
            h = tl.load(recent_at + k[None, :], mask=live, other=0.0)
            w_at = weight + unit[None, :] * UNITS + k[:, None]
            e = tl.dot(h, tl.load(w_at), e, input_precision=PRECISION)
            f = tl.dot(h, tl.load(w_at + square), f, input_precision=PRECISION)
            if GRU:
                i = tl.dot(h, tl.load(w_at + 2 * square), i, input_precision=PRECISION)
            else:
                g = tl.dot(h, tl.load(w_at + 2 * square), g, input_precision=PRECISION)
                i = tl.dot(h, tl.load(w_at + 3 * square), i, input_precision=PRECISION)
    e, f, g = e + a.to(tl.float32), f + b.to(tl.float32), g + c.to(tl.float32)
    if GRU:
        i += tl.load(recall_bias + unit)[None, :]
    else:
        i += d.to(tl.float32)
    e, f, g, i, m, new = gated(e, f, g, i, m, GRU, FAST)
    if SAVE:
        tl.store(at, e.to(type), mask=live)
        tl.store(at + UNITS, f.to(type), mask=live)
        tl.store(at + 2 * UNITS, g.to(type), mask=live)
        tl.store(at + 3 * UNITS, i.to(type), mask=live)
    tl.store(memory_at + UNITS, m, mask=live)
    tl.store(hidden_at + WIDTH, new.to(type), mask=live)
    to = recent + ((((step + 1) % 2) * positions + position) * UNITS)[:, None] + unit[None, :]
    tl.store(to, new.to(recent.dtype.element_ty), mask=live)
    if is_last > 0:
        tl.store(memory + start * UNITS + unit[None, :], m, mask=live)


@triton.jit(do_not_specialize=["begin", "stop", "origin", "slots"])
def answer(
    hidden, order, ends, answered, fired, features, table, inner, inner_bias, outer, outer_bias, begin, stop, origin,
    slots,
    UNITS: tl.constexpr, TRUE_UNITS: tl.constexpr, WIDTH: tl.constexpr, RULE: tl.constexpr, INNER: tl.constexpr,
    CLASSES: tl.constexpr, SIGMOID: tl.constexpr, ACTIVATION: tl.constexpr, PADDED_INNER: tl.constexpr,
    PADDED_CLASSES: tl.constexpr, PRECISION: tl.constexpr, TILE: tl.constexpr, STEPS: tl.constexpr,
    CHUNK: tl.constexpr, STORED: tl.constexpr,
):  # fmt: skip
    """Evaluate the rule at the steps begin … stop, and store the features of the rows that answer there."""
    tile = tl.program_id(0)
    position = tile * TILE + tl.arange(0, TILE)
    end = tl.load(ends + position)
    if begin >= tl.max(end, 0):
        return
    row = tl.load(order + position).to(tl.int64)
    if RULE:
        spike = first_spike(
            hidden, order, ends, table, inner, inner_bias, outer, outer_bias, origin, slots, begin, stop, tile,
            UNITS, TRUE_UNITS, WIDTH, INNER, CLASSES, SIGMOID, ACTIVATION, PRECISION, TILE, TILE, STEPS, CHUNK,
            PADDED_INNER, PADDED_CLASSES,
        )  # fmt: skip
        tl.store(fired + row, spike <= end, mask=spike <= end)
        end = tl.minimum(end, spike)
        tl.store(ends + position, end)
    store_answers(hidden, features, answered, row, end, begin, stop, origin, slots, UNITS, WIDTH, STORED)


@triton.jit(do_not_specialize=["positions", "step", "slots", "arriving_step"])
def gates_backward(
    gates, memory, arriving, base, packed, line_of, row_after, into_hidden, carried, into_gates, scale, order, ends,
    positions, step, slots, arriving_step,
    UNITS: tl.constexpr, GRU: tl.constexpr, SCALED: tl.constexpr, AT_END: tl.constexpr, PARTS: tl.constexpr,
    FAST: tl.constexpr, PADDED_UNITS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The gates of step `step` in the backward pass: see `recurrence.backward`. `into_hidden` [rows, units] is the
    gradient of the hidden state after the step, through the gates of the next one. What does not flow through gates is
    in `carried` [rows, units] (LSTM: the gradient of the memory; GRU: that of the hidden state through the update
    gate). The gradients that the hidden state before the step gets are also written to `into_gates` [rows, gates ·
    units]; if SCALED, divided by `scale` [rows]."""
    position = tl.program_id(0) * TILE + tl.arange(0, TILE)
    end = tl.load(ends + position, mask=position < positions, other=0)
    if step >= tl.max(end, 0):
        return
    units = tl.arange(0, PADDED_UNITS)[None, :]
    row = tl.load(order + position, mask=position < positions, other=0).to(tl.int64)
    known = units < UNITS
    read, goes_on = (step < end)[:, None] & known, (step + 1 < end)[:, None] & known
    outside = (step == end - 1 if AT_END else step < end)[:, None] & known
    start = tl.load(base + row, mask=end > 0, other=0).to(tl.int64)
    at = (row * UNITS)[:, None] + units
    flow = tl.load(into_hidden + at, mask=goes_on, other=0.0)
    flow += tl.load(arriving + ((start + step * arriving_step) * UNITS)[:, None] + units, mask=outside, other=0.0)
    keep = tl.load(carried + at, mask=goes_on, other=0.0)
    if GRU:
        flow += keep
    gates += ((row * slots + step) * (4 * UNITS))[:, None] + units
    a = tl.load(gates, mask=read, other=0.0).to(tl.float32)
    b = tl.load(gates + UNITS, mask=read, other=0.0).to(tl.float32)
    c = tl.load(gates + 2 * UNITS, mask=read, other=0.0).to(tl.float32)
    d = tl.load(gates + 3 * UNITS, mask=read, other=0.0).to(tl.float32)
    memory += ((row * (slots + 1) + step) * UNITS)[:, None] + units
    before, after = tl.load(memory, mask=read, other=0.0), tl.load(memory + UNITS, mask=read, other=0.0)
    e, f, g, i, keep, flow = gated_backward(a, b, c, d, before, after, flow, keep, GRU, FAST)
    tl.store(carried + at, flow if GRU else keep, mask=read)
    packed_step = tl.load(row_after + row, mask=end > 0, other=0) - end + step
    tl.store(line_of + packed_step, (row * (slots + 1) + step).to(tl.int32), mask=step < end)
    packed += (packed_step * (4 * UNITS * PARTS))[:, None] + units
    store_parts(packed, e, read, 4 * UNITS, PARTS)
    store_parts(packed + UNITS, f, read, 4 * UNITS, PARTS)
    store_parts(packed + 2 * UNITS, g, read, 4 * UNITS, PARTS)
    store_parts(packed + 3 * UNITS, i, read, 4 * UNITS, PARTS)
    if GRU:
        g = i  # what the hidden state gives to the candidate
    if SCALED:  # float16 has the mantissa of tf32 but not its range: each row is scaled to at most 1
        largest = tl.maximum(tl.maximum(tl.abs(e), tl.abs(f)), tl.maximum(tl.abs(g), tl.abs(i)))
        largest = tl.maximum(tl.max(tl.where(read, largest, 0.0), 1), 1e-37)
        tl.store(scale + row, largest, mask=step < end)
        e, f, g, i = e / largest[:, None], f / largest[:, None], g / largest[:, None], i / largest[:, None]
    type = into_gates.dtype.element_ty
    into_gates += (row * ((3 if GRU else 4) * UNITS))[:, None] + units
    tl.store(into_gates, e.to(type), mask=read)
    tl.store(into_gates + UNITS, f.to(type), mask=read)
    tl.store(into_gates + 2 * UNITS, g.to(type), mask=read)
    if not GRU:
        tl.store(into_gates + 3 * UNITS, i.to(type), mask=read)


@triton.jit(do_not_specialize=["positions", "step"])
def hidden_backward(
    into_gates, weight, scale, into_hidden, order, ends, positions, step,
    UNITS: tl.constexpr, GATES: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr, TILE: tl.constexpr,
    COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The gradient of the hidden state before step `step`, from those of its gates."""
    position = tl.program_id(1) * TILE + tl.arange(0, TILE)
    end = tl.load(ends + position, mask=position < positions, other=0)
    if step >= tl.max(end, 0):
        return
    unit = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.load(order + position, mask=position < positions, other=0).to(tl.int64)
    read = (step < end)[:, None]
    at = (row * (GATES * UNITS))[:, None]
    total = tl.zeros((TILE, COLUMNS), tl.float32)
    for chunk in range(0, GATES * UNITS, CHUNK):
        k = chunk + tl.arange(0, CHUNK)
        x = tl.load(into_gates + at + k[None, :], mask=read, other=0.0)
        total = tl.dot(x, tl.load(weight + k[:, None] * UNITS + unit[None, :]), total, input_precision=PRECISION)
    if SCALED:
        total *= tl.load(scale + row, mask=step < end, other=0.0)[:, None]
    tl.store(into_hidden + (row * UNITS)[:, None] + unit[None, :], total, mask=read)
