"""`rankcode tune`."""

from __future__ import annotations

from contextlib import closing
from dataclasses import KW_ONLY, dataclass
from importlib.util import find_spec

import torch

from rankcode.cli.messages import say
from rankcode.cli.options import Device, Model, MovedData
from rankcode.network import Network
from rankcode.saving.run_folder import RunFolder
from rankcode.stopping import Wish, tune_on
from rankcode.stopping.traces import traces_of
from rankcode.stopping.tuning import Kind
from rankcode.training.distributed import own_device


@dataclass(frozen=True)
class Tune:
    """Fit the rule of a trained network to what you need, and keep it in the run.

    Rows that the network was not trained on are used: the validation data of the run, or left-out predictions. Give one
    wish.

    For example:

        rankcode tune runs/gestures --accuracy 0.95
        rankcode tune runs/gestures --mean-steps 20 --kind threshold
    """

    run_folder: str
    """Folder of the run."""
    _: KW_ONLY
    accuracy: float | None = None
    """Answer as early as possible with this share of right answers, such as 0.95."""
    mean_steps: float | None = None
    """Answer as accurately as possible after so many steps on average."""
    cost_per_step: float | None = None
    """What reading one step costs, where a wrong answer costs 1."""
    alpha: float | None = None
    """What reading a whole row costs, where a wrong answer costs 1. Default: 0.2, if nothing is wished."""
    false_alarms_per_hour: float | None = None
    """Rows that fire wrongly, per hour of data."""
    seconds_per_step: float | None = None
    """Duration of a step, for false alarms. Default: that of the recordings, where the data is sound."""
    kind: Kind = "auto"
    """threshold is one θ, step-thresholds one for each step, optimal weighs the next steps; auto takes θ unless optimal
    is better."""
    model: Model = None
    data: MovedData = None
    device: Device = "auto"

    def run(self) -> None:
        folder = RunFolder(self.run_folder)
        network = folder.model(self.model).to(own_device(self.device))
        seconds = self.seconds_per_step or _seconds_per_step(network)
        alarms = self.false_alarms_per_hour
        wish = Wish(self.accuracy, self.mean_steps, self.cost_per_step, self.alpha, alarms, seconds if alarms else None)
        traces = folder.held_out()
        calibrated = traces is not None and folder.config().get("fit", {}).get("model") == "kernels"
        if traces is None:
            traces = traces_of(network, folder.task(self.data), "validation", progress=True)
        tuning = tune_on(traces, wish, self.kind, calibrate=not calibrated and network.activation != "membrane")
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


def _seconds_per_step(network: Network) -> float | None:
    """The duration of a step of sound; None: not sound."""
    if network.front_end is None:
        return None
    heard = network.front_end.heard(torch.tensor([10, 11]), torch.tensor([10**9, 10**9]))
    return None if heard is None else float(heard[1] - heard[0]) / 1000
