"""Many shapes on a CPU, from tiny to large: `auto` compared with conventional training and with the fastest engine."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

from rankcode.bench.cases import CONVENTIONAL, Mode, Shape, runnable
from rankcode.bench.steps import Measured, measure
from rankcode.engines import choose
from rankcode.progress import Progress
from rankcode.rules import Threshold

ENGINES = ("compiled", "cpu", "whole")
SPIKES = ("all at T", "uniform, shuffled", "all at T/4")
MAX_MULTIPLICATIONS = 3e9  # of a batch, forward: a larger one takes more than a second
NEAR = 1.1  # times the fastest engine


class GridRow(NamedTuple):
    """One shape, in training or inference."""

    shape: Shape
    mode: Mode
    milliseconds: float  # of conventional training or inference
    chosen: str  # the engine that `auto` takes
    ratios: dict[str, tuple[float, ...]]  # of each engine to it, one for each of SPIKES

    @property
    def goals(self) -> tuple[float, ...]:
        """The ratios to be reached, one for each of SPIKES."""
        if self.mode == "inference":
            return 1.15, 0.75, 0.4
        return (1.0, 0.6, 0.3) if self.shape.batch_size >= 64 else (1.1, 0.7, 0.4)

    @property
    def auto(self) -> tuple[float, ...]:
        return self.ratios[self.chosen]

    @property
    def auto_to_fastest(self) -> tuple[float, ...]:
        return tuple(auto / min(all_) for auto, *all_ in zip(self.auto, *self.ratios.values(), strict=True))


def grid_shapes(count: int = 64, num_layers: int = 1) -> list[Shape]:
    """The speech network with two batch sizes, the shapes that small networks were first measured with, and a random
    choice, always the same, of all sizes. Their readout is one linear layer, except that of the speech network."""
    sizes = [(128, 81, 420, 128), (512, 81, 420, 128), (32, 100, 3, 64), (128, 100, 3, 64), (128, 40, 1, 125)]
    draw = random.Random(0)
    while len(sizes) < count / 2:
        steps, inputs = draw.choice((20, 40, 100, 300, 1000, 2000)), draw.choice((1, 3, 8, 32, 128, 420, 512))
        rows, units = draw.choice((1, 4, 16, 32, 64, 128, 256, 512)), draw.choice((8, 16, 32, 64, 128, 256))
        if rows * steps * 4 * units * (inputs + units) < MAX_MULTIPLICATIONS:
            sizes.append((rows, steps, inputs, units))
    of_speech = Shape().input_size, Shape().hidden_size
    return [
        Shape(*size, Shape().readout_layer_size if size[2:] == of_speech else 0, cell=cell, num_layers=num_layers)
        for size in sizes
        for cell in ("lstm", "gru")
    ][:count]


def measure_grid(shapes: Sequence[Shape], repeats: int, progress: bool = True) -> Iterator[GridRow]:
    with Progress(len(shapes), progress) as bar:
        for done, shape in enumerate(shapes):
            if bar.due(done):
                bar.show(done, f"{shape.cell} of {shape.hidden_size}, {shape.batch_size} rows of {shape.steps} steps")
            engines = tuple(engine for engine in ENGINES if engine in runnable(shape, "cpu"))
            found = measure(shape, engines, "cpu", repeats, progress=False, ways=SPIKES, memory=False)
            for mode in ("training", "inference"):
                yield _row(shape, mode, [each for each in found if each.mode == mode])


def _row(shape: Shape, mode: Mode, found: list[Measured]) -> GridRow:
    ratio = {(each.engine, each.spikes): each.ratio for each in found}
    conventional = min(each.milliseconds for each in found if each.engine == CONVENTIONAL)
    inputs = torch.empty(shape.batch_size, shape.steps, shape.input_size)
    with torch.set_grad_enabled(mode == "training"):
        chosen = choose(shape.network(), inputs, Threshold()).name
    engines = dict.fromkeys(engine for engine, _ in ratio if engine != CONVENTIONAL)
    ratios = {engine: tuple(ratio[engine, spikes] for spikes in SPIKES) for engine in engines}
    return GridRow(shape, mode, conventional, chosen, ratios)


def grid_table(found: Iterable[GridRow]) -> str:
    """A line for each shape and mode, and how often the goals were reached and `auto` was near the fastest engine."""
    head = f"{'cell':<5} {'layers':>6} {'units':>5} {'inputs':>6} {'steps':>5} {'rows':>5} {'mode':<10}"
    lines = [
        "auto ÷ conventional, and ÷ the fastest engine, where rows answer " + " / ".join(SPIKES),
        f"{head} {'ms':>9}  {'auto':<18} ÷ fastest",
    ]
    reached, near = [], []
    for row in found:
        shape = row.shape
        ratios, to_fastest = (" / ".join(f"{each:.2f}" for each in part) for part in (row.auto, row.auto_to_fastest))
        reached += [ratio <= goal for ratio, goal in zip(row.auto, row.goals, strict=True)]
        near += [each <= NEAR for each in row.auto_to_fastest]
        lines.append(
            f"{shape.cell:<5} {shape.num_layers:>6} {shape.hidden_size:>5} {shape.input_size:>6} {shape.steps:>5} "
            f"{shape.batch_size:>5} {row.mode:<10} {row.milliseconds:9.2f}  {ratios:<18} {to_fastest}"
        )
    share = [100 * sum(part) / len(part) for part in (reached, near)]
    lines.append(f"goals reached: {share[0]:.0f} %; auto within {NEAR:g} × the fastest engine: {share[1]:.0f} %")
    return "\n".join(lines)
