"""`rankcode bench`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rankcode.bench.measure import Measured, Shape, bench_table, machine, measure, measure_stream, runnable
from rankcode.engines.check import check_engines
from rankcode.saving.files import write_whole
from rankcode.training.distributed import own_device


@dataclass(frozen=True)
class Bench:
    """How long a step takes with each engine, against conventional training in the same run.

    Spikes are planted: all at the last step, evenly over the steps in order and shuffled, all at a quarter.
    """

    batch_sizes: tuple[int, ...] = (128, 512)
    """Rows in a batch."""
    steps: int = 81
    """Steps in a row."""
    input_size: int = 420
    """Values in a step."""
    hidden_size: int = 128
    """Units of the cell."""
    cell: Literal["lstm", "gru"] = "lstm"
    """Recurrent cell."""
    engines: tuple[str, ...] = ()
    """Which engines. Default: all but reference that can run here."""
    repeats: int = 15
    """How often each case is run."""
    output: str = "bench"
    """Files to write: OUTPUT.json and OUTPUT.png."""
    device: str = "auto"
    """cpu, cuda, cuda:N; auto takes a GPU where there is one."""
    check: bool = False
    """Measure nothing; see that every engine gives what the reference gives, on this device."""

    def run(self) -> None:
        if min((*self.batch_sizes, self.steps, self.input_size, self.hidden_size, self.repeats), default=0) < 1:
            raise ValueError("batch sizes, steps, input size, hidden size and repeats must be at least 1")
        device = str(own_device(self.device))
        if self.check:
            return _check(device)
        shapes = [
            Shape(size, self.steps, self.input_size, self.hidden_size, cell=self.cell) for size in self.batch_sizes
        ]
        from rankcode.bench.plot import plot_bench

        engines = self.engines or tuple(runnable(shapes[0], device))
        found: list[Measured] = []
        for shape in shapes:
            found += measure(shape, engines, device, self.repeats)
        if device == "cpu":
            found.append(measure_stream(shapes[0], self.repeats))
        print(bench_table(found))
        settings = {
            "steps": self.steps,
            "input_size": self.input_size,
            "hidden_size": self.hidden_size,
            "cell": self.cell,
        }
        content = {"machine": machine(device), **settings, "measured": [each.as_dict() for each in found]}
        write_whole(Path(f"{self.output}.json"), json.dumps(content, indent=2).encode() + b"\n")
        plot_bench(found).savefig(f"{self.output}.png", dpi=150)
        print(f"wrote {self.output}.json and {self.output}.png")
        return None


def _check(device: str) -> None:
    wrong = 0
    for each in check_engines(device):
        said = each.wrong or "ok"
        near = f", {each.differing} rows within rounding of θ" if each.differing else ""
        print(
            f"{each.engine:<9} {each.precision:<9} {each.case:<44} logits {each.values:.1e}  gradients "
            f"{each.gradients:.1e}  {said}{near}"
        )
        wrong += bool(each.wrong)
    if wrong:
        raise ValueError(f"{wrong} cases differ from the reference: see above")
    print("every engine gives what the reference gives")
