"""The settings of a training run, checked when they are made, and the learning rate they give."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, cast, get_args, get_type_hints

import torch

from rankcode.engines import ENGINES
from rankcode.metrics import ALPHA
from rankcode.network import Network
from rankcode.objectives import Objective
from rankcode.saving.description import content_of, damaged, describe, read_settings
from rankcode.saving.run_folder import RunFolder
from rankcode.training.distributed import own_device

SMALL_DATA = 1_000  # training rows; the defaults were measured up to 805 rows and at 7,500 (docs/choosing.md)


@dataclass(frozen=True)
class Training:
    """How to train."""

    epochs: float | None = None
    """Passes over the training data. Default: 50, and at least 1,000 batches, for data that ends. A run can be resumed
    with more; schedules of the learning rate and of beta then follow the new total."""
    examples: int | None = None
    """Rows to train on in all, instead of epochs. Default: 200,000, for generated data. May grow like epochs."""
    batch_size: int = cast(Any, None)  # see BY_DATA
    """Rows in a batch. Default: 32 for fewer than 1,000 training rows, else 128. A data loader keeps its own."""
    optimizer: Literal["adam", "adamw"] = "adam"
    """Optimizer."""
    learning_rate: float = cast(Any, None)  # see BY_DATA
    """Learning rate. Default: 0.01 for fewer than 1,000 training rows, else 0.003."""
    schedule: Literal["constant", "cosine"] = "cosine"
    """Learning rate over time: falling to zero along a cosine, or constant, as in the paper."""
    warmup_ratio: float = 0.0
    """Share of training over which the learning rate rises from zero."""
    weight_decay: float = 0.0
    """Weight decay of the optimizer."""
    max_grad_norm: float | None = 1.0
    """Largest norm of the gradient; inf for none."""
    ema_decay: float | None = None
    """Decay of the moving average of the weights, such as 0.999. Validation and saved models use the average."""
    input_noise: float = cast(Any, None)  # see BY_DATA
    """Standard deviation of Gaussian noise that is added to the inputs in training. Default: 0.2 for fewer than 1,000
    standardised series, else 0."""
    validate_every: int | None = None
    """Batches between validations. Default: one epoch, or as many as have 20 batches if epochs is not given; 50 batches
    for generated data."""
    select: Literal["accuracy", "first_spike_accuracy", "loss", "harmonic_mean", "cost"] = "cost"
    """What makes a model the best on the validation data, with the objective's rule, or with first-spike inference;
    of equals the one with fewer steps, then the later one. cost is the share of errors plus α times the earliness.
    Without validation data the latest model counts as the best."""
    select_alpha: float = ALPHA
    """α of that cost: at 0.2, answering at half the length makes up for 10 % more errors."""
    finish_with: Literal["best", "last"] = "best"
    """Which weights the network has after training."""
    first_spike_threshold: float = 0.95
    """θ of the first-spike inference that is reported if the objective never fires."""
    seed: int = 0
    """Seed of the order of the data and of everything random in training."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Automatic mixed precision: matrix multiplications run in this precision, weights and states stay float32. float16
    is for GPUs."""
    device: str = "auto"
    """cpu, cuda or cuda:N; auto takes a GPU if there is one."""
    engine: str = "auto"
    """Engine that runs the network through time: auto, compiled, cpu, triton, graphs, whole, stepwise or
    reference."""
    folder: str | None = None
    """Folder in which the run is kept. Default: runs/TASK-OBJECTIVE on the command line, none in Python."""
    resume: bool = False
    """Continue the run in the folder from its latest checkpoint, or start one if there is none."""
    tensorboard: bool = False
    """Also write TensorBoard events into the folder."""
    progress: bool = True
    """Show a progress bar."""

    # None until `for_data` sets them.
    BY_DATA: ClassVar[tuple[str, ...]] = ("batch_size", "learning_rate", "input_noise")
    # Settings that do not define a run: they are not saved, and may differ when it is resumed.
    WHERE: ClassVar[tuple[str, ...]] = ("device", "folder", "resume", "tensorboard", "progress")

    def __post_init__(self):
        hints = get_type_hints(Training)
        for names, wanted, fits in _NUMBERS:
            for name in names:
                value = getattr(self, name)
                left_out = value is None and (name in self.BY_DATA or type(None) in get_args(hints[name]))
                if not left_out and not fits(value):
                    raise ValueError(f"{name} must be {wanted}, not {value!r}")
        choices = {name: get_args(hint) for name, hint in hints.items()}
        choices["engine"] = ("auto", *ENGINES)
        for name, allowed in choices.items():
            if allowed and isinstance(allowed[0], str) and getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}")
        if self.max_grad_norm == math.inf:
            object.__setattr__(self, "max_grad_norm", None)
        if self.epochs is not None and self.examples is not None:
            raise ValueError("give epochs or examples, not both")
        if self.folder is None and self.resume:
            raise ValueError("resume needs a folder: name it with folder=…")

    @classmethod
    def of_run(cls, folder: RunFolder, **changes: Any) -> Training:
        """The settings of the run in a folder, to resume it. `changes`: device, tensorboard, progress, and more epochs
        or examples."""
        written = folder.config()["training"]
        with content_of(folder.config_file):
            settings = read_settings(written, cls, "training")
            try:
                training = cls(**settings | {"folder": str(folder.path), "resume": True})
            except ValueError as error:
                raise damaged(f"training: {error}") from None
        changes = {name: value for name, value in changes.items() if value is not None}
        if {"epochs", "examples"} & changes.keys():  # one replaces the other
            changes = {"epochs": None, "examples": None} | changes
        return replace(training, **changes)

    def own_device(self) -> torch.device:
        """The device that this process trains on."""
        device = own_device(self.device)
        if self.precision == "float16" and device.type == "cpu":
            # PyTorch has no fast float16 kernels for CPUs: a matrix multiplication takes 10 to 30 times as long.
            raise ValueError("precision float16 is for GPUs and very slow on a CPU: use float32 or bfloat16")
        return device

    def for_data(self, rows: int | None, front_end: Any) -> Training:
        """With every setting whose default depends on the data: how many training rows there are, None if they are
        generated, and how they become inputs."""
        small = rows is not None and rows < SMALL_DATA
        defaults = {
            "batch_size": 32 if small else 128,
            "learning_rate": 0.01 if small else 0.003,
            "input_noise": getattr(front_end, "training_noise", 0.0) if small else 0.0,
        }
        return replace(self, **{name: value for name, value in defaults.items() if getattr(self, name) is None})

    def learning_rate_at(self, progress: float) -> float:
        """The learning rate when a share `progress` of training is done."""
        if progress < self.warmup_ratio:
            return self.learning_rate * progress / self.warmup_ratio
        if self.schedule == "constant":
            return self.learning_rate
        after_warmup = (progress - self.warmup_ratio) / (1 - self.warmup_ratio)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * after_warmup))


def described(network: Network, objective: Objective, config: Training) -> dict[str, Any]:
    """The settings of a run, except its data, as JSON: they must be the same when it is resumed."""
    settings = {field.name: getattr(config, field.name) for field in fields(config)}
    return {
        "network": describe(network),
        "objective": describe(objective),
        "training": {name: describe(value) for name, value in settings.items() if name not in Training.WHERE},
    }


def _whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


_NUMBERS = (  # fields, the values they take in words, and the check of a value
    (("examples", "batch_size", "validate_every"), "a whole number above 0", lambda v: _whole(v) and v > 0),
    (("seed",), "a whole number, at least 0 and below 2⁶³", lambda v: _whole(v) and 0 <= v < 2**63),
    (("epochs", "first_spike_threshold"), "a number above 0", lambda v: _number(v) and v > 0),
    (("learning_rate",), "a number above 0 and at most 3e37", lambda v: _number(v) and 0 < v <= 3e37),
    (("max_grad_norm",), "a number above 0, or inf", lambda v: (_number(v) or v == math.inf) and v > 0),
    (("weight_decay", "select_alpha", "input_noise"), "a number, at least 0", lambda v: _number(v) and v >= 0),
    (("warmup_ratio", "ema_decay"), "a number, at least 0 and below 1", lambda v: _number(v) and 0 <= v < 1),
)
