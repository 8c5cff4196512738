"""Blocks of steps forward, and the backward pass: which kernels are launched, and the memory they work on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton import knobs

from rankcode.cells import GRU, LSTM
from rankcode.device_constants import cached, capturing
from rankcode.engines.run import Keep, declared, planted_steps, readout_of, table_of
from rankcode.engines.triton import kernels
from rankcode.engines.triton.kernels import TILE_ROWS, Shape, as_argument
from rankcode.network import Network
from rankcode.rules import Rule

BLOCK_STEPS = 32  # tiles whose rows have all answered cost nothing from the next block on
OWN_BLOCKS = 3  # of a tile, the first of which ends where its rows should have answered
MAX_SINGLE_BLOCK = 2**16  # steps × rows; smaller batches are one block, because launches cost more than blocks save
TRITON_VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])
INTERPRETED = knobs.runtime.interpret  # kernels run on a CPU, in Triton's interpreter, for tests


class KeptFeatures(NamedTuple):
    """Features of the entries that are kept, and the step at which each row answered."""

    features: Tensor  # [entries, units]
    row: Tensor  # [entries]
    step: Tensor  # [entries]
    answered: Tensor  # [rows]
    fired: Tensor  # [rows]
    read: Tensor | None = None  # [entries]: which of them were read, while a CUDA graph is captured: see `Run`


def read(
    network: Network,
    cells: Sequence[LSTM | GRU],
    inputs: Tensor,
    lengths: Tensor,
    rule: Rule,
    keep: Keep,
    expected_steps: Tensor | None,
) -> KeptFeatures:
    """Run all rows through these cells, the topmost of the network, until they answer."""
    weights = [part for cell in cells for number in range(cell.num_layers) for part in cell.weights(number)]
    given = lengths, rule, keep, expected_steps
    if torch.is_grad_enabled() and any(part.requires_grad for part in (inputs, *weights)):
        return KeptFeatures(*_Fused.apply(inputs, network, cells[0], *given, *weights))  # type: ignore[misc]
    inputs = as_argument(inputs)
    return _forward(_Plan(network, cells[0], weights, inputs, rule), inputs, *given, save=False)[0]


def _multiples(number: int, factor: int, device: torch.device) -> Tensor:
    """0, factor, 2 · factor, …: `number` of them."""
    key = ("multiples", number, factor, device)
    return cached(key, device, lambda: torch.arange(number, device=device) * factor)


class _Layer(NamedTuple):
    """A layer's weights, in the precision of the matrix multiplications and with the number of units rounded up."""

    of_input: Tensor  # [gates · units, inputs]
    of_hidden: Tensor  # [gates · units, units]
    bias: Tensor  # [gates · units]: the sum of both biases
    recall_bias: Tensor  # [units]: GRU's hidden bias of the candidate, which the reset gate multiplies; unused by LSTM


