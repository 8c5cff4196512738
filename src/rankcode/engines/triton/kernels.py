"""The kernels of a network: what they are compiled for, and how much work one program of each does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.runtime import driver

from rankcode.engines.triton import large_recurrence, matmul, readout, recurrence, weights

TILE_ROWS = 16  # rows that are arranged side by side, and that one program takes through the steps at most
MIN_DOT_ROWS = 8  # of a matrix multiplication: with fewer rows it takes as long
RULE_STEPS = 8  # steps after which a program evaluates the rule
MATMUL_STEPS, MATMUL_COLUMNS = 128 // TILE_ROWS, 256  # of the result that one program computes
WEIGHT_LINES = 2  # lines of a weight that one program converts, or whose gradient it sums
GATHER_STEPS = 16  # steps of a row that one program gathers
STORED_STEPS = 8  # steps of a row whose inputs one program stores
GATE_ROWS = 4  # rows whose gates one program takes through a step of the backward pass
READOUT_ENTRIES = 32  # whose outputs, and gradients of the readout, one program computes at once
ARRANGE_POSITIONS = 256  # positions of rows in tiles that one program computes


class Kernel:
    """A Triton kernel with its constants, compiled at the first call. Later calls launch the compiled kernel directly:
    Triton inspects every argument first, which takes longer than many of our kernels run. So all tensors must lie at
    multiples of 16 bytes, and have the types that they had at the first call."""

    def __init__(self, function: Any, *, num_warps: int = 4, num_stages: int = 3, **constants: Any):
        self.function, self.constants = function, constants
        self.settings = {"num_warps": num_warps, "num_stages": num_stages}
        self.tail = [constants[name] for name in function.arg_names if name in constants]
        self.compiled: Any = None

    def __call__(self, grid: tuple[int, int, int], *arguments: Any) -> None:
        if self.compiled is None:  # always, in Triton's interpreter
            self.compiled = self.function[grid](*arguments, **self.constants, **self.settings)
        else:
            self._direct(grid)(*(part if isinstance(part, int) else part.data_ptr() for part in arguments))

    def launches(self, grid: tuple[int, int, int], *tensors: Tensor) -> Callable[..., None]:
        """A function that launches the kernel with these tensors, followed by the numbers that it is called with."""
        if self.compiled is None:
            return partial(self, grid, *tensors)
        return partial(self._direct(grid), *(part.data_ptr() for part in tensors))

    def _direct(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        """As Triton launches it, but without hooks for profilers, and with addresses, which Triton need not look up."""
        gpu: Any = driver.active
        stream = gpu.get_current_stream(gpu.get_current_device())
        run, of_kernel = self.compiled.run, (self.compiled.function, self.compiled.packed_metadata, None, None, None)
        return lambda *arguments: run(*grid, stream, *of_kernel, *arguments, *self.tail)


def as_argument(part: Tensor) -> Tensor:
    """Contiguous and at a multiple of 16 bytes."""
    if part.is_contiguous() and part.data_ptr() % 16 == 0:
        return part
    return part.detach().clone(memory_format=torch.contiguous_format)


class Shape(NamedTuple):
    """What the kernels of a network are compiled for."""

    type: torch.dtype  # of saved activations and matrix multiplications
    recurrent_type: torch.dtype  # of the weights of the hidden state
    precision: str  # of matrix multiplications of float32: tf32, or ieee
    gru: bool
    true_units: int
    units: int  # rounded up to a size that dot products support
    rule: bool  # whether a rule is evaluated
    inner: int  # width of the readout's hidden layer, 0 without one
    classes: int
    sigmoid: bool
    activation: str  # of the readout's hidden layer
    device: torch.device

    @property
    def gates(self) -> int:
        return 3 if self.gru else 4

    @property
    def resident(self) -> bool:
        """Whether the recurrent weights stay on the chip."""
        return self.recurrent_type.itemsize == 2 and self.units <= 128

    @property
    def parts(self) -> int:
        """How many numbers a packed number consists of: see `matmul`."""
        return 2 if self.type == torch.float32 and self.precision == "tf32" else 1

    @property
    def stores_inputs(self) -> bool:
        """Whether the inputs are stored beside the hidden state, in the type of matrix multiplications."""
        return self.type != torch.float32

    @property
    def scaled(self) -> bool:
        """Whether gradients are scaled, because the recurrent weights are of a type with a small range."""
        return self.recurrent_type == torch.float16

    @property
    def packed_type(self) -> torch.dtype:
        return torch.float32 if self.precision == "ieee" else torch.bfloat16

    @property
    def fast(self) -> bool:
        """Whether tanh may have an error as large as that of tf32, as the GPU's own instruction has."""
        return self.precision == "tf32" and self.device.type == "cuda"


