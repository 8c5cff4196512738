"""`rankcode resume`."""

from __future__ import annotations

import shlex
from contextlib import closing
from dataclasses import KW_ONLY, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rankcode.cli.messages import say
from rankcode.cli.options import Device, MovedData
from rankcode.cli.train import fit_and_report
from rankcode.saving.run_folder import RunFolder
from rankcode.training.distributed import is_first, own_device
from rankcode.training.loop import Training


@dataclass(frozen=True)
class Resume:
    """Continue a run that was interrupted, from its latest checkpoint, or train it for longer.

    For example:

        rankcode resume runs/gestures
        rankcode resume runs/gestures --epochs 400
    """

    run_folder: str
    """Folder of the run."""
    _: KW_ONLY
    epochs: float | None = None
    """Total number of passes over the training data, to train for longer."""
    examples: int | None = None
    """Total number of rows to train on, to train for longer."""
    data: MovedData = None
    device: Device = "auto"

    def run(self) -> None:
        folder = RunFolder(self.run_folder)
        if folder.fitted():
            raise ValueError(f"{self.run_folder} was fitted without checkpoints: there is nothing to resume")
        logged = any(folder.path.glob("events.out.tfevents*")) and find_spec("tensorboard") is not None
        longer: Any = {"epochs": self.epochs, "examples": self.examples}
        Training(**longer)
        own_device(self.device)
        training = Training.of_run(folder, device=self.device, tensorboard=logged, **longer)
        data = None if self.data is None else str(Path(self.data).absolute())
        task, network, objective = folder.task(data), folder.network(), folder.objective()
        if self.data is not None:
            _ = task.train  # raises before the new place is recorded, if the data is missing or has changed
            if is_first():
                with closing(folder):
                    folder.move_data(self.data)
        checkpoint = folder.checkpoint()
        if not any(longer.values()) and checkpoint["batch"] == folder.config().get("batches"):
            _say_complete(self.run_folder, checkpoint["examples"], getattr(task.train, "size", None))
        fit_and_report(network, task, objective, training)


def _say_complete(path: str, examples: int, rows: int | None) -> None:
    """Say that nothing is left to train, and how to train for longer."""
    option, done = ("examples", examples) if rows is None else ("epochs", examples / rows)
    say(f"the run is complete after {done:g} {option}; to train for longer:")
    say(f"  rankcode resume {shlex.quote(path)} --{option} {2 * done:g}")
