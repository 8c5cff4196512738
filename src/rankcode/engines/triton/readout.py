"""The readout, a linear layer or two, of hidden states, and its gradients.

The first layer, which reads the hidden state, is `inner`; without a hidden layer (INNER is 0) there is only `outer`.
PADDED_INNER and PADDED_CLASSES are INNER and CLASSES, rounded up.
"""

from __future__ import annotations

import triton
import triton.language as tl

FLOAT32 = tl.constexpr("tf32x3")  # three multiplications in tf32, with an error of about 4e-7


@triton.jit
def logits_of(
    hidden, at, read, inner, inner_bias, outer, outer_bias, line, known,
    UNITS: tl.constexpr, TRUE_UNITS: tl.constexpr, INNER: tl.constexpr, ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr, CHUNK: tl.constexpr, PADDED_INNER: tl.constexpr, PADDED_CLASSES: tl.constexpr,
):  # fmt: skip
    """Outputs [rows, PADDED_CLASSES] for the hidden states at `at` [rows], and the hidden layer [rows, PADDED_INNER].
    `line` and `known` [PADDED_CLASSES] are the lines of the last layer's weights, and which of them there are."""
    d = tl.arange(0, PADDED_INNER)
    type = hidden.dtype.element_ty
    # All that does not depend on the hidden state is loaded first, at the same time.
    last_bias = tl.load(outer_bias + line, mask=known, other=0.0)[None, :]
    of_inner, first_bias, last = d < INNER, last_bias, last_bias
    if INNER > 0:
        last_at = outer + line[None, :] * INNER + d[:, None]
        last = tl.load(last_at, mask=of_inner[:, None] & known[None, :], other=0.0)
        first_bias = tl.load(inner_bias + d, mask=of_inner, other=0.0)[None, :]
    total = tl.zeros((at.shape[0], PADDED_INNER if INNER > 0 else PADDED_CLASSES), tl.float32)
    for chunk in range(0, UNITS, CHUNK):
        k = chunk + tl.arange(0, CHUNK)
        true = (k < TRUE_UNITS)[:, None]
        if INNER > 0:
            w = tl.load(inner + d[None, :] * TRUE_UNITS + k[:, None], mask=true & of_inner[None, :], other=0.0)
        else:
            w = tl.load(outer + line[None, :] * TRUE_UNITS + k[:, None], mask=true & known[None, :], other=0.0)
        there = read[:, None]
        if UNITS % CHUNK > 0:
            there &= (k < UNITS)[None, :]
        h = tl.load(hidden + at[:, None] + k[None, :], mask=there, other=0.0)
        total = tl.dot(h, w.to(type), total, input_precision=PRECISION)
    squashed = total
    if INNER > 0:
        squashed += first_bias
        if ACTIVATION == "relu":
            squashed = tl.maximum(squashed, 0.0)
        elif ACTIVATION == "tanh":
            squashed = 2 * tl.sigmoid(2 * squashed) - 1
        elif ACTIVATION == "sigmoid":
            squashed = tl.sigmoid(squashed)
        total = tl.dot(squashed.to(type), last.to(type), input_precision=PRECISION)
    return total + last_bias, squashed


@triton.jit(do_not_specialize=["entries"])
def readout_forward(
    features, inner, inner_bias, outer, outer_bias, squashed, outputs, entries,
    UNITS: tl.constexpr, INNER: tl.constexpr, CLASSES: tl.constexpr, ACTIVATION: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, PADDED_INNER: tl.constexpr, PADDED_CLASSES: tl.constexpr,
):  # fmt: skip
    """Outputs [entries, CLASSES] of features [entries, UNITS], and the hidden layer, `squashed` [entries, INNER]."""
    entry = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there, line, d = entry < entries, tl.arange(0, PADDED_CLASSES), tl.arange(0, PADDED_INNER)
    found, layer = logits_of(
        features, entry * UNITS, there, inner, inner_bias, outer, outer_bias, line, line < CLASSES,
        UNITS, UNITS, INNER, ACTIVATION, FLOAT32, CHUNK, PADDED_INNER, PADDED_CLASSES,
    )  # fmt: skip
    mask = there[:, None] & (line < CLASSES)[None, :]
    tl.store(outputs + (entry * CLASSES)[:, None] + line[None, :], found, mask=mask)
    if INNER > 0:
        mask = there[:, None] & (d < INNER)[None, :]
        tl.store(squashed + (entry * INNER)[:, None] + d[None, :], layer, mask=mask)


