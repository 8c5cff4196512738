"""`rankcode sweep`."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, get_type_hints

from cyclopts import CycloptsError, Parameter, convert

from rankcode.cli.main import parsed
from rankcode.cli.messages import as_flags, say, say_left_out, suggestion
from rankcode.cli.options import SWEEP
from rankcode.cli.train import Train, TrainingOptions
from rankcode.data.sources import BadData
from rankcode.metrics import THRESHOLDS
from rankcode.sweeps.plan import OPTIONS, Search
from rankcode.sweeps.sweep import results_of, run_sweep
from rankcode.training.loop import Training
from rankcode.training.series_model import ModelName

MAX_POINTS = 12  # of the front that are printed
Hidden = Parameter(parse=False)


@dataclass(frozen=True)
class Sweep(Train):
    """Train networks with different options side by side, and find the best trade-offs of accuracy against steps read.

    Each network is measured at many thresholds. The front consists of the networks and thresholds that no others beat
    on validation data, and is drawn on test data; rankcode tune picks from it. Every run is kept in the folder of the
    sweep. Repeating the command continues a sweep that was stopped or killed. All options of rankcode train can be
    swept, or given once for all runs.

    For example:

        rankcode sweep two-sequence --over beta=0,0.1,0.2 threshold=0.95,0.99
        rankcode sweep gestures.npz --over learning-rate=1e-4..1e-2 --runs 40 --hours 2
        rankcode tune runs/gestures-sweep --accuracy 0.95
    """

    _: KW_ONLY
    over: Annotated[tuple[str, ...], Parameter(group=SWEEP)]
    """Options and their values, such as beta=0,0.1 cell=gru,lstm, or a range from which numbers are drawn, such as
    learning-rate=1e-4..1e-2 (log-uniformly if it begins above 0). Schedules of beta are separated by semicolons."""
    runs: Annotated[int | None, Parameter(group=SWEEP)] = None
    """Maximum number of runs. Default: all combinations, or 20 if there is a range."""
    hours: Annotated[float | None, Parameter(group=SWEEP)] = None
    """Time limit in hours. Repeating the command does the rest."""
    search: Annotated[Search, Parameter(group=SWEEP)] = "auto"
    """grid tries all combinations, random some of them, bayesian the most promising; auto takes grid if --runs allows
    all, else random."""
    early_stopping: Annotated[bool | None, Parameter(group=SWEEP, show_default=False)] = None
    """End runs that are not among the best third after a ninth or a third of their training. Default: not for grid."""
    thresholds: Annotated[tuple[float, ...], Parameter(group=SWEEP, show_default=False)] = THRESHOLDS
    """Values of θ at which every network is measured. Default: 17 values from 0.5 to 0.9995."""
    cpus_per_run: Annotated[float, Parameter(group=SWEEP)] = 1
    """CPU cores and threads of each run; as many runs as the cores allow are trained at the same time."""
    gpus_per_run: Annotated[float | None, Parameter(group=SWEEP)] = None
    """GPUs of each run; 0.1 lets ten runs share one. Default: 1 if there are GPUs, else 0."""
    address: Annotated[str | None, Parameter(group=SWEEP)] = None
    """Address of a Ray cluster, such as 10.0.0.1:6379 or auto. Default: Ray on this machine, for the sweep alone."""
    # A sweep trains recurrent networks, and the wish is an option of rankcode tune.
    model: Annotated[ModelName, Hidden] = "recurrent"
    accuracy: Annotated[float | None, Hidden] = None
    mean_steps: Annotated[float | None, Hidden] = None
    cost_per_step: Annotated[float | None, Hidden] = None
    alpha: Annotated[float | None, Hidden] = None

    def run(self) -> None:
        given = {name: value for name, value in vars(self.training).items() if value is not None}
        if self.address is None:
            Training(**given).own_device()
        folder, progress = given.pop("folder", None), given.pop("progress", True)
        given.pop("resume", None)  # a sweep is always resumed
        plain = Train(self.task).network_options()
        given |= {name: value for name, value in self.network_options().items() if value != plain[name]}
        over: dict[str, Any] = {}
        for name, values in self._over():
            if name in over:
                raise ValueError(f"--over: {name.replace('_', '-')} is given twice")
            over[name] = values
        task = self.named_task()
        if hasattr(task, "summary"):
            say(task.summary(), file=sys.stderr)
        say_left_out(getattr(task, "left_out", ()))
        limits: Any = {name: getattr(self, name) for name in ("runs", "search", "early_stopping", "thresholds")}
        resources: Any = {name: getattr(self, name) for name in ("cpus_per_run", "gpus_per_run", "address")}
        try:
            found = run_sweep(task, over, given, folder, self.hours, **limits, **resources, progress=progress)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("stopped; repeat the command to continue") from None
        self._report(found)

    def _over(self) -> Iterator[tuple[str, Any]]:
        """The options of --over, with values as rankcode train reads them."""
        if not self.over:
            raise ValueError("--over needs options and their values (see rankcode sweep --help)")
        for text in self.over:
            written, _, values = text.partition("=")
            name = written.removeprefix("--").replace("-", "_")
            if name not in OPTIONS or not values:
                close = "" if name in OPTIONS else suggestion(written, [each.replace("_", "-") for each in OPTIONS])
                problem = "has no values" if name in OPTIONS else "is not an option of a run"
                raise ValueError(f"--over: {written!r} {problem}{close and ': '}{close} (see rankcode sweep --help)")
            parts = values.split("..") if ".." in values else values.split(";" if ";" in values else ",")
            read = [self._read(name, part) for part in parts]
            yield name, "..".join(map(str, read)) if ".." in values else read

    def _read(self, name: str, text: str) -> Any:
        """A value of an option, as rankcode train reads it."""
        hints = get_type_hints(Train, include_extras=True) | get_type_hints(TrainingOptions, include_extras=True)
        with suppress(CycloptsError):  # which does not name the option
            return convert(hints[name], [text])
        train = parsed(["train", self.task, f"--{name.replace('_', '-')}={text}"])
        return getattr(train.training if hasattr(train.training, name) else train, name)

    def _report(self, folder: Any) -> None:
        """Print how the runs ended, the front, and what to do with it."""
        plan, front = folder.plan(), folder.front()["front"]
        results = results_of(folder, plan)
        counts = Counter(result["status"] for result in results.values())
        counts["not trained"] = len(plan["runs"]) - len(results)
        say(f"{len(plan['runs'])} runs: {', '.join(f'{count} {status}' for status, count in counts.items() if count)}")
        for number, result in results.items():
            if result["status"] == "failed":
                say(f"  run {number} failed: {as_flags(result['reason'], OPTIONS)}")
        ended = counts["finished"] + counts["stopped"] + counts["failed"]
        goes_on = "the same command goes on" if ended < max(len(plan["runs"]), plan.get("wanted", 0)) else ""
        if not front:
            raise BadData(f"no run has ended with a network: {goes_on or 'see the reasons above'}")
        say("the front, chosen on validation data, measured on test data:", "  accuracy   steps   run       θ  options")
        for point in front[:: -(-len(front) // MAX_POINTS)]:
            options = " ".join(f"{name.replace('_', '-')}={value}" for name, value in point["options"].items())
            measured = f"{100 * point['test']['accuracy']:6.2f} %  {point['test']['mean_steps']:6.2f}"
            say(f"  {measured}   {point['run']:3}  {point['threshold']:6g}  {options}")
        if goes_on:
            say(f"not all runs have ended: {goes_on}")
        name = shlex.quote(str(folder.path))
        say(f"the sweep is in {folder.path}; front.json has all {len(front)} points of the front; try next:")
        say(f"  rankcode tune {name} --accuracy 0.95   # pick a network and its threshold")