class _Plan:
    """A network in the form that kernels need. `cell` is the lowest of those that they compute."""

    def __init__(self, network: Network, cell: LSTM | GRU, weights: Sequence[Tensor], inputs: Tensor, rule: Rule):
        mixed = mixed_precision(inputs.device.type)
        # The recurrent multiplication of tf32 is in float16 already, so float16 is no other mode.
        half, tf32 = mixed == torch.bfloat16, mixed is not None or tf32_allowed()
        fused = not declared(rule, "planted_steps")
        inner, activation, last = (readout_of(network) if fused else None) or (None, "", None)
        self.shape = Shape(
            type=torch.bfloat16 if half else torch.float32,
            # float16 has as many bits of mantissa as tf32, in half the memory
            recurrent_type=torch.bfloat16 if half else torch.float16 if tf32 else torch.float32,
            precision="tf32" if tf32 else "ieee",
            gru=isinstance(cell, GRU),
            true_units=cell.hidden_size,
            units=kernels.rounded(cell.hidden_size),
            rule=fused,
            inner=inner.out_features if inner else 0,
            classes=network.num_classes if fused else 1,
            sigmoid=fused and network.activation == "sigmoid",
            activation=activation,
            device=inputs.device,
        )
        # The number of inputs of each layer, and the number that is multiplied.
        columns = kernels.rounded_width(cell.input_size) if self.shape.stores_inputs else cell.input_size
        self.inputs = [(cell.input_size, columns)] + [(cell.hidden_size, self.shape.units)] * (len(weights) // 4 - 1)
        self.layers = [self._layer(weights[4 * number :][:4], number) for number in range(len(self.inputs))]
        self.rule = (inputs,) * 5  # any pointers: they are not read without a rule
        if last is not None:
            readout = (as_argument(part) for layer in (inner or last, last) for part in (layer.weight, layer.bias))
            table = table_of(rule, inputs.shape[1], network.num_classes, torch.float32, inputs.device)
            self.rule = (as_argument(table), *readout)

    def _layer(self, weights: Sequence[Tensor], number: int) -> _Layer:
        shape = self.shape
        lines, (true_inputs, inputs) = shape.gates * shape.units, self.inputs[number]

        def new(type: torch.dtype, *size: int) -> Tensor:
            return torch.empty(size, dtype=type, device=shape.device)

        layer = _Layer(
            new(shape.type, lines, inputs),
            new(shape.recurrent_type, lines, shape.units),
            new(torch.float32, lines),
            new(torch.float32, shape.units),
        )
        own = map(as_argument, weights)
        kernels.convert(shape, true_inputs, inputs)((-(-lines // kernels.WEIGHT_LINES), 1, 1), *own, *layer)
        return layer


class _Kept(NamedTuple):
    """A layer's steps: see `recurrence`."""

    gates: Tensor  # [rows, slots, 4 · units]
    hidden: Tensor  # [rows, slots + 1, state_width]: units, and the inputs if these are stored
    memory: Tensor  # [rows, slots + 1, units]


class _Tiles(NamedTuple):
    """The row at each position, and the step at which each row answered."""

    order: Tensor  # [positions]: the row
    ends: (
        Tensor  # [positions]: the steps that the row reads at most, later: that it read; 0 at a position without a row
    )
    answered: Tensor  # [rows]
    fired: Tensor  # [rows]
    bounds: Tensor  # [blocks + 1, tiles]: see `matmul`


def _sorts(rows: int, steps: int, expected_steps: Tensor | None) -> bool:
    """Whether rows are sorted by the steps at which they should answer. Small batches are not: it takes too long."""
    return expected_steps is not None and rows * steps > MAX_SINGLE_BLOCK


def _tiles(
    lengths: Tensor, steps: int, rule: Rule, expected_steps: Tensor | None, block: int, own_blocks: bool
) -> _Tiles:
    """The rows in tiles. Blocks have `block` steps; with `own_blocks`, which needs sorted rows, the first one of a tile
    ends where its rows should have answered."""
    rows, device = len(lengths), lengths.device
    number = -(-rows // TILE_ROWS)
    order = _multiples(number * TILE_ROWS, 1, device)
    ends, fired = torch.empty_like(order, dtype=torch.int32), torch.empty_like(lengths, dtype=torch.bool)
    expected = ends  # not read
    if expected_steps is not None and _sorts(rows, steps, expected_steps):
        small = torch.uint8 if steps < 2**8 else torch.int32  # a quarter of the time to sort
        expected, rows_sorted = expected_steps.to(device, small).sort(descending=True)
        order = F.pad(rows_sorted, (0, len(order) - rows)) if rows < len(order) else rows_sorted
    blocks = OWN_BLOCKS if own_blocks else -(-steps // block)
    bounds = ends.new_empty(blocks + 1, number)
    planted = planted_steps(rule, lengths)
    planted = lengths if planted is None else as_argument(planted)
    grid = (-(-len(order) // kernels.ARRANGE_POSITIONS), 1, 1)
    kernels.arrange(device, expected.dtype)(
        grid, lengths, planted, order, expected, ends, fired, bounds, rows, len(order), steps, block, blocks,
        int(planted is not lengths), int(own_blocks),
    )  # fmt: skip
    return _Tiles(order, ends, torch.empty_like(lengths), fired, bounds)


def _forward(
    plan: _Plan, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep, expected_steps: Tensor | None, save: bool
) -> tuple[KeptFeatures, _Tiles, list[_Kept]]:
    (rows, steps), shape = inputs.shape[:2], plan.shape
    features = inputs.new_empty(rows, shape.units)
    whole = save or keep == "read"  # otherwise all blocks use the same memory
    block = steps if rows * steps <= MAX_SINGLE_BLOCK and shape.resident else min(BLOCK_STEPS, steps)
    slots = steps if whole else block
    own_blocks = whole and shape.resident and _sorts(rows, steps, expected_steps)
    tiles = _tiles(as_argument(lengths), steps, rule, expected_steps, block, own_blocks)
    blocks, number_of_tiles = len(tiles.bounds) - 1, tiles.bounds.shape[1]
    each = kernels.rows_of_program(inputs.device, rows, own_blocks)
    kept = []
    for _, columns in plan.inputs:
        gates = inputs.new_empty(rows, slots, 4 * shape.units, dtype=shape.type)
        hidden = inputs.new_empty(rows, slots + 1, kernels.state_width(shape, columns), dtype=shape.type)
        kept.append(_Kept(gates, hidden, inputs.new_empty(rows, slots + 1, shape.units)))
    recent = [gates.new_empty(2, len(tiles.order), shape.units, dtype=shape.recurrent_type) for gates, _, _ in kept]
    for number_of_block in range(blocks):
        longest = steps if own_blocks and number_of_block == 0 else block  # the last of OWN_BLOCKS may be longer
        origin = 0 if whole else number_of_block * block
        grid = kernels.matmul_grid(inputs.device, shape.gates * shape.units, longest, number_of_tiles)
        for number, layer in enumerate(plan.layers):
            (true_inputs, columns), arranged = plan.inputs[number], (tiles.order, tiles.ends)
            given, *given_at = (kept[number - 1].hidden, slots + 1, 1 - origin) if number else (inputs, steps, 0)
            if shape.stores_inputs:
                stored = kept[number].hidden
                kernels.store_inputs(shape, true_inputs, columns, given.shape[2])(
                    kernels.copy_grid(inputs.device, len(tiles.order), longest, kernels.STORED_STEPS), given, stored,
                    *arranged, tiles.bounds, number_of_block, *given_at, slots, origin,
                )  # fmt: skip
                given, given_at = stored, (slots + 1, -origin)
            kernels.input_projection(shape, columns)(
                grid, given, layer.of_input, layer.bias, kept[number].gates, *arranged, tiles.order, tiles.bounds,
                number_of_block, 1, *given_at, slots, -origin,
            )  # fmt: skip
            top = number == len(plan.layers) - 1
            own = (*kept[number], layer.of_hidden, layer.recall_bias)
            if shape.resident:
                answers = (tiles.answered, tiles.fired, features, *plan.rule)
                kernels.forward(shape, columns, save, top, each)(
                    (-(-rows // each), 1, 1), *own, tiles.order, tiles.ends, *answers, tiles.bounds, number_of_block,
                    number_of_tiles, origin, slots,
                )  # fmt: skip
            else:
                first, last = number_of_block * block, min((number_of_block + 1) * block, steps)
                place, copies = (first, last, origin, slots), not whole and last < steps
                found = features if top else None
                _forward_steps(plan, own, recent[number], tiles, found, *place, copies, columns, save)
    if keep == "answer":
        row = _multiples(rows, 1, inputs.device).clone()  # the caller may write to it
        features = features if shape.units == shape.true_units else features[:, : shape.true_units]
        return KeptFeatures(features, row, tiles.answered, tiles.answered, tiles.fired), tiles, kept
    count = _multiples(steps, 1, inputs.device)
    was_read = count < tiles.answered[:, None]
    if capturing(inputs.device):
        features = kept[-1].hidden[:, 1:, : shape.true_units].where(was_read[..., None], 0.0).float().flatten(0, 1)
        row = _multiples(rows, 1, inputs.device)[:, None].expand(-1, steps).flatten()
        step = (count + 1).expand(rows, -1).flatten()
        return KeptFeatures(features, row, step, tiles.answered, tiles.fired, was_read.flatten()), tiles, kept
    row, step = was_read.nonzero(as_tuple=True)
    features = kept[-1].hidden[row, step + 1, : shape.true_units].float()
    return KeptFeatures(features, row, step + 1, tiles.answered, tiles.fired), tiles, kept


def _forward_steps(
    plan: _Plan, layer: Sequence[Tensor], recent: Tensor, tiles: _Tiles, features: Tensor | None, first: int, last: int,
    origin: int, slots: int, copies: bool, inputs: int, save: bool,
) -> None:  # fmt: skip
    """Steps first … last of a layer, a launch for each. The top layer, which has features, also evaluates the rule."""
    shape, positions, asked = plan.shape, len(tiles.order), first
    kernel, grid = kernels.forward_step(shape, inputs, save, positions)
    forward_step = kernel.launches(grid, *layer, recent, tiles.order, tiles.ends)
    for step in range(first, last):
        forward_step(positions, step, origin, slots, int(copies and step + 1 == last))
        if features is not None and (step + 1 - asked == kernels.RULE_STEPS or step + 1 == last):
            kernels.answer(shape, inputs)(
                (positions // TILE_ROWS, 1, 1), layer[1], *tiles[:4], features, *plan.rule, asked, step + 1, origin,
                slots,
            )  # fmt: skip
            asked = step + 1


class _Fused(torch.autograd.Function):
    """`_forward`, with gradients."""

    @staticmethod
    def forward(ctx, inputs, network, cell, lengths, rule, keep, expected_steps, *weights):  # type: ignore[override]
        inputs = as_argument(inputs)
        plan = _Plan(network, cell, weights, inputs, rule)
        found, tiles, kept = _forward(plan, inputs, lengths, rule, keep, expected_steps, save=True)
        ctx.plan, ctx.keep, ctx.all_steps = plan, keep, found.read is not None
        ctx.is_sorted = _sorts(inputs.shape[0], inputs.shape[1], expected_steps)
        ctx.save_for_backward(inputs, *tiles, *(part for layer in kept for part in layer))
        ctx.mark_non_differentiable(*(part for part in found[1:] if part is not None))
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient, *_):  # type: ignore[override]
        inputs, *saved = ctx.saved_tensors
        plan, shape = ctx.plan, ctx.plan.shape
        tiles, kept = _Tiles(*saved[:5]), [_Kept(*saved[at : at + 3]) for at in range(5, len(saved), 3)]
        (rows, steps), count = inputs.shape[:2], len(plan.layers)
        blocks, number_of_tiles = len(tiles.bounds) - 1, tiles.bounds.shape[1]
        each = kernels.rows_of_program(gradient.device, rows, ctx.is_sorted)
        at_end, base = ctx.keep == "answer", _multiples(rows, 1, inputs.device)
        after = tiles.answered.cumsum(0)  # the packed steps of each row end there
        if not at_end:
            base = _multiples(rows, steps, after.device) if ctx.all_steps else after - tiles.answered
        if more := shape.units - shape.true_units:
            gradient = F.pad(gradient, (0, more))
        arriving = as_argument(gradient)
        below = arriving.new_empty(rows, steps, shape.units) if count > 1 else None
        into_inputs = torch.zeros_like(inputs) if ctx.needs_input_grad[0] else None
        gradients: list[Tensor] = []
        packed = arriving.new_empty(rows * steps, 4 * shape.units * shape.parts, dtype=shape.packed_type)
        line_of = tiles.ends.new_empty(rows * steps)
        for number in reversed(range(count)):
            layer = plan.layers[number]
            own = kept[number].gates, kept[number].memory
            above = arriving, base, packed, line_of, after
            if shape.resident:
                kernels.backward(shape, at_end, each)(
                    (-(-rows // each), 1, 1), *own, layer.of_hidden, *above, tiles.order, tiles.ends, steps,
                    int(not at_end),
                )  # fmt: skip
            else:
                _backward_steps(shape, own, layer.of_hidden, above, tiles, steps, at_end)
            into = below if number else into_inputs
            if into is not None:
                width = into.shape[2]
                kernels.input_gradient(shape, width, plan.inputs[number][1])(
                    kernels.matmul_grid(into.device, width, steps, number_of_tiles), packed, layer.of_input,
                    layer.bias, into, tiles.order, tiles.ends, after, tiles.bounds, 0, blocks, 0, 0, steps, 0,
                )  # fmt: skip
            right = kept[number].hidden
            if not shape.stores_inputs:
                given = (kept[number - 1].hidden, steps + 1, 1) if number else (inputs, steps, 0)
                right = _gathered(shape, right, given, tiles.answered, after)
            gradients = [*_of_weights(shape, plan.inputs[number], packed, right, line_of, after), *gradients]
            at_end, arriving, base = False, below, _multiples(rows, steps, inputs.device)
        return (into_inputs, *[None] * 6, *gradients)


def _backward_steps(
    shape: Shape, layer: Sequence[Tensor], weight: Tensor, above: Sequence[Any], tiles: _Tiles, steps: int,
    at_end: bool,
) -> None:  # fmt: skip
    """All steps of a layer from the last to the first, two launches for each: see `large_recurrence`."""
    rows, positions, read = len(tiles.answered), len(tiles.order), (tiles.order, tiles.ends)
    into_gates = weight.new_empty(rows, shape.gates * shape.units)
    into_hidden, carried = weight.new_empty(2, rows, shape.units, dtype=torch.float32)
    scale = weight.new_empty(rows, dtype=torch.float32)
    of_gates = *layer, *above, into_hidden, carried, into_gates, scale, *read
    gates_backward = kernels.gates_backward(shape, at_end).launches(
        (-(-positions // kernels.GATE_ROWS), 1, 1), *of_gates
    )
    kernel, grid = kernels.hidden_backward(shape, positions)
    hidden_backward = kernel.launches(grid, into_gates, weight, scale, into_hidden, *read)
    for step in reversed(range(steps)):
        gates_backward(positions, step, steps, int(not at_end))
        if step > 0:
            hidden_backward(positions, step)


def _gathered(shape: Shape, hidden: Tensor, given: tuple[Tensor, int, int], read: Tensor, after: Tensor) -> Tensor:
    """What the weights were multiplied with, packed."""
    (below, *below_at), (rows, slots) = given, hidden.shape[:2]
    width = kernels.width(shape, below.shape[2]) * shape.parts
    packed = below.new_empty(rows * (slots - 1), width, dtype=shape.packed_type)
    kernels.gather(shape, below.shape[2])(
        kernels.copy_grid(packed.device, rows, slots - 1, kernels.GATHER_STEPS), below, hidden, packed, read, after,
        *below_at, slots - 1,
    )  # fmt: skip
    return packed


def _of_weights(
    shape: Shape, sizes: tuple[int, int], packed: Tensor, right: Tensor, line_of: Tensor, after: Tensor
) -> list[Tensor]:
    """Gradients of a layer's weights and biases: a matrix multiplication over all steps that were read."""
    true_inputs, inputs = sizes
    matmul, grid = kernels.packed_matmul(shape, inputs)
    shares = packed.new_empty(grid[2], 4 * shape.units, kernels.width(shape, inputs), dtype=torch.float32)
    matmul(grid, packed, right, shares, line_of, after, len(after))
    lines = shape.gates * shape.true_units
    found = [shares.new_empty(lines, columns) for columns in (true_inputs, shape.true_units)]
    found += [shares.new_empty(lines) for _ in range(2)]
    kernels.sum_shares(shape, true_inputs, inputs)((-(-lines // kernels.WEIGHT_LINES), 1, 1), shares, *found)
    return found


def mixed_precision(device: str) -> torch.dtype | None:
    """The type of automatic mixed precision, if it is enabled."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def tf32_allowed() -> bool:
    """Whether PyTorch lets recurrent layers run in tf32."""
    cudnn: Any = torch.backends.cudnn
    try:
        return cudnn.allow_tf32
    except RuntimeError:  # set by its new name, and to something else for convolutions
        return cudnn.rnn.fp32_precision == "tf32"