@triton.jit
def _add(at, x, mask):
    tl.store(at, x + tl.load(at, mask=mask, other=0.0), mask=mask)


@triton.jit(do_not_specialize=["entries"])
def readout_backward(
    features, squashed, into_outputs, inner, outer, into_features, shares, entries,
    UNITS: tl.constexpr, INNER: tl.constexpr, CLASSES: tl.constexpr, ACTIVATION: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, PADDED_INNER: tl.constexpr, PADDED_CLASSES: tl.constexpr,
):  # fmt: skip
    """Gradients of the features, and of all weights and biases in the order of the layers: each program adds to a line
    of `shares`, which are summed later."""
    line, d = tl.arange(0, PADDED_CLASSES), tl.arange(0, PADDED_INNER)
    known, of_inner = line < CLASSES, d < INNER
    if INNER > 0:
        lines: tl.constexpr = INNER  # of the weights that the hidden state is multiplied with
        j, exists, weight = d, of_inner, inner
    else:
        lines: tl.constexpr = CLASSES
        j, exists, weight = line, known, outer
    first_size: tl.constexpr = lines * (UNITS + 1)
    shares += tl.program_id(0) * (first_size + (CLASSES * (INNER + 1) if INNER > 0 else 0))
    for begin in range(tl.program_id(0) * ROWS, entries, tl.num_programs(0) * ROWS):
        entry = (begin + tl.arange(0, ROWS)).to(tl.int64)
        there = (entry < entries)[:, None]
        output_at = (entry * CLASSES)[:, None] + line[None, :]
        into = tl.load(into_outputs + output_at, mask=there & known[None, :], other=0.0)
        if INNER > 0:
            layer_at = squashed + (entry * INNER)[:, None] + d[None, :]
            layer = tl.load(layer_at, mask=there & of_inner[None, :], other=0.0)
            outer_at, of_outer = line[:, None] * INNER + d[None, :], known[:, None] & of_inner[None, :]
            last = tl.load(outer + outer_at, mask=of_outer, other=0.0)
            _add(shares + first_size + outer_at, tl.dot(tl.trans(into), layer, input_precision=FLOAT32), of_outer)
            _add(shares + first_size + CLASSES * INNER + line, tl.sum(into, 0), known)
            into_layer = tl.dot(into, last, input_precision=FLOAT32)
            if ACTIVATION == "relu":
                into_layer = tl.where(layer > 0, into_layer, 0.0)
            elif ACTIVATION == "tanh":
                into_layer *= 1 - layer * layer
            elif ACTIVATION == "sigmoid":
                into_layer *= layer * (1 - layer)
        else:
            into_layer = into
        _add(shares + first_size - lines + j, tl.sum(into_layer, 0), exists)
        for chunk in range(0, UNITS, CHUNK):
            k = (chunk + tl.arange(0, CHUNK))[None, :]
            at, mask = j[:, None] * UNITS + k, exists[:, None] & (k < UNITS)
            w = tl.load(weight + at, mask=mask, other=0.0)
            feature_at, feature_mask = (entry * UNITS)[:, None] + k, there & (k < UNITS)
            x = tl.load(features + feature_at, mask=feature_mask, other=0.0)
            _add(shares + at, tl.dot(tl.trans(into_layer), x, input_precision=FLOAT32), mask)
            into_x = tl.dot(into_layer, w, input_precision=FLOAT32)
            tl.store(into_features + feature_at, into_x, mask=feature_mask)
        tl.debug_barrier()  # before the next entries are added
