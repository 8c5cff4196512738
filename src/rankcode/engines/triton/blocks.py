"""Blocks of steps, one after the other, and the way back: what is launched, and on which memory."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from triton import knobs

from rankcode.cells import GRU, LSTM
from rankcode.engines.run import Keep
from rankcode.engines.triton import products, recurrence, weights
from rankcode.engines.triton.kernel import Kernel
from rankcode.network import Network
from rankcode.rules import FireAt, Never, Rule

BLOCK = 32  # steps; tiles that have ended cost nothing from the next block on
FEW = 2**16  # steps of all rows together; up to there all are one block: launches cost more than they save
STEPS = 8  # steps after which a tile looks whether its rows have fired
TILE = 16  # rows
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
    parameters = list(network.cell.parameters())
    if torch.is_grad_enabled() and any(part.requires_grad for part in (inputs, *parameters)):
        return Found(*_Fused.apply(inputs, network, lengths, rule, keep, expected_steps, *parameters))  # type: ignore
    inputs = _aligned(inputs)
    return _forward(_Plan(network, inputs, rule), inputs, lengths, rule, keep, expected_steps, save=False)[0]


def readout_of(network: Network) -> tuple[nn.Linear | None, str, nn.Linear] | None:
    """The readout as a hidden layer, its activation and the output layer; None where it is of another kind."""
    parts = list(network.readout) if isinstance(network.readout, nn.Sequential) else [network.readout]
    if any(type(part) is nn.Linear and part.bias is None for part in parts):
        return None
    match parts:
        case [nn.Linear() as last]:
            return None, "", last
        case [nn.Linear() as inner, squash, nn.Linear() as last] if type(squash) in SQUASHES:
            return inner, SQUASHES[type(squash)], last
    return None


class _Shape(NamedTuple):
    """What kernels are compiled for."""

    type: torch.dtype  # of what is kept and of products
    recurrent_type: torch.dtype  # of the weights of the hidden state
    precision: str
    gru: bool
    inputs: int
    true_units: int
    units: int  # rounded up to what products need
    rule: bool
    inner: int  # width of the readout's hidden layer, 0 without one
    classes: int
    sigmoid: bool
    squash: str
    device: torch.device

    @property
    def gates(self) -> int:
        return 3 if self.gru else 4


class _Kernels:
    """The kernels of a network, and how large a part of the work a program of each takes."""

    def __init__(self, shape: _Shape):
        self.shape, self.columns, self.steps = shape, 256, 128 // TILE
        chunk = 64 if shape.type == torch.bfloat16 else 32
        self.product_sizes = {
            "PRECISION": shape.precision, "TILE": TILE, "STEPS": self.steps, "COLUMNS": self.columns,
            "CHUNK": chunk, "num_warps": 8, "num_stages": 3,
        }  # fmt: skip
        # Whether the weights of the hidden state serve the backward pass as they are.
        self.one_type = shape.recurrent_type == shape.type or self._recurrent(shape.recurrent_type)["RESIDENT"]
        self.known: dict[tuple[Any, ...], Kernel] = {}

    def _recurrent(self, type: torch.dtype) -> dict[str, Any]:
        """Whether the weights stay on the chip, and what is multiplied at once."""
        units = self.shape.units
        common = {"UNITS": units, "GRU": self.shape.gru, "PRECISION": self.shape.precision, "TILE": TILE}
        if type.itemsize == 2 and units <= 128:
            return common | {"RESIDENT": True, "COLUMNS": units, "CHUNK": units, "num_warps": 8, "num_stages": 2}
        columns = min(units, 128) if units % 128 == 0 or units < 128 else 64
        sizes = {"CHUNK": min(units, 128 // type.itemsize), "num_warps": 4}
        return common | {"RESIDENT": False, "COLUMNS": columns, "num_stages": 3, **sizes}

    def input_product(self, depth: int) -> Kernel:
        if (kernel := self.known.get(("in", depth))) is None:
            shape = self.shape
            kernel = self.known["in", depth] = Kernel(
                products.product, DEPTH=depth, WIDTH=shape.gates * shape.units, GIVEN_WIDTH=depth,
                RESULT_WIDTH=4 * shape.units, TRANSPOSED=True, BIAS=True, **self.product_sizes,
            )  # fmt: skip
        return kernel

    def product_back(self, width: int) -> Kernel:
        if (kernel := self.known.get(("back", width))) is None:
            shape = self.shape
            kernel = self.known["back", width] = Kernel(
                products.product, DEPTH=shape.gates * shape.units, WIDTH=width, GIVEN_WIDTH=4 * shape.units,
                RESULT_WIDTH=width, TRANSPOSED=False, BIAS=False, **self.product_sizes,
            )  # fmt: skip
        return kernel

    def forward(self, save: bool, top: bool) -> Kernel:
        if (kernel := self.known.get(("forward", save, top))) is None:
            shape = self.shape
            kernel = self.known["forward", save, top] = Kernel(
                recurrence.forward, TRUE_UNITS=shape.true_units, SAVE=save, TOP=top, RULE=shape.rule and top,
                INNER=shape.inner, CLASSES=shape.classes, SIGMOID=shape.sigmoid, SQUASH=shape.squash,
                WIDE=max(16, triton.next_power_of_2(shape.inner)), MANY=max(16, triton.next_power_of_2(shape.classes)),
                STEPS=STEPS, **self._recurrent(shape.recurrent_type),
            )  # fmt: skip
        return kernel

    def backward(self, at_end: bool) -> Kernel:
        if (kernel := self.known.get(("backward", at_end))) is None:
            type = self.shape.recurrent_type if self.one_type else self.shape.type
            kernel = self.known["backward", at_end] = Kernel(
                recurrence.backward, AT_END=at_end, SCALED=type == torch.float16, **self._recurrent(type)
            )
        return kernel

    def gather(self, given_width: int, fill: bool) -> Kernel:
        if (kernel := self.known.get(("gather", given_width, fill))) is None:
            kernel = self.known["gather", given_width, fill] = Kernel(
                products.gather, GIVEN_WIDTH=given_width, UNITS=self.shape.units, WIDTH=self.width(given_width),
                FILL=fill, STEPS=16, COLUMNS=128,
            )  # fmt: skip
        return kernel

    def width(self, inputs: int) -> int:
        """Of what `gather` puts side by side, rounded up to what products are fast with."""
        return -(-(self.shape.units + inputs + 1) // 8) * 8

    def _layer(self, inputs: int, upper: bool) -> dict[str, int]:
        shape = self.shape
        return {
            "GATES": shape.gates, "TRUE_UNITS": shape.true_units, "UNITS": shape.units, "LINES": 8, "COLUMNS": 128,
            "TRUE_INPUTS": shape.true_units if upper else inputs, "INPUTS": inputs,
        }  # fmt: skip

    def convert(self, inputs: int, upper: bool) -> Kernel:
        if (kernel := self.known.get(("convert", upper))) is None:
            round = self.shape.type == torch.float32 and self.shape.precision == "tf32"
            kernel = self.known["convert", upper] = Kernel(
                weights.convert, ROUND=round, BOTH=not self.one_type, **self._layer(inputs, upper)
            )
        return kernel

    def hand_out(self, inputs: int, upper: bool) -> Kernel:
        if (kernel := self.known.get(("hand out", upper))) is None:
            kernel = self.known["hand out", upper] = Kernel(
                weights.hand_out, WIDTH=self.width(inputs), **self._layer(inputs, upper)
            )
        return kernel


_kernels = lru_cache(maxsize=256)(_Kernels)
_arrange = lru_cache(maxsize=8)(lambda device: Kernel(products.arrange, MANY=256))


@lru_cache(maxsize=64)
def _table(rule: Any, steps: int, classes: int, device: torch.device) -> Tensor:
    """Thresholds by step and class, on the device."""
    return rule.table(steps, classes).to(device, torch.float32)


@lru_cache(maxsize=64)
def _count(number: int, factor: int, device: torch.device) -> Tensor:
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
        tf32 = half or torch.backends.cudnn.allow_tf32
        fused = not isinstance(rule, Never | FireAt)
        inner, squash, last = (readout_of(network) if fused else None) or (None, "", None)
        self.shape = shape = _Shape(
            type=torch.bfloat16 if half else torch.float32,
            # float16 has as many digits as tf32, and weights of half the size
            recurrent_type=torch.bfloat16 if half else torch.float16 if tf32 else torch.float32,
            precision="tf32" if tf32 else "ieee",
            gru=isinstance(cell, GRU),
            inputs=cell.inputs,
            true_units=cell.units,
            units=_rounded(cell.units),
            rule=fused,
            inner=inner.out_features if inner else 0,
            classes=network.classes if fused else 1,
            sigmoid=fused and network.activation == "sigmoid",
            squash=squash,
            device=inputs.device,
        )
        self.kernels = _kernels(shape)
        self.layers = [self._layer(cell, number) for number in range(cell.layers)]
        self.rule = (inputs,) * 5  # any pointer: without a rule nobody looks
        if last is not None:
            weights = (_aligned(part) for layer in (inner or last, last) for part in (layer.weight, layer.bias))
            self.rule = (_table(rule, inputs.shape[1], network.classes, inputs.device), *weights)

    def _layer(self, cell: LSTM | GRU, number: int) -> _Layer:
        shape = self.shape
        lines, inputs = shape.gates * shape.units, shape.units if number else shape.inputs

        def new(type: torch.dtype, *size: int) -> Tensor:
            return torch.empty(size, dtype=type, device=shape.device)

        hidden = new(shape.recurrent_type, lines, shape.units)
        back = hidden if self.kernels.one_type else new(shape.type, lines, shape.units)
        layer = _Layer(
            new(shape.type, lines, inputs), hidden, back, new(torch.float32, lines), new(torch.float32, shape.units)
        )
        own = map(_aligned, cell.weights(number))
        self.kernels.convert(inputs, number > 0)((-(-lines // 8), 1, 1), *own, *layer)
        return layer


def _rounded(units: int) -> int:
    return max(16, 1 << (units - 1).bit_length()) if units <= 128 else -(-units // 64) * 64


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
    grid = (-(-len(order) // 256), 1, 1)
    _arrange(device)(grid, lengths, planted, order, ends, fired, rows, len(order), int(planted is not lengths))
    return _Tiles(order, ends, torch.empty_like(lengths), fired), number


def _forward(
    plan: _Plan, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep, expected_steps: Tensor | None, save: bool
) -> tuple[Found, list[_Kept], _Tiles]:
    (rows, steps), shape, kernels = inputs.shape[:2], plan.shape, plan.kernels
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
    columns = -(-shape.gates * shape.units // kernels.columns)
    for first in range(0, steps, block):
        last, origin = min(first + block, steps), 0 if whole else first
        grid = (columns, -(-(last - first) // kernels.steps), number_of_tiles)
        for number, layer in enumerate(plan.layers):
            given = (kept[number - 1].hidden, slots, 1 - origin) if number else (inputs, steps, 0)
            kernels.input_product(given[0].shape[2])(
                grid, given[0], layer.of_input, layer.bias, kept[number].gates, tiles.order, tiles.ends, first, last,
                *given[1:], slots, -origin,
            )  # fmt: skip
            kernels.forward(save, number == len(plan.layers) - 1)(
                (number_of_tiles, 1, 1), *kept[number], layer.of_hidden, layer.recall_bias, *tiles, features,
                *plan.rule, first, last, origin, slots,
            )  # fmt: skip
    if keep == "answer":
        row = _count(rows, 1, inputs.device)
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
        (rows, steps), count, kernels = inputs.shape[:2], len(plan.layers), plan.kernels
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
            kernels.backward(at_end)(
                (number_of_tiles, 1, 1), gates, kept[number].memory, layer.of_hidden_back, arriving, base,
                into_hidden, into_memory, tiles.order, tiles.ends, slots, int(not at_end),
            )  # fmt: skip
            into = below if number else into_inputs
            if into is not None:
                width = into.shape[2]
                kernels.product_back(width)(
                    (-(-width // kernels.columns), -(-steps // kernels.steps), number_of_tiles),
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
    width = plan.kernels.width(inputs)
    parts = entries.parts((4 * shape.units + width) * gates.itemsize)
    largest = max(part[3] for part in parts)
    left, right = gates.new_empty(largest, 4 * shape.units), gates.new_empty(largest, width)
    total = None
    for first, last, base, number in parts:
        plan.kernels.gather(inputs, entries.fill)(
            (last - first, -(-entries.steps // 16), 1), below, hidden, gates, left, right, entries.answered,
            entries.offsets, first, *below_at, gates.shape[1], entries.steps, base,
        )  # fmt: skip
        more = _transposed_product(shape, left[:number], right[:number])
        total = more if total is None else total.add_(more)
    lines, columns = shape.gates * shape.true_units, shape.true_units if upper else inputs
    found = [gates.new_empty(size, dtype=torch.float32) for size in ((lines, columns), (lines, shape.true_units))]
    found += [gates.new_empty(lines, dtype=torch.float32) for _ in range(2)]
    plan.kernels.hand_out(inputs, upper)((-(-lines // 8), 1, 1), total, *found)
    return found


def _transposed_product(shape: _Shape, left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ · right, in float32."""
    if shape.type == torch.bfloat16 and left.is_cuda:
        return torch.mm(left.t(), right, out_dtype=torch.float32)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = shape.precision == "tf32"
    try:
        return left.float().t() @ right.float()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