kept = lru_cache(maxsize=256)  # kernels, which are compiled once for each shape


def rows_of_program(device: torch.device, rows: int, is_sorted: bool) -> int:
    """How many rows one program takes through the steps. A step of fewer rows takes less time, so they are as few as
    leave a processor for each program, or half a processor if rows are sorted, so that many programs end early."""
    programs = {each: -(-rows // each) for each in (2, 4, 8)}
    fitting = (each for each, number in programs.items() if number <= _processors(device))
    return next(fitting, 8 if is_sorted and programs[8] <= 2 * _processors(device) else TILE_ROWS)


def rounded(units: int) -> int:
    return max(16, _power(units)) if units <= 128 else -(-units // 64) * 64


def rounded_width(columns: int) -> int:
    """Rounded up to a width that is fast to multiply."""
    return -(-columns // 8) * 8


def width(shape: Shape, inputs: int) -> int:
    """Of what the weights are multiplied with: the hidden state, the inputs and a 1."""
    return rounded_width(shape.units + inputs + 1)


def state_width(shape: Shape, inputs: int) -> int:
    """Of the lines in which hidden states are stored."""
    return width(shape, inputs) if shape.stores_inputs else shape.units


@kept
def arrange(device: torch.device, expected: torch.dtype) -> Kernel:
    return Kernel(matmul.arrange, POSITIONS=ARRANGE_POSITIONS, TILE=TILE_ROWS, ROUNDED=MATMUL_STEPS)


@kept
def convert(shape: Shape, true_inputs: int, inputs: int) -> Kernel:
    to_tf32 = shape.type == torch.float32 and shape.precision == "tf32"
    return Kernel(weights.convert, ROUND=to_tf32, **_layer(shape, true_inputs, inputs))


@kept
def sum_shares(shape: Shape, true_inputs: int, inputs: int) -> Kernel:
    shares = packed_matmul(shape, inputs).grid[2]
    return Kernel(weights.sum_shares, WIDTH=width(shape, inputs), SHARES=shares, **_layer(shape, true_inputs, inputs))


@kept
def store_inputs(shape: Shape, true_inputs: int, inputs: int, given_width: int) -> Kernel:
    return Kernel(
        matmul.store_inputs, TRUE_INPUTS=true_inputs, GIVEN_WIDTH=given_width, INPUTS=inputs, UNITS=shape.units,
        WIDTH=width(shape, inputs), TILE=TILE_ROWS, STEPS=STORED_STEPS, COLUMNS=512,
    )  # fmt: skip


@kept
def input_projection(shape: Shape, inputs: int) -> Kernel:
    column, given_width = (shape.units, width(shape, inputs)) if shape.stores_inputs else (0, inputs)
    return Kernel(
        matmul.matmul, DEPTH=inputs, WIDTH=shape.gates * shape.units, GIVEN_COLUMN=column, GIVEN_WIDTH=given_width,
        WEIGHT_WIDTH=inputs, RESULT_WIDTH=4 * shape.units, TRANSPOSED=True, BIAS=True, PARTS=0, **_matmul(shape),
    )  # fmt: skip


@kept
def input_gradient(shape: Shape, columns: int, inputs: int) -> Kernel:
    return Kernel(
        matmul.matmul, DEPTH=shape.gates * shape.units, WIDTH=columns, GIVEN_COLUMN=0, GIVEN_WIDTH=4 * shape.units,
        WEIGHT_WIDTH=inputs, RESULT_WIDTH=columns, TRANSPOSED=False, BIAS=False, PARTS=shape.parts, **_matmul(shape),
    )  # fmt: skip


@kept
def forward(shape: Shape, inputs: int, save: bool, top: bool, rows: int) -> Kernel:
    many = shape.type == torch.float32 and rows >= MIN_DOT_ROWS  # numbers to load in every step
    return Kernel(
        recurrence.forward, GROUP=TILE_ROWS, SAVE=save, TOP=top, RULE=shape.rule and top, **_rows(rows), **_rule(shape),
        **_cell(shape), WIDTH=state_width(shape, inputs), num_warps=16 if many else 8, num_stages=2,
    )  # fmt: skip


@kept
def backward(shape: Shape, at_end: bool, rows: int) -> Kernel:
    return Kernel(
        recurrence.backward, **_rows(rows), **_gradients(shape, at_end), **_cell(shape), num_warps=8, num_stages=2
    )  # fmt: skip


class StepKernel(NamedTuple):
    launch: Kernel
    grid: tuple[int, int, int]


class Part(NamedTuple):
    """The part of a step that one program computes, if there are at most `waves` programs for each processor."""

    rows: int
    columns: int
    chunk: int  # of the depth of a matrix multiplication
    warps: int
    stages: int
    waves: int = 1

    def programs(self, shape: Shape, rows: int) -> int:
        return -(-rows // self.rows) * -(-shape.units // self.columns)


FORWARD_PARTS = Part(64, 16, 64, 4, 3, waves=2), Part(64, 32, 64, 4, 3, waves=6), Part(128, 64, 64, 8, 3)
BACKWARD_PARTS = (
    Part(64, 16, 128, 4, 4), Part(64, 32, 256, 4, 3), Part(64, 64, 128, 4, 4), Part(128, 64, 128, 4, 4),
    Part(128, 128, 64, 4, 4),
)  # fmt: skip


@kept
def forward_step(shape: Shape, inputs: int, save: bool, rows: int) -> StepKernel:
    constants = {"WIDTH": state_width(shape, inputs), "SAVE": save} | _cell(shape)
    return _step_kernel(large_recurrence.forward_step, shape, rows, FORWARD_PARTS, **constants)


@kept
def answer(shape: Shape, inputs: int) -> Kernel:
    return Kernel(
        large_recurrence.answer, UNITS=shape.units, WIDTH=state_width(shape, inputs), RULE=shape.rule,
        PRECISION=shape.precision, TILE=TILE_ROWS, CHUNK=math.gcd(64, shape.units), STORED=math.gcd(256, shape.units),
        **_rule(shape),
    )  # fmt: skip


@kept
def gates_backward(shape: Shape, at_end: bool) -> Kernel:
    return Kernel(
        large_recurrence.gates_backward, UNITS=shape.units, GRU=shape.gru, FAST=shape.fast,
        PADDED_UNITS=_power(shape.units), TILE=GATE_ROWS, **_gradients(shape, at_end), num_warps=8,
    )  # fmt: skip


@kept
def hidden_backward(shape: Shape, rows: int) -> StepKernel:
    return _step_kernel(
        large_recurrence.hidden_backward, shape, rows, BACKWARD_PARTS, UNITS=shape.units, GATES=shape.gates,
        SCALED=shape.scaled, PRECISION=shape.precision,
    )  # fmt: skip


@kept
def gather(shape: Shape, inputs: int) -> Kernel:
    return Kernel(
        matmul.gather, GIVEN_WIDTH=inputs, UNITS=shape.units, WIDTH=width(shape, inputs), PARTS=shape.parts,
        STEPS=GATHER_STEPS, COLUMNS=256, num_warps=8,
    )  # fmt: skip


class Readout(NamedTuple):
    """What the kernels of a readout are compiled for."""

    units: int
    inner: int  # width of the hidden layer, 0 without one
    classes: int
    activation: str  # of the hidden layer


@kept
def readout_forward(sizes: Readout, device: torch.device) -> Kernel:
    return Kernel(readout.readout_forward, **_readout(sizes))


@kept
def readout_backward(sizes: Readout, device: torch.device) -> Kernel:
    return Kernel(readout.readout_backward, **_readout(sizes))


def readout_programs(device: torch.device, entries: int) -> int:
    """Of the backward pass."""
    return max(1, min(-(-entries // READOUT_ENTRIES), _processors(device)))


def matmul_grid(device: torch.device, columns: int, steps: int, tiles: int) -> tuple[int, int, int]:
    parts = -(-columns // MATMUL_COLUMNS)
    return parts, _programs(device, -(-steps // MATMUL_STEPS), parts * tiles, waves=8), tiles


def copy_grid(device: torch.device, rows: int, steps: int, steps_of_program: int) -> tuple[int, int, int]:
    return rows, _programs(device, -(-steps // steps_of_program), rows, waves=64), 1


def _programs(device: torch.device, chunks: int, others: int, waves: int) -> int:
    """How many programs take turns with so many chunks of steps, if there are so many other parts of the work. Programs
    that find no steps to read take time too, so they are fewer where the others keep all processors busy."""
    return max(1, min(chunks, waves * _processors(device) // others))


class PackedMatmul(NamedTuple):
    launch: Kernel
    grid: tuple[int, int, int]


@kept
def packed_matmul(shape: Shape, inputs: int) -> PackedMatmul:
    """Sizes tuned on an H200."""
    exact = shape.packed_type == torch.float32
    lines, columns = (min(64, 4 * shape.units), 64) if exact else (min(256, 4 * shape.units), 128)
    grid = 4 * shape.units // lines, -(-width(shape, inputs) // columns)
    tiles, processors = grid[0] * grid[1], _processors(shape.device)
    shares = processors // tiles
    if shares < 2:  # then the number for which the last processor is done first
        shares = min(range(1, 4), key=lambda number: -(-tiles * number // processors) / number)
    kernel = Kernel(
        matmul.packed_matmul, LEFT=4 * shape.units, RIGHT=width(shape, inputs), PACKED=not shape.stores_inputs,
        PARTS=shape.parts, PRECISION=shape.precision, SHARES=shares, LINES=lines, COLUMNS=columns, CHUNK=32,
        num_warps=8 if lines > 128 else 4, num_stages=8 if shape.stores_inputs else 2 if exact else 4,
    )  # fmt: skip
    return PackedMatmul(kernel, (*grid, shares))


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def _layer(shape: Shape, true_inputs: int, inputs: int) -> dict[str, int]:
    return {
        "GATES": shape.gates, "TRUE_UNITS": shape.true_units, "UNITS": shape.units, "TRUE_INPUTS": true_inputs,
        "INPUTS": inputs, "LINES": WEIGHT_LINES, "COLUMNS": 128,
    }  # fmt: skip


def _matmul(shape: Shape) -> dict[str, Any]:
    return {
        "PRECISION": shape.precision, "TILE": TILE_ROWS, "STEPS": MATMUL_STEPS, "COLUMNS": MATMUL_COLUMNS,
        "CHUNK": 128 // shape.type.itemsize, "num_warps": 8, "num_stages": 3,
    }  # fmt: skip


def _cell(shape: Shape) -> dict[str, Any]:
    return {"UNITS": shape.units, "GRU": shape.gru, "PRECISION": shape.precision, "FAST": shape.fast}


def _rows(rows: int) -> dict[str, int]:
    return {"TILE": max(MIN_DOT_ROWS, rows), "ROWS": rows}


def _rule(shape: Shape) -> dict[str, Any]:
    return {
        "TRUE_UNITS": shape.true_units, "INNER": shape.inner, "CLASSES": shape.classes, "SIGMOID": shape.sigmoid,
        "ACTIVATION": shape.activation, "PADDED_INNER": max(16, _power(shape.inner)),
        "PADDED_CLASSES": max(16, _power(shape.classes)), "STEPS": RULE_STEPS,
    }  # fmt: skip


def _readout(sizes: Readout) -> dict[str, Any]:
    return {
        "UNITS": sizes.units, "INNER": sizes.inner, "CLASSES": sizes.classes, "ACTIVATION": sizes.activation,
        "ROWS": READOUT_ENTRIES, "CHUNK": 64, "PADDED_INNER": max(16, _power(sizes.inner)),
        "PADDED_CLASSES": max(16, _power(sizes.classes)),
    }  # fmt: skip


def _gradients(shape: Shape, at_end: bool) -> dict[str, Any]:
    return {"AT_END": at_end, "SCALED": shape.scaled, "PARTS": shape.parts}


def _step_kernel(function: Any, shape: Shape, rows: int, choices: Sequence[Part], **constants: Any) -> StepKernel:
    """A kernel for one step of so many rows, with the first of these parts of which few enough are needed, or else the
    last."""
    fitting = (each for each in choices if each.programs(shape, rows) <= each.waves * _processors(shape.device))
    part = next(fitting, choices[-1])
    stages = part.stages if shape.recurrent_type.itemsize == 2 else 2
    columns, chunk = math.gcd(part.columns, shape.units), math.gcd(part.chunk, shape.units)
    kernel = Kernel(
        function, TILE=part.rows, COLUMNS=columns, CHUNK=chunk, **constants, num_warps=part.warps, num_stages=stages
    )
    return StepKernel(kernel, (shape.units // columns, -(-rows // part.rows), 1))


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << max(0, number - 1).bit_length()
