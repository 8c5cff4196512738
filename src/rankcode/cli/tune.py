"""`rankcode tune`."""

from __future__ import annotations

import shlex
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, fields
from importlib.util import find_spec

import torch

from rankcode.cli.messages import say
from rankcode.cli.options import Device, Model, MovedData
from rankcode.network import Network
from rankcode.saving.run_folder import RunFolder
from rankcode.stopping import Wish, tune_on
from rankcode.stopping.second_axis import traces_with_axis
from rankcode.stopping.tuning import Kind
from rankcode.sweeps import SweepFolder, pick
from rankcode.training.distributed import own_device


@dataclass(frozen=True)
class Tune:
    """Fit the rule of a trained network to what you need, and keep it in the run; or pick a network from a sweep.

    Uses rows that the network was not trained on: the validation data of the run, or held-out predictions. Give one
    wish. From a sweep, picks the network and threshold that meet the wish best on validation data; the folder of the
    sweep can then be used like that of a run.

    For example:

        rankcode tune runs/gestures --accuracy 0.95
        rankcode tune runs/gestures --mean-steps 20 --kind threshold
        rankcode tune runs/gestures-sweep --accuracy 0.95
    """

    run_folder: str
    """Folder of the run, or of a sweep."""
    _: KW_ONLY
    accuracy: float | None = None
    """Answer as early as possible with this accuracy, such as 0.95."""
    mean_steps: float | None = None
    """Answer as accurately as possible within this many steps on average."""
    cost_per_step: float | None = None
    """Cost of reading one step; a wrong answer costs 1."""
    alpha: float | None = None
    """Cost of reading a whole row; a wrong answer costs 1. Default: 0.2, unless another wish is given."""
    false_alarms_per_hour: float | None = None
    """Maximum number of rows that fire wrongly, per hour of data."""
    seconds_per_step: float | None = None
    """Duration of a step in seconds, for false alarms. Default: that of the recordings, if the data is sound."""
    kind: Kind = "auto"
    """threshold is one θ, step-thresholds one θ for each step, optimal weighs the next steps; auto takes one θ unless
    optimal is better."""
    model: Model = None
    data: MovedData = None
    device: Device = "auto"

    def run(self) -> None:
        if SweepFolder(self.run_folder).exists():
            return self._pick()
        folder = RunFolder(self.run_folder)
        network = folder.model(self.model).to(own_device(self.device))
        seconds = self.seconds_per_step or _seconds_per_step(network)
        alarms = self.false_alarms_per_hour
        wish = Wish(self.accuracy, self.mean_steps, self.cost_per_step, self.alpha, alarms, seconds if alarms else None)
        traces = folder.held_out()
        calibrated = traces is not None and folder.config().get("fit", {}).get("model") == "kernels"
        if traces is None:
            traces = traces_with_axis(network, folder.task(self.data), "validation", progress=True)
        tuning = tune_on(traces, wish, self.kind, temperatures=not calibrated and network.activation != "membrane")
        network.rule = tuning.rule
        kept = self.model or folder.kept_model()
        with closing(folder):
            folder.write_tuning(kept, network, tuning, traces)
        say(f"{self.run_folder}, {wish}: {tuning.reason}")
        say(f"  {tuning}")
        if find_spec("matplotlib") is not None:
            say(f"the rule is in {kept}.safetensors, pictures in tuning.png and reliability.png of {self.run_folder}")
        else:
            say(f"the rule is in {folder.path / f'{kept}.safetensors'}")

    def _pick(self) -> None:
        """Pick a network and its threshold from a sweep."""
        given = {field.name for field in fields(self) if getattr(self, field.name) != field.default} - {"run_folder"}
        for name in given - {"accuracy", "mean_steps", "cost_per_step", "alpha"}:
            raise ValueError(f"--{name.replace('_', '-')} is for a run: pick one from the sweep, then tune its folder")
        point = pick(self.run_folder, **{name: getattr(self, name) for name in given})
        options = " ".join(f"{name.replace('_', '-')}={value}" for name, value in point["options"].items())
        say(f"{self.run_folder}: picked {point['folder']} ({options}) with the threshold {point['threshold']:g}")
        for split in ("validation", "test"):
            values = point[split]
            measured = f"accuracy {100 * values['accuracy']:.2f} % after {values['mean_steps']:.2f} steps"
            say(f"  {measured} on {split} data")
        name = shlex.quote(self.run_folder)
        say(f"{self.run_folder} now stands for that run, as in: rankcode evaluate {name}")


def _seconds_per_step(network: Network) -> float | None:
    """The duration of a step of sound; None: not sound."""
    if network.front_end is None:
        return None
    heard = network.front_end.heard(torch.tensor([10, 11]), torch.tensor([10**9, 10**9]))
    return None if heard is None else float(heard[1] - heard[0]) / 1000
