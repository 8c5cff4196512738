"""The training loop: `fit`, one screen, and the settings around it.

Every random choice of batch n comes from the seed and n alone, so a run that was cut off ends with the
weights it would have ended with.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, ClassVar, Literal, get_args, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from rankcode.data import Loader, Source, as_source, split_of
from rankcode.decision import Decision
from rankcode.distributed import Processes, own_device, processes
from rankcode.metrics import evaluate
from rankcode.model_file import describe
from rankcode.network import Network
from rankcode.objectives import Objective
from rankcode.progress import Progress
from rankcode.rules import Never, Threshold
from rankcode.run_folder import RunFolder
from rankcode.training_state import TrainingState


@dataclass(frozen=True)
class Training:
    """How to train."""

    epochs: float | None = None
    """Passes over the training data. Default: 50, for data that ends."""
    examples: int | None = None
    """Rows to train on in all, instead of epochs. Default: 200,000, for generated data."""
    rows: int = 128
    """Rows in a batch."""
    optimizer: Literal["adam", "adamw"] = "adam"
    """The optimiser."""
    rate: float = 0.001
    """Learning rate."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate over time: constant as in the paper, or falling to zero along a cosine."""
    warmup: float = 0.0
    """Share of training over which the rate rises from zero."""
    weight_decay: float = 0.0
    """Weight decay of the optimiser."""
    clip: float | None = None
    """Largest norm of the gradient; none by default."""
    average: float | None = None
    """Decay of the moving average of the weights, such as 0.999. Validation, best and saved model use it."""
    validate_every: int | None = None
    """Batches between validations. Default: an epoch, or 50 batches of generated data."""
    select: Literal["accuracy", "loss", "harmonic_mean", "cost"] = "accuracy"
    """What makes a model the best on the validation data, with the objective's rule; fewer steps break ties."""
    finish_with: Literal["best", "last"] = "best"
    """Which weights the network holds in the end."""
    threshold: float = 0.95
    """θ of the first-spike inference that is reported beside training that never fires."""
    seed: int = 0
    """Seed of the data and of everything random in training."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Automatic mixed precision: products run in this precision, weights and states stay float32."""
    device: str = "auto"
    """cpu, cuda, cuda:N; auto takes a GPU where there is one."""
    engine: str = "auto"
    """How the network is run through time: auto, reference or stepwise."""
    folder: str | None = None
    """Where the run is kept. Default: nothing is written."""
    resume: bool = False
    """Go on with the run in the folder, from its latest checkpoint."""
    tensorboard: bool = False
    """Write TensorBoard events into the folder as well."""
    progress: bool = True
    """Show a progress bar."""

    WHERE: ClassVar = ("device", "folder", "resume", "tensorboard", "progress")  # may differ on a resume

    def __post_init__(self):
        for name in ("epochs", "examples", "rows", "rate", "clip", "validate_every"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, not {value}")
        for name in ("warmup", "average"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, not {value}")
        for name, hint in get_type_hints(type(self)).items():
            choices = get_args(hint)
            if choices and isinstance(choices[0], str) and getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}")
        if self.epochs is not None and self.examples is not None:
            raise ValueError("give epochs or examples, not both")
        if self.folder is None and (self.resume or self.tensorboard):
            raise ValueError(f"{'resume' if self.resume else 'tensorboard'} needs a folder")

    def rate_at(self, progress: float) -> float:
        """The learning rate when a share `progress` of training is done."""
        if progress < self.warmup:
            return self.rate * progress / self.warmup
        if self.schedule == "constant":
            return self.rate
        return self.rate * 0.5 * (1 + math.cos(math.pi * (progress - self.warmup) / (1 - self.warmup)))


@dataclass(frozen=True)
class History:
    """What training went through: a record for each validation, and the best of them.

    A record holds batch, examples, seconds, rate, means over the batches since the last record
    (`training`), the report with the objective's rule (`validation`), and that of first-spike inference
    (`first_spike`), the same where the objective itself ends at the spike.
    """

    records: list[dict[str, Any]]
    best: dict[str, Any] | None


class _Step(nn.Module):
    """Network and objective as one module: distributed training acts on a module's `forward`."""

    def __init__(self, network: Network, objective: Objective, config: Training, device: torch.device):
        super().__init__()
        self.network, self.objective, self.engine, self.device = network, objective, config.engine, device
        self.precision = None if config.precision == "float32" else getattr(torch, config.precision)

    def forward(self, batch, progress: float) -> tuple[Tensor, Decision]:
        with torch.autocast(self.device.type, self.precision, enabled=self.precision is not None):
            return self.objective(self.network, *batch, engine=self.engine, progress=progress)


def fit(network: Network, task: Any, objective: Objective, config: Training | None = None) -> History:
    """Train a network in place.

    `task` is one of ours, (inputs, labels[, lengths]) arrays, a DataLoader, or any object whose `train`
    and, if it has one, `validation` is one of these. Without validation data the last weights are kept.
    """
    config = config or Training()
    device = own_device(config.device)
    network.to(device).train()
    source = split_of(task, "train")
    held_out = as_source(task.validation) if getattr(task, "validation", None) is not None else None
    batches, validate_every = _length(source, config)
    with processes(device) as group, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(config.seed + group.rank)
        if any(isinstance(parameter, UninitializedParameter) for parameter in network.parameters()):
            objective(network, *next(source.batches(config.rows, config.seed, device)))  # lazy layers get their size
        state = TrainingState(network, config, device)
        folder = None if config.folder is None else RunFolder(config.folder)
        if folder is not None:
            settings = _settings(network, task, objective, config)
            checkpoint = group.from_first(lambda: folder.begin(settings, config.resume))
            if checkpoint is not None:
                state.restore(checkpoint, folder.records())
            folder = folder if group.first else None  # the first process writes
        writer = _tensorboard(config) if group.first else None
        step = group.wrap(_Step(network, objective, config, device), device)
        data = source.batches(config.rows, config.seed, device, start=state.batch)

        with Progress("training", batches, config.progress and group.first, done=state.batch) as bar:
            while state.batch < batches:
                progress = state.batch / batches
                batch, weight = (next(data), 1.0) if isinstance(source, Loader) else group.share(next(data))
                state.set_rate(config.rate_at(progress))
                loss, decision = step(batch, progress)
                state.scaler.scale(loss * weight).backward()
                state.update(config.clip)
                state.count(batch.labels, loss, decision)
                if bar.due() or state.batch == batches:
                    bar.show(state.batch, state.summary())
                if state.batch % validate_every == 0 or state.batch == batches:
                    record = _record(state, objective, held_out, config, group)
                    better = state.add(record, config.select)
                    if folder is not None:
                        folder.write_record(record)
                        if better:
                            folder.write_model("best", state.model)
                        folder.write_checkpoint(state.checkpoint())
                    if writer is not None:
                        _write_scalars(writer, record)

        if folder is not None:
            folder.write_model("last", state.model)
            folder.write_plot()
        final = state.best_weights if config.finish_with == "best" and state.best_weights else state.model.state_dict()
        network.load_state_dict(final)
    return History(state.records, state.best)


def _record(
    state: TrainingState, objective: Objective, held_out: Source | None, config: Training, group: Processes
) -> dict[str, Any]:
    """One line of the history: training since the last one, and validation now."""
    rows, loss, right, steps = group.total(state.sums).tolist()
    state.sums.zero_()
    state.examples += int(rows)
    if not math.isfinite(loss):
        raise ValueError(f"the loss is no longer a number at batch {state.batch}: lower the rate, or set clip")
    record: dict[str, Any] = {
        "batch": state.batch,
        "examples": state.examples,
        "seconds": state.seconds,
        "rate": state.optimizer.param_groups[0]["lr"],
        "training": {"loss": loss / rows, "accuracy": right / rows, "mean_steps": steps / rows},
    }
    if held_out is not None:
        rule = objective.rule
        record["validation"] = evaluate(state.model, held_out, rule, engine=config.engine).as_dict()
        record["first_spike"] = record["validation"]
        if isinstance(rule, Never):
            spike = Threshold(config.threshold)
            record["first_spike"] = evaluate(state.model, held_out, spike, engine=config.engine).as_dict()
    return record


def _length(source: Source, config: Training) -> tuple[int, int]:
    """Batches in the run, and between validations."""
    epoch = source.epoch(config.rows)
    if config.examples is not None:
        batches = -(-config.examples // config.rows)
    elif epoch is not None:
        batches = max(1, round((config.epochs or 50) * epoch))
    elif config.epochs is not None:
        raise ValueError("this data has no epochs: give examples, how many rows to train on")
    else:
        batches = -(-200_000 // config.rows)
    return batches, config.validate_every or epoch or 50


def _settings(network: Network, task: Any, objective: Objective, config: Training) -> dict[str, Any]:
    """What defines a run, as JSON."""
    training = {name: value for name, value in asdict(config).items() if name not in Training.WHERE}
    return {
        "task": {"name": getattr(task, "name", "own data"), **(asdict(task) if is_dataclass(task) else {})},  # type: ignore[arg-type]
        "network": describe(network),
        "objective": _describe(objective),
        "training": training,
    }


def _describe(part: Any) -> Any:
    """A dataclass by name and fields; what is not data, by its name alone."""
    if part is None or isinstance(part, str | int | float | bool):
        return part
    if isinstance(part, tuple | list):
        return [_describe(item) for item in part]
    name = type(part).__name__
    if not is_dataclass(part):
        return {"own": getattr(part, "__qualname__", name)}
    return {"kind": name, **{field.name: _describe(getattr(part, field.name)) for field in fields(part)}}


def _tensorboard(config: Training):
    if not config.tensorboard:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError("TensorBoard is not installed: pip install 'rankcode[tensorboard]'") from None
    return SummaryWriter(config.folder)


def _write_scalars(writer, record: dict[str, Any]) -> None:
    for part in ("training", "validation", "first_spike"):
        for name, value in record.get(part, {}).items():
            if isinstance(value, float):
                writer.add_scalar(f"{part}/{name}", value, record["examples"])
    writer.flush()
