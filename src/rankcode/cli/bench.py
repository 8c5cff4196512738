"""`rankcode bench`."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, asdict, dataclass, fields, replace
from typing import Any, Literal

from rankcode.bench.cases import CellName, Shape, runnable
from rankcode.bench.epochs import epochs_table, epochs_task, measure_epochs, with_sizes_of
from rankcode.bench.grid import GridRow, grid_shapes, grid_table, measure_grid
from rankcode.bench.listening import listening_table, measure_listening
from rankcode.bench.listening_tracks import make_tracks
from rankcode.bench.serving import Served, make_clips, measure_serving, running_server, serving_table
from rankcode.bench.steps import LEGEND, Measured, bench_table, measure, measure_stream
from rankcode.bench.streams import measure_streams, sound_front_end, streams_table
from rankcode.bench.timing import busy_cores, machine
from rankcode.cli.messages import say
from rankcode.cli.options import Device, Flag
from rankcode.cli.output_files import OutputFiles
from rankcode.engines.agreement import check_engines
from rankcode.network import Network
from rankcode.saving.run_folder import load
from rankcode.tasks import SpeechCommands
from rankcode.training.distributed import own_device
from rankcode.training.out_of_memory import memory_for

INSTEAD = ("check", "grid", "lengths", "epochs", "streams", "serving", "listen")  # of a step with each engine
SIZES = ("steps", "input_size", "hidden_size", "num_layers", "cell")
OF_A_SHAPE = {"batch_sizes", *SIZES, "threshold"}
IGNORED = {
    "check": OF_A_SHAPE,
    "grid": OF_A_SHAPE - {"num_layers"},
    "streams": {"num_layers"},
    "serving": {"num_layers"},
    "listen": {"num_layers"},
}


@dataclass(frozen=True)
class Bench:
    """Measure how long training and inference take with each engine, compared with conventional training and inference
    in the same run.

    Rows are made to spike all at the last step, evenly over the steps (in order and shuffled), or all at a quarter of
    the steps.

    For example:

        rankcode bench
        rankcode bench --batch-sizes 64 --steps 200 --engines cpu whole
        rankcode bench --cell gru --num-layers 2
        rankcode bench --cell conv-lstm --batch-sizes 64 --steps 10 --input-size 784 --hidden-size 20
        rankcode bench --grid 64 --device cpu
        rankcode bench --lengths 100 1000 10000 --batch-sizes 16 --input-size 8 --hidden-size 32
        rankcode bench --busy 1 --device cpu
        rankcode bench --epochs 20 --batch-sizes 512
        rankcode bench --streams 100 200 500 --device cpu
        rankcode bench --serving 100 200 500 --model speech-commands
        rankcode bench --listen test --data data/speech-commands
        rankcode bench --check
    """

    _: KW_ONLY
    batch_sizes: tuple[int, ...] = (128, 512)
    """Rows in a batch."""
    steps: int = 81
    """Steps in a row."""
    input_size: int = 420
    """Values in a step."""
    hidden_size: int = 128
    """Units of the cell."""
    num_layers: int = 1
    """Layers of an LSTM or GRU; also for --grid, --lengths and --epochs."""
    cell: CellName = "lstm"
    """Cell to measure. stack is a convolution below two GRU layers; conv-lstm (with --hidden-size maps) and glimpses
    read square images of at most --input-size pixels; lif has two layers of spiking neurons."""
    engines: tuple[str, ...] = ()
    """Engines to measure. Default: all that can run here, except reference."""
    repeats: int = 15
    """How many times each case is run."""
    busy: int = 0
    """Measure while other programs keep this many cores busy."""
    threshold: Flag = False
    """On a GPU, let rows answer at a threshold, as in real use, so that readout and rule are measured too, as always on
    a CPU."""
    grid: int | None = None
    """Measure this many shapes on a CPU instead, with `auto` and every fast engine: first the speech network, then
    small networks, then networks from tiny to large, drawn at random with a fixed seed. An LSTM and a GRU of one size
    are two shapes; all 64 take about five minutes on a quiet machine. What an interrupted grid has measured is written
    to OUTPUT-partial.json."""
    lengths: tuple[int, ...] = ()
    """Measure rows of these lengths instead, with `auto` and the first of the batch sizes: time and memory against the
    steps read. Default: none."""
    epochs: int | None = None
    """Measure whole training runs of this many epochs instead: seconds per epoch, rank-coded and conventional, on
    speech or, with --cell conv-lstm and glimpses, on temporal MNIST. The first epoch of each does not count, so at
    least 2."""
    data: str | None = None
    """Folder with Speech Commands for --epochs and --listen, with MNIST for --epochs with a cell that reads images, or
    with any sound files for --serving. Default: generated sounds or scikit-learn's digits for --epochs, generated
    sounds for --serving, speech-commands in the folder RANKCODE_DATA for --listen."""
    loader_workers: int | None = None
    """With --epochs, also train from a DataLoader of a TensorDataset with the same rows, and from one of a dataset that
    yields them one by one, which has this many workers, and compare an epoch with that from arrays. 0 loads the rows in
    the main process."""
    streams: tuple[int, ...] = ()
    """Measure these numbers of simultaneous live sound streams in real time instead. Default: none."""
    serving: tuple[int, ...] = ()
    """Measure the service of `rankcode serve --api` instead, with these numbers of simultaneous live sound streams;
    server and clients run on this machine. Default: none."""
    per_connection: tuple[int, ...] = (1, 50)
    """Numbers of streams per connection for --serving."""
    seconds: float = 10
    """Seconds to measure each number of --streams and --serving."""
    listen: Literal["validation", "test"] | None = None
    """Measure always-on listening instead: recall and false alarms per hour over thresholds, on long tracks made from
    the recordings of this split."""
    share: float = 1.0
    """Share of the recordings that --listen uses."""
    model: str | None = None
    """Model or run for --streams, --serving and --listen, which must read sound. Default: an untrained cell for
    --streams, speech-commands for the others."""
    output: str = "bench"
    """Files to write: OUTPUT.json and OUTPUT.png. Only files that this command wrote are replaced."""
    device: Device = "auto"
    check: Flag = False
    """Measure nothing; check that every engine agrees with the reference on this device."""

    def run(self) -> None:
        sizes = self.steps, self.input_size, self.hidden_size, self.num_layers
        if min((*self.batch_sizes, *sizes, self.repeats, *self.lengths)) < 1:
            raise ValueError(
                "--batch-sizes, --steps, --lengths, --input-size, --hidden-size, --num-layers and --repeats must be at "
                "least 1"
            )
        if self.num_layers > 1 and self.cell not in ("lstm", "gru"):
            raise ValueError("--num-layers needs --cell lstm or gru")
        for option, least in (("epochs", 2), ("grid", 1)):
            if (value := getattr(self, option)) is not None and value < least:
                raise ValueError(f"--{option} must be at least {least}")
        if min((*self.streams, *self.serving, *self.per_connection), default=1) < 1 or self.seconds < 1:
            raise ValueError("--streams, --serving, --per-connection and --seconds must be at least 1")
        cores = os.cpu_count() or 1
        for option in ("busy", "loader_workers"):
            if not 0 <= (getattr(self, option) or 0) <= cores:
                raise ValueError(f"--{option.replace('_', '-')} must be from 0 to {cores}, the number of cores")
        if self.loader_workers is not None and self.epochs is None:
            raise ValueError("--loader-workers needs --epochs")
        if not 0 < self.share <= 1:
            raise ValueError("--share must be more than 0 and at most 1")
        given = [each for each in (*INSTEAD, "engines") if getattr(self, each) not in (False, None, ())]
        if len(given) > 1:
            raise ValueError(f"--{given[0]} and --{given[1]} cannot be used together")
        changed = {each.name for each in fields(self) if each.init and getattr(self, each.name) != each.default}
        unused = changed & IGNORED.get(given[0], set()) if given else set()
        if self.data is not None and not {"epochs", "serving", "listen"}.intersection(given):
            raise ValueError("--data needs --epochs, --serving or --listen")
        if unused:
            raise ValueError(f"--{given[0]} does not use --{min(unused).replace('_', '-')}: leave it out")
        device = str(own_device(self.device))
        if self.check:
            return _check(device)
        advice = "choose smaller --batch-sizes, --steps, --input-size, --hidden-size or --num-layers"
        with busy_cores(self.busy), memory_for("these measurements", advice):
            self._measure(device)

    def _measure(self, device: str) -> None:
        from rankcode.bench import plot

        files = OutputFiles(self.output, "bench")

        def write(content: dict, figure: Any, table: str, files: OutputFiles = files) -> None:
            files.write({"busy": self.busy, **content}, figure)
            print(table)
            say(f"wrote {files.json} and {files.png}")

        if self.grid is not None:
            chosen = grid_shapes(self.grid, self.num_layers)
            in_grid: list[GridRow] = []
            try:
                in_grid.extend(measure_grid(chosen, self.repeats))
            finally:
                done = len({row.shape for row in in_grid})
                if 0 < done < len(chosen):  # Ctrl-C
                    files = OutputFiles(f"{files.stem}-partial", "bench")
                    say(f"stopped after {done} of {len(chosen)} shapes")
                if in_grid:
                    rows = [each._asdict() | {"shape": asdict(each.shape)} for each in in_grid]
                    content = {"machine": machine("cpu"), "shapes": len(chosen), "grid": rows}
                    write(content, plot.plot_grid(in_grid), grid_table(in_grid), files)
            return
        shapes = [Shape(rows, **{name: getattr(self, name) for name in SIZES}) for rows in self.batch_sizes]

        def about(shape: Shape) -> dict[str, Any]:
            settings = {name: getattr(shape, name) for name in SIZES}
            return {"machine": machine(device), **settings, "threshold": self.threshold or device == "cpu"}

        content = about(shapes[0])
        if self.lengths:
            at = {
                steps: measure(replace(shapes[0], steps=steps), ("auto",), device, self.repeats)
                for steps in self.lengths
            }
            rows = {steps: [asdict(each) for each in found] for steps, found in at.items()}
            table = "\n\n".join(f"{steps:,} steps\n{bench_table(found)}" for steps, found in at.items())
            return write({**content, "batch_size": shapes[0].batch_size, "lengths": rows}, plot.plot_lengths(at), table)
        if self.epochs is not None:
            task = epochs_task(self.cell, self.data, max(self.batch_sizes))
            shapes = [with_sizes_of(task, shape) for shape in shapes]
            trained = {
                shape.batch_size: measure_epochs(shape, task, self.epochs, device, workers=self.loader_workers)
                for shape in shapes
            }
            epochs = {
                size: {name: [asdict(each) for each in run] for name, run in runs.items()}
                for size, runs in trained.items()
            }
            return write(
                {**about(shapes[0]), "task": task.name, "loader_workers": self.loader_workers, "epochs": epochs},
                plot.plot_epochs(trained),
                epochs_table(trained),
            )
        if self.streams:
            network = self._sound_network().to(device)
            parameters = sum(part.numel() for part in network.parameters())
            measured = [measure_streams(network, count, self.seconds) for count in sorted(self.streams)]
            which = {"model": self.model, "parameters": parameters}
            return write(
                {**content, **which, "streams": [asdict(each) for each in measured]},
                plot.plot_streams(measured),
                streams_table(measured),
            )
        if self.serving:
            served = self._measure_serving()
            which = {"model": self.model or "speech-commands", "data": self.data}
            served_rows = [asdict(each) for each in served]
            return write(
                {"machine": machine("cpu"), **which, "serving": served_rows},
                plot.plot_serving(served),
                serving_table(served),
            )
        if self.listen is not None:
            network = self._sound_network("speech-commands")
            tracks = make_tracks(SpeechCommands(self.data).folder, self.listen, self.share)
            points = measure_listening(network, tracks)
            lengths = {name: track.hours for name, track in tracks.items()}
            which = {"model": self.model or "speech-commands", "split": self.listen, "share": self.share}
            listened = {**which, "hours": lengths, "points": [asdict(each) for each in points]}
            return write({"machine": machine(device), **listened}, plot.plot_listening(points), listening_table(points))
        say(
            f"{self.cell}, layers: {self.num_layers}, units: {self.hidden_size}, inputs: {self.input_size}, steps: "
            f"{self.steps}, on {content['machine'].get('gpu', 'a CPU')} with {content['machine']['threads']} threads"
        )
        engines = self.engines or tuple(runnable(shapes[0], device))
        found: list[Measured] = []
        for shape in shapes:
            found += measure(shape, engines, device, self.repeats, threshold=self.threshold)
        if device == "cpu":
            found.append(measure_stream(shapes[0], self.repeats))
        return write(
            {**content, "measured": [asdict(each) for each in found]},
            plot.plot_bench(found),
            f"{bench_table(found)}\n{LEGEND}",
        )

    def _measure_serving(self) -> list[Served]:
        clips = make_clips(self._sound_network("speech-commands"), self.data)
        most = ("--streams-per-client", str(max(self.per_connection)), "--max-clients", str(max(self.serving) + 10))
        with running_server(self.model or "speech-commands", *most) as server:
            return [
                measure_serving(server, clips, count, per_connection, self.seconds)
                for per_connection in self.per_connection
                for count in sorted(self.serving)
            ]

    def _sound_network(self, default: str | None = None) -> Network:
        model = self.model or default
        if model is None:
            front_end = sound_front_end()
            network = Shape(
                input_size=front_end.output_shape[0], hidden_size=self.hidden_size, cell=self.cell
            ).network()
            network.front_end = front_end
            return network
        network = load(model)
        if getattr(network.front_end, "sample_rate", None) is None:
            raise ValueError(f"{model} does not read sound, which --streams, --serving and --listen need")
        return network


def _check(device: str) -> None:
    wrong = 0
    for each in check_engines(device):
        verdict = each.wrong or "ok"
        near = f", {each.differing} rows within rounding of θ" if each.differing else ""
        say(
            f"{each.engine:<9} {each.precision:<9} {each.case:<44} logits {each.values:.1e}  gradients "
            f"{each.gradients:.1e}  {verdict}{near}"
        )
        wrong += bool(each.wrong)
    if wrong:
        raise ArithmeticError(f"{wrong} cases differ from the reference: see above")
    say("every engine agrees with the reference")
