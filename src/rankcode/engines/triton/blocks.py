"""Blocks of steps, one after the other, and the way back: what is launched, and on which memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from triton import knobs

from rankcode.cells import GRU, LSTM
from rankcode.engines.run import Keep
from rankcode.engines.triton import kernels
from rankcode.engines.triton.kernels import TILE, Shape
from rankcode.network import Network
from rankcode.rules import FireAt, Never, Rule, StepThresholds, Threshold

BLOCK = 32  # steps; tiles that have ended cost nothing from the next block on
FEW = 2**16  # steps of all rows together; up to there all are one block: launches cost more than they save
COPIED = 2**27  # bytes that are gathered at once for the weights' gradients
INTERPRETED = knobs.runtime.interpret  # on a CPU, to test
SQUASHES = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}


class Found(NamedTuple):
    """Features of the entries that are kept, and where the rows answered."""

    features: Tensor  # [entries, units]
    row: Tensor  # [entries]
    step: Tensor  # [entries]
    answered: Tensor  # [rows]
    fired: Tensor  # [rows]


def read(
    network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep, expected_steps: Tensor | None
) -> Found:
    """Run all rows until they answer."""
    parameters = [part for number in range(network.cell.layers) for part in network.cell.weights(number)]
    if torch.is_grad_enabled() and any(part.requires_grad for part in (inputs, *parameters)):
        return Found(*_Fused.apply(inputs, network, lengths, rule, keep, expected_steps, *parameters))  # type: ignore[misc]
    inputs = _aligned(inputs)
    return _forward(_Plan(network, inputs, rule), inputs, lengths, rule, keep, expected_steps, save=False)[0]


def readout_of(network: Network) -> tuple[nn.Linear | None, str, nn.Linear] | None:
    """The readout as a hidden layer, its activation and the output layer; None where it is of another kind."""
    parts = list(network.readout) if isinstance(network.readout, nn.Sequential) else [network.readout]
    linear = [part for part in parts if isinstance(part, nn.Linear)]
    if any(type(part) is not nn.Linear or part.bias is None for part in linear):  # one's own may do anything
        return None
    match parts:
        case [nn.Linear() as last]:
            return None, "", last
        case [nn.Linear() as inner, squash, nn.Linear() as last] if type(squash) in SQUASHES:
            return inner, SQUASHES[type(squash)], last
    return None


def _table(rule: Any, steps: int, classes: int, device: torch.device) -> Tensor:
    """Thresholds by step and class, on the device."""
    if isinstance(rule, Threshold | StepThresholds):  # which never change
        return _kept_table(rule, steps, classes, device)
    return _aligned(rule.table(steps, classes).to(device, torch.float32))


@lru_cache(maxsize=64)
def _kept_table(rule: Any, steps: int, classes: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return rule.table(steps, classes).to(device, torch.float32).contiguous()


@lru_cache(maxsize=64)
def _count(number: int, factor: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # it is kept, and may be used in training
        return torch.arange(number, device=device) * factor


class _Layer(NamedTuple):
    """A layer's weights, in the precision of the products and with units rounded up."""

    of_input: Tensor  # [gates · units, inputs]
    of_hidden: Tensor  # [gates · units, units]
    of_hidden_back: Tensor  # the same for the backward pass
    bias: Tensor  # [gates · units]: what both biases give
    recall_bias: Tensor  # [units]: GRU's bias inside the reset gate; unused by LSTM


