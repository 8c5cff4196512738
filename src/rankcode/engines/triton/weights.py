"""Conversion of a layer's weights for the kernels, and of their gradients for PyTorch: one launch each."""

from __future__ import annotations

import triton
import triton.language as tl

from rankcode.engines.triton.matmul import _rounded


@triton.jit
def convert(
    input_weight, hidden_weight, input_bias, hidden_bias, of_input, of_hidden, bias, recall_bias,
    GATES: tl.constexpr, TRUE_UNITS: tl.constexpr, UNITS: tl.constexpr, TRUE_INPUTS: tl.constexpr,
    INPUTS: tl.constexpr, ROUND: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Weights in the precision of their matrix multiplications, units (and the inputs of upper layers) padded with
    zeros, and the sum of the biases. GRU has three gates, and the hidden bias of the last one stays separate."""
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)
    gate, unit = line // UNITS, line % UNITS
    inside, known = line < GATES * UNITS, (line < GATES * UNITS) & (unit < TRUE_UNITS)
    source = gate * TRUE_UNITS + unit
    for column in range(0, INPUTS, COLUMNS):
        n = (column + tl.arange(0, COLUMNS))[None, :]
        mask = known[:, None] & (n < TRUE_INPUTS)
        x = tl.load(input_weight + source[:, None] * TRUE_INPUTS + n, mask=mask, other=0.0)
        if ROUND:
            x = _rounded(x)
        at = line[:, None] * INPUTS + n
        tl.store(of_input + at, x.to(of_input.dtype.element_ty), mask=inside[:, None] & (n < INPUTS))
    for column in range(0, UNITS, COLUMNS):
        n = (column + tl.arange(0, COLUMNS))[None, :]
        mask, at = inside[:, None] & (n < UNITS), line[:, None] * UNITS + n
        here = known[:, None] & (n < TRUE_UNITS)
        x = tl.load(hidden_weight + source[:, None] * TRUE_UNITS + n, mask=here, other=0.0)
        tl.store(of_hidden + at, x.to(of_hidden.dtype.element_ty), mask=mask)
    first = tl.load(input_bias + source, mask=known, other=0.0)
    second = tl.load(hidden_bias + source, mask=known, other=0.0)
    apart = (gate == 2) & (GATES == 3)
    tl.store(bias + line, first + tl.where(apart, 0.0, second), mask=inside)
    tl.store(recall_bias + unit, second, mask=inside & apart)


@triton.jit
def _summed(at, mask, apart, SHARES: tl.constexpr):
    total = tl.load(at, mask=mask, other=0.0)
    for share in range(1, SHARES):
        total += tl.load(at + share * apart, mask=mask, other=0.0)
    return total


@triton.jit
def sum_shares(
    shares, input_weight, hidden_weight, input_bias, hidden_bias,
    GATES: tl.constexpr, TRUE_UNITS: tl.constexpr, UNITS: tl.constexpr, TRUE_INPUTS: tl.constexpr,
    INPUTS: tl.constexpr, WIDTH: tl.constexpr, SHARES: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradients of the weights from the result of `packed_matmul`, [shares, 4 · units, hidden and input and 1]. GRU's
    last array is the gradient of what the hidden state gives to the candidate, the one before of what the input
    gives."""
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)
    gate, unit = line // TRUE_UNITS, line % TRUE_UNITS
    known = line < GATES * TRUE_UNITS
    apart: tl.constexpr = 4 * UNITS * WIDTH
    of_input = ((gate * UNITS + unit) * WIDTH)[:, None]
    of_hidden = (((gate + tl.where((gate == 2) & (GATES == 3), 1, 0)) * UNITS + unit) * WIDTH)[:, None]
    for column in range(0, TRUE_INPUTS, COLUMNS):
        n = (column + tl.arange(0, COLUMNS))[None, :]
        mask = known[:, None] & (n < TRUE_INPUTS)
        x = _summed(shares + of_input + UNITS + n, mask, apart, SHARES)
        tl.store(input_weight + line[:, None] * TRUE_INPUTS + n, x, mask=mask)
    for column in range(0, TRUE_UNITS, COLUMNS):
        n = (column + tl.arange(0, COLUMNS))[None, :]
        mask = known[:, None] & (n < TRUE_UNITS)
        x = _summed(shares + of_hidden + n, mask, apart, SHARES)
        tl.store(hidden_weight + line[:, None] * TRUE_UNITS + n, x, mask=mask)
    one = (UNITS + INPUTS + tl.zeros((LINES,), tl.int32))[:, None]
    x = tl.sum(_summed(shares + of_input + one, known[:, None], apart, SHARES), 1)
    tl.store(input_bias + line, x, mask=known)
    x = tl.sum(_summed(shares + of_hidden + one, known[:, None], apart, SHARES), 1)
    tl.store(hidden_bias + line, x, mask=known)
