"""`rankcode tune`."""

from __future__ import annotations

import shlex
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field
from importlib.util import find_spec
from typing import Annotated

import torch
from cyclopts import Parameter

from rankcode.cli.messages import say
from rankcode.cli.options import Device, Model, MovedData
from rankcode.network import Network
from rankcode.saving.run_folder import RunFolder
from rankcode.stopping import Wish, tune_on
from rankcode.stopping.second_axis import traces_with_axis
from rankcode.stopping.tuning import Kind
from rankcode.sweeps import SweepFolder, pick
from rankcode.training.distributed import own_device


class Unchecked(Wish):
    """A wish before the network is known, which may say how long a step is."""

    def __post_init__(self) -> None:
        pass


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
    wish: Annotated[Unchecked, Parameter(name="*")] = field(default_factory=Unchecked)
    kind: Kind = "auto"
    """threshold is one θ, step-thresholds one θ for each step, optimal weighs the next steps; auto takes one θ unless
    optimal is better on held-out rows and, for kernels and ensembles, always optimal."""
    model: Model = None
    data: MovedData = None
    device: Device = "auto"

    def run(self) -> None:
        if SweepFolder(self.run_folder).exists():
            return self._pick()
        folder = RunFolder(self.run_folder)
        network = folder.model(self.model).to(own_device(self.device))
        given = vars(self.wish)
        if self.wish.false_alarms_per_hour is not None and self.wish.seconds_per_step is None:
            given = given | {"seconds_per_step": _seconds_per_step(network)}
        wish = Wish(**given)
        traces = folder.held_out()
        calibrated = traces is not None and folder.config().get("fit", {}).get("model") in ("kernels", "ensemble")
        if traces is None:
            traces = traces_with_axis(network, folder.task(self.data), "validation", progress=True)
        kind = "optimal" if calibrated and self.kind == "auto" else self.kind  # as in `rankcode train`
        tuning = tune_on(traces, wish, kind, temperatures=not calibrated and network.activation != "membrane")
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
        defaults = vars(Tune(self.run_folder, wish=self.wish)) | vars(Unchecked())
        given = {name: value for name, value in (vars(self) | vars(self.wish)).items() if value != defaults[name]}
        for name in given.keys() - {"accuracy", "mean_steps", "cost_per_step", "alpha"}:
            raise ValueError(f"--{name.replace('_', '-')} is for a run: pick one from the sweep, then tune its folder")
        point = pick(self.run_folder, **given)
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