class _Plan:
    """A network as kernels want it."""

    def __init__(self, network: Network, inputs: Tensor, rule: Rule):
        cell: LSTM | GRU = network.cell
        half = torch.is_autocast_enabled(inputs.device.type)
        tf32 = half or tf32_allowed()
        fused = not isinstance(rule, Never | FireAt)
        inner, squash, last = (readout_of(network) if fused else None) or (None, "", None)
        self.shape = Shape(
            type=torch.bfloat16 if half else torch.float32,
            # float16 has as many digits as tf32, and weights of half the size
            recurrent_type=torch.bfloat16 if half else torch.float16 if tf32 else torch.float32,
            precision="tf32" if tf32 else "ieee",
            gru=isinstance(cell, GRU),
            true_units=cell.units,
            units=kernels.rounded(cell.units),
            rule=fused,
            inner=inner.out_features if inner else 0,
            classes=network.classes if fused else 1,
            sigmoid=fused and network.activation == "sigmoid",
            squash=squash,
            device=inputs.device,
        )
        self.layers = [self._layer(cell, number) for number in range(cell.layers)]
        self.rule = (inputs,) * 5  # any pointer: without a rule nobody looks
        if last is not None:
            weights = (_aligned(part) for layer in (inner or last, last) for part in (layer.weight, layer.bias))
            self.rule = (_table(rule, inputs.shape[1], network.classes, inputs.device), *weights)

    def _layer(self, cell: LSTM | GRU, number: int) -> _Layer:
        shape = self.shape
        lines, inputs = shape.gates * shape.units, shape.units if number else cell.inputs

        def new(type: torch.dtype, *size: int) -> Tensor:
            return torch.empty(size, dtype=type, device=shape.device)

        hidden = new(shape.recurrent_type, lines, shape.units)
        back = hidden if shape.one_type else new(shape.type, lines, shape.units)
        layer = _Layer(
            new(shape.type, lines, inputs), hidden, back, new(torch.float32, lines), new(torch.float32, shape.units)
        )
        own = map(_aligned, cell.weights(number))
        kernels.convert(shape, inputs, number > 0)((-(-lines // kernels.LINES), 1, 1), *own, *layer)
        return layer


def _aligned(part: Tensor) -> Tensor:
    """As kernels need it: see `Kernel`."""
    part = part.detach().contiguous()
    return part if part.data_ptr() % 16 == 0 else part.clone()


class _Kept(NamedTuple):
    """A layer's steps: see `recurrence`."""

    gates: Tensor  # [rows, slots, 4 · units]
    hidden: Tensor  # [rows, slots, units]
    memory: Tensor  # [rows, slots, units]


class _Tiles(NamedTuple):
    """Which row stands where, and where it answered."""

    order: Tensor  # [positions]
    ends: Tensor  # [positions]
    answered: Tensor  # [rows]
    fired: Tensor  # [rows]


def _tiles(lengths: Tensor, steps: int, rule: Rule, expected_steps: Tensor | None) -> tuple[_Tiles, int]:
    """The rows in tiles, and how many tiles these are."""
    rows, device = len(lengths), lengths.device
    number = -(-rows // TILE)
    order = _count(number * TILE, 1, device)
    if expected_steps is not None and rows * steps > FEW:  # else sorting costs more than it saves
        order = torch.empty_like(order)
        order[:rows] = expected_steps.to(device).argsort(descending=True)
    planted = _aligned(rule.initial_state(rows).to(device)) if isinstance(rule, FireAt) else lengths
    ends, fired = torch.empty_like(order, dtype=torch.int32), torch.empty_like(lengths, dtype=torch.bool)
    grid = (-(-len(order) // kernels.ARRANGED), 1, 1)
    kernels.arrange(device)(grid, lengths, planted, order, ends, fired, rows, len(order), int(planted is not lengths))
    return _Tiles(order, ends, torch.empty_like(lengths), fired), number


def _forward(
    plan: _Plan, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep, expected_steps: Tensor | None, save: bool
) -> tuple[Found, list[_Kept], _Tiles]:
    (rows, steps), shape = inputs.shape[:2], plan.shape
    tiles, number_of_tiles = _tiles(_aligned(lengths), steps, rule, expected_steps)
    features = inputs.new_empty(rows, shape.units)
    whole = save or keep == "read"  # else the memory of one block serves all
    block = steps if rows * steps <= FEW else min(BLOCK, steps)
    slots = (steps if whole else block) + 1
    kept = []
    for _ in plan.layers:
        memory = inputs.new_empty(rows, slots, shape.units)
        gates = torch.empty(rows, slots, 4 * shape.units, dtype=shape.type, device=inputs.device)
        kept.append(_Kept(gates, torch.empty_like(memory, dtype=shape.type), memory))
    columns = -(-shape.gates * shape.units // kernels.PRODUCT_COLUMNS)
    for first in range(0, steps, block):
        last, origin = min(first + block, steps), 0 if whole else first
        grid = (columns, -(-(last - first) // kernels.PRODUCT_STEPS), number_of_tiles)
        for number, layer in enumerate(plan.layers):
            given = (kept[number - 1].hidden, slots, 1 - origin) if number else (inputs, steps, 0)
            kernels.input_product(shape, given[0].shape[2], given[0].dtype)(
                grid, given[0], layer.of_input, layer.bias, kept[number].gates, tiles.order, tiles.ends, first, last,
                *given[1:], slots, -origin,
            )  # fmt: skip
            kernels.forward(shape, save, number == len(plan.layers) - 1)(
                (number_of_tiles, 1, 1), *kept[number], layer.of_hidden, layer.recall_bias, *tiles, features,
                *plan.rule, first, last, origin, slots,
            )  # fmt: skip
    if keep == "answer":
        row = _count(rows, 1, inputs.device).clone()  # the caller's own
        features = features if shape.units == shape.true_units else features[:, : shape.true_units]
        return Found(features, row, tiles.answered, tiles.answered, tiles.fired), kept, tiles
    row, step = (torch.arange(steps, device=inputs.device) < tiles.answered[:, None]).nonzero(as_tuple=True)
    features = kept[-1].hidden[row, step + 1, : shape.true_units].float()
    return Found(features, row, step + 1, tiles.answered, tiles.fired), kept, tiles


class _Fused(torch.autograd.Function):
    """`_forward`, with gradients."""

    @staticmethod
    def forward(ctx, inputs, network, lengths, rule, keep, expected_steps, *parameters):  # type: ignore[override]
        inputs = _aligned(inputs)
        plan = _Plan(network, inputs, rule)
        found, ctx.kept, ctx.tiles = _forward(plan, inputs, lengths, rule, keep, expected_steps, save=True)
        ctx.plan, ctx.keep, ctx.entries = plan, keep, _Entries(ctx.tiles, *inputs.shape[:2])
        ctx.save_for_backward(inputs)
        ctx.mark_non_differentiable(*found[1:])
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient, *_):  # type: ignore[override]
        (inputs,), plan, tiles, shape = ctx.saved_tensors, ctx.plan, ctx.tiles, ctx.plan.shape
        kept, ctx.kept = ctx.kept, None
        if kept is None:
            raise RuntimeError("the engine triton runs backward once: gradients take the place of what was saved")
        (rows, steps), count = inputs.shape[:2], len(plan.layers)
        slots, number_of_tiles = steps + 1, len(tiles.order) // TILE
        at_end, base = ctx.keep == "answer", _count(rows, 1, inputs.device)
        if not at_end:
            base = tiles.answered.cumsum(0) - tiles.answered
        if more := shape.units - shape.true_units:
            gradient = F.pad(gradient, (0, more))
        arriving = _aligned(gradient)
        below = inputs.new_empty(rows, steps, shape.units) if count > 1 else None
        into_inputs = torch.zeros_like(inputs) if ctx.needs_input_grad[0] else None
        into_hidden, into_memory = inputs.new_empty(2, rows, shape.units)
        gradients: list[Tensor] = []
        entries = ctx.entries
        for number in reversed(range(count)):
            layer, gates = plan.layers[number], kept[number].gates
            kernels.backward(shape, at_end)(
                (number_of_tiles, 1, 1), gates, kept[number].memory, layer.of_hidden_back, arriving, base,
                into_hidden, into_memory, tiles.order, tiles.ends, slots, int(not at_end),
            )  # fmt: skip
            into = below if number else into_inputs
            if into is not None:
                width = into.shape[2]
                kernels.product_back(shape, width)(
                    (-(-width // kernels.PRODUCT_COLUMNS), -(-steps // kernels.PRODUCT_STEPS), number_of_tiles),
                    gates, layer.of_input, layer.bias, into, tiles.order, tiles.ends, 0, steps, slots, 0, steps, 0,
                )  # fmt: skip
            given = (kept[number - 1].hidden, slots, 1) if number else (inputs, steps, 0)
            gradients = [*_of_weights(plan, kept[number], given, entries, number > 0), *gradients]
            at_end, arriving, base = False, below, _count(rows, steps, inputs.device)
        return (into_inputs, None, None, None, None, None, *gradients)


class _Entries:
    """Where what was read is gathered: row after row. How much that is the host must know, to multiply no more of it
    than that. It learns so while the GPU goes on; a batch so small that its launches count is gathered in full."""

    def __init__(self, tiles: _Tiles, rows: int, steps: int):
        self.answered, self.rows, self.steps = tiles.answered, rows, steps
        self.fill = rows * steps <= FEW
        if self.fill:
            self.offsets = _count(rows, steps, self.answered.device)
            return
        self.offsets = self.answered.cumsum(0) - self.answered
        self.on_host = torch.empty(rows, dtype=torch.int64, pin_memory=self.answered.is_cuda)
        self.on_host.copy_(self.answered, non_blocking=True)
        self.copied = torch.cuda.Event() if self.answered.is_cuda else None
        if self.copied is not None:
            self.copied.record()

    def parts(self, bytes_each: int) -> list[tuple[int, int, int, int]]:
        """Rows first … last in parts that fit into memory: with the offset of the first, and their entries."""
        if self.fill:
            return [(0, self.rows, 0, self.rows * self.steps)]
        if self.copied is not None:
            self.copied.synchronize()
        after = self.on_host.cumsum(0).numpy()
        found, first, base = [], 0, 0
        while first < self.rows:
            last = max(first + 1, int(after.searchsorted(base + COPIED // bytes_each, "right")))
            found.append((first, last, base, int(after[last - 1]) - base))
            first, base = last, int(after[last - 1])
        return found


def _of_weights(
    plan: _Plan, kept: _Kept, given: tuple[Tensor, int, int], entries: _Entries, upper: bool
) -> list[Tensor]:
    """Gradients of a layer's weights and biases: one product over all steps that were read."""
    shape, (gates, hidden, _), (below, *below_at) = plan.shape, kept, given
    inputs = below.shape[2]
    width = kernels.width(shape, inputs)
    parts = entries.parts((4 * shape.units + width) * gates.itemsize)
    largest = max(part[3] for part in parts)
    left, right = gates.new_empty(largest, 4 * shape.units), gates.new_empty(largest, width)
    total = None
    for first, last, base, number in parts:
        kernels.gather(shape, inputs, below.dtype, entries.fill)(
            (last - first, -(-entries.steps // kernels.GATHERED), 1), below, hidden, gates, left, right,
            entries.answered, entries.offsets, first, *below_at, gates.shape[1], entries.steps, base,
        )  # fmt: skip
        more = _transposed_product(shape, left[:number], right[:number])
        total = more if total is None else total.add_(more)
    lines, columns = shape.gates * shape.true_units, shape.true_units if upper else inputs
    found = [gates.new_empty(size, dtype=torch.float32) for size in ((lines, columns), (lines, shape.true_units))]
    found += [gates.new_empty(lines, dtype=torch.float32) for _ in range(2)]
    kernels.hand_out(shape, inputs, upper)((-(-lines // kernels.LINES), 1, 1), total, *found)
    return found


def _transposed_product(shape: Shape, left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ · right, in float32."""
    if shape.type == torch.bfloat16 and left.is_cuda:
        return torch.mm(left.t(), right, out_dtype=torch.float32)
    with _products_in(shape.precision), torch.autocast(left.device.type, enabled=False):
        return left.float().t() @ right.float()


@contextmanager
def _products_in(precision: str) -> Iterator[None]:
    """PyTorch's own products of float32 in tf32, or not: by the name of the setting that the program uses."""
    matmul: Any = torch.backends.cuda.matmul
    try:
        name, wanted, before = "allow_tf32", precision == "tf32", matmul.allow_tf32
    except RuntimeError:  # it uses the new one, and PyTorch forbids to mix them
        name, wanted, before = "fp32_precision", precision, matmul.fp32_precision
    setattr(matmul, name, wanted)
    try:
        yield
    finally:
        setattr(matmul, name, before)


def tf32_allowed() -> bool:
    """Whether PyTorch's recurrent layers may run in tf32."""
    cudnn: Any = torch.backends.cudnn
    try:
        return cudnn.allow_tf32
    except RuntimeError:  # set by its new name, and for convolutions otherwise
        return cudnn.rnn.fp32_precision == "tf32"
