"""The training loop: `fit`, on one screen, and what a record of it holds.

Every random choice of batch n comes from the seed and n alone, so a run that was cut off ends with the
weights it would have ended with.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from rankcode.checks import check_rows_apart, rows_named
from rankcode.data import Arrays, Batch, Generated, Loader, Rows, Source, as_source, sent, split_of
from rankcode.decision import Decision
from rankcode.distributed import Processes, own_device, processes
from rankcode.engines import choose, triton
from rankcode.front_ends import front_end_of
from rankcode.inference import decide
from rankcode.metrics import evaluate
from rankcode.model_file import describe
from rankcode.network import Network
from rankcode.objectives import AtEnd, AtSpike, EveryStep, Objective, UntilSpike
from rankcode.progress import Progress
from rankcode.recorded import Recorded
from rankcode.rules import Never, Rule, StepThresholds, Threshold, check_rule
from rankcode.run_folder import RunFolder
from rankcode.training_config import Training
from rankcode.training_state import TrainingState

OBJECTIVES = (AtSpike, AtEnd, EveryStep, UntilSpike)  # which do nothing but tensor operations
UPDATES = 1000  # at least, where nothing is said about how long to train
LOOKED_AT = 100  # batches of generated data in which NaN and infinity are looked for


@dataclass(frozen=True)
class History:
    """What training went through: a record for each validation, and the best of them.

    A record holds batch, examples, seconds, rate, means over the batches since the last record
    (`training`) and the seconds they took (`training_seconds`), the report with the objective's rule
    (`validation`), and that of first-spike inference (`first_spike`), the same where the objective itself
    ends at the spike. Without validation data a record has no `validation` and no `first_spike`, and `best`
    is None.
    """

    records: list[dict[str, Any]]
    best: dict[str, Any] | None


def fit(network: Network, task: Any, objective: Objective, config: Training | None = None) -> History:
    """Train a network in place.

    `task` is one of ours, (inputs, labels[, lengths]) arrays, a DataLoader, or any object whose `train`
    and, if it has one, `validation` is one of these. Without validation data the last weights are kept.
    """
    config = config or Training()
    if not (isinstance(network, Network) and isinstance(objective, Objective) and isinstance(config, Training)):
        raise ValueError("fit takes a Network, a task, an objective such as AtSpike(0.95), and a Training")
    objective.check()
    if config.tensorboard and config.folder is None:
        raise ValueError("tensorboard needs a folder: name it with folder (--folder)")
    device = own_device(config.device)
    names = getattr(task, "label_names", None)
    network.label_names = tuple(names) if names and len(names) == network.classes else network.label_names
    network.rule = objective.rule if isinstance(objective.rule, Threshold | StepThresholds) else None
    source = split_of(task, "train")
    network.front_end = getattr(task, "front_end", None) or front_end_of(source) or network.front_end
    held_out = as_source(task.validation) if getattr(task, "validation", None) is not None else None
    spike_rule = _spike_rule(network, objective, config)
    group = processes(device)
    kept = config.folder is not None and group.first
    keeper = closing(RunFolder(config.folder, config.tensorboard)) if kept else nullcontext()  # type: ignore[arg-type]
    with _training_mode(network, device), keeper as folder:
        check_rows_apart(network)
        plan = group.from_first(lambda: _plan(source, config, group.count))
        _size_lazy_layers(network, source, config, device)
        step = group.wrap(_Step(network, objective, config, device), device)
        state = TrainingState(network, config, group, device)
        update = _Update(step, state, _Answers(source, config, device, group.count))
        checkpoint = group.from_first(
            lambda: folder.begin(_settings(network, task, source, objective, config), config.resume) if folder else None
        )
        if checkpoint is not None:
            state.restore(checkpoint)
        if folder is not None:
            folder.start(state.records, state.checkpoint())
        data = _batches(source, config, device, start=state.batch)

        with Progress(plan.batches, config.progress and group.first, done=state.batch) as bar, closing(update):
            while state.batch < plan.batches:
                _seed(device, config.seed, state.batch, group.rank)
                batch, weight = (next(data), 1.0) if isinstance(source, Loader) else group.share(next(data))
                with rows_named(_names(source, config, state.batch, group)):
                    update(batch, weight, progress=state.batch / plan.batches, check=state.batch < plan.unseen)
                if bar.due(state.batch):
                    bar.show(state.batch, _summary(state))
                if plan.validates(state.batch) or plan.saves(state.batch):
                    state.collect()
                if plan.validates(state.batch):
                    record = group.from_first(lambda: _record(state, held_out, objective.rule, spike_rule))
                    better = state.add(record)
                    if folder is not None:
                        folder.write_record(record)
                        if better:
                            folder.write_model("best", state.model)
                if plan.saves(state.batch) and folder is not None:
                    folder.write_checkpoint(state.checkpoint())

        found = {"best": state.best_weights, "last": state.weights()}
        for name in ("last", "best") if config.finish_with == "best" else ("best", "last"):
            network.load_state_dict(found[name])
            if folder is not None:
                folder.write_model(name, network)
        if folder is not None:
            folder.finish()
    return History(state.records, state.best)


class _Step(nn.Module):
    """Network and objective as one module: distributed training acts on a module's `forward`."""

    def __init__(self, network: Network, objective: Objective, config: Training, device: torch.device):
        super().__init__()
        self.network, self.objective, self.engine, self.device = network, objective, config.engine, device
        self.precision = None if config.precision == "float32" else getattr(torch, config.precision)
        types = [part.dtype for part in network.parameters() if part.is_floating_point()]
        self.dtype = types[0] if types else torch.float32

    def forward(self, batch, progress: float, expected: Tensor | None, check: bool) -> tuple[Tensor, Decision]:
        with self.autocast():
            return self.objective(
                self.network, *batch, engine=self.engine, progress=progress, expected_steps=expected, check=check
            )

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.precision, enabled=self.precision is not None)

    def fixed(self, inputs: Tensor, progress: float) -> float | None:
        """What a batch depends on besides its tensors, which is β, if it goes from its inputs to the new weights
        without the host looking at anything on the way; None if not."""
        objective = self.objective
        if type(objective) not in OBJECTIVES or self.precision == torch.float16:
            return None
        with self.autocast():
            chosen = choose(self.network, inputs, objective.rule, self.engine).name
            if chosen != "triton" or not triton.can_be_recorded(self.network, inputs, objective.rule):
                return None
        return objective.beta_at(progress)


class _Update:
    """A batch, from its inputs to the new weights. Where that needs nothing from the host it is launched as a whole."""

    def __init__(self, step: nn.Module, state: TrainingState, answers: _Answers):
        self.step, self.state, self.answers = step, state, answers
        self.progress = 0.0
        self.alone = step if isinstance(step, _Step) and step.device.type == "cuda" else None  # not distributed
        self.recorded = Recorded(self._without_host, undo=state.optimizer.zero_grad)

    def __call__(self, batch: Batch, weight: float, progress: float, check: bool) -> None:
        state, self.progress = self.state, progress
        state.set_rate(state.config.rate_at(progress))
        index = self.answers.index(state.batch)
        if self.alone is not None:  # in the type that the network runs in
            batch = batch._replace(inputs=batch.inputs.to(self.alone.dtype))
        fixed = None if self.alone is None or check else self.alone.fixed(batch.inputs, progress)
        if fixed is None:
            self._run(batch, weight, index, check)
        else:
            self.recorded(fixed, *batch, index)
        state.batch += 1

    def close(self) -> None:
        self.recorded.close()

    def _without_host(self, inputs: Tensor, labels: Tensor, lengths: Tensor | None, index: Tensor | None) -> None:
        self._run(Batch(inputs, labels, lengths), 1.0, index, check=False)

    def _run(self, batch: Batch, weight: float, index: Tensor | None, check: bool) -> None:
        loss, decision = self.step(batch, self.progress, self.answers.expected(index), check)
        self.answers.note(index, decision)
        self.state.update(loss * weight)
        if weight > 0:
            self.state.count(batch.labels, loss, decision)


class _Answers:
    """Where each row of the data answered last, and so will probably answer next: engines on a GPU are faster for
    knowing it. It changes nothing else, so it is not part of a checkpoint."""

    def __init__(self, source: Source, config: Training, device: torch.device, processes: int):
        self.source = source if isinstance(source, Rows) and device.type == "cuda" and processes == 1 else None
        self.config, self.device = config, device
        if self.source is not None:
            self.steps = torch.zeros(self.source.size, dtype=torch.long, device=device)

    def index(self, batch: int) -> Tensor | None:
        """Which rows a batch holds, where that is known."""
        if self.source is None:
            return None
        return sent(self.source.index(batch, self.config.rows, self.config.seed), self.device)

    def expected(self, index: Tensor | None) -> Tensor | None:
        return None if index is None else self.steps[index]

    def note(self, index: Tensor | None, decision: Decision) -> None:
        if index is not None:
            self.steps[index] = decision.steps


class _Plan(NamedTuple):
    batches: int
    validate_every: int
    save_every: int
    unseen: int  # batches until the data has been looked at

    def validates(self, batch: int) -> bool:
        return batch % self.validate_every == 0 or batch == self.batches

    def saves(self, batch: int) -> bool:
        return batch % self.save_every == 0 or batch == self.batches


def _plan(source: Source, config: Training, processes: int) -> _Plan:
    """How many batches there are, and after which ones the model is validated and a checkpoint written.

    A data loader can only be started at the beginning of an epoch, so its checkpoints are written at the
    end of one; one that does not know its length counts as an endless stream.
    """
    epoch, size, rows = source.epoch(config.rows), getattr(source, "size", None), config.rows
    if isinstance(source, Loader):  # every process reads a batch of its own
        rows = (getattr(source.loader, "batch_size", None) or rows) * processes
    if epoch is None and config.epochs is not None:
        raise ValueError("this data has no epochs: give examples, how many rows to train on")
    if epoch is not None and config.examples is None:
        # A small data set needs more than 50 epochs: it is the number of updates that counts.
        batches = max(1, round((config.epochs or max(50, -(-UPDATES // epoch))) * epoch))
    elif epoch is not None and size is not None:  # the last batch of an epoch may be smaller
        epochs, rest = divmod(config.examples or 0, size)
        batches = epochs * epoch - (-rest // rows)
    else:
        batches = -(-(config.examples or 200_000) // rows)
    validate_every = config.validate_every or (epoch or 50) * (
        -(-20 // epoch) if epoch and config.epochs is None else 1
    )
    save_every = epoch if epoch and isinstance(source, Loader) else validate_every
    unseen = epoch if epoch and isinstance(source, Rows) else batches
    if isinstance(source, Generated):  # all of it comes from one function
        unseen = LOOKED_AT
    return _Plan(batches, validate_every, save_every, unseen)


def _spike_rule(network: Network, objective: Objective, config: Training) -> Rule:
    """The rule of first-spike inference: the objective's, or θ of its own where training never fires."""
    rule = Threshold(config.first_spike_threshold) if isinstance(objective.rule, Never) else objective.rule
    check_rule(rule, network.activation, network.classes)
    return rule


@contextmanager
def _training_mode(network: Network, device: torch.device) -> Iterator[None]:
    """On the device, in training mode; the caller's random state and the network's mode are given back."""
    training = network.training
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            network.to(device).train()
            yield
        finally:
            network.train(training)


def _seed(device: torch.device, *numbers: int) -> None:
    """Seed what layers and loaders draw from; other devices' generators are the caller's."""
    seed = int(np.random.SeedSequence((*numbers, 2)).generate_state(1, np.uint64)[0] % 2**63)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def _size_lazy_layers(network: Network, source: Source, config: Training, device: torch.device) -> None:
    """Lazy layers get their size, and their weights, from a first look at the data."""
    _seed(device, config.seed)
    if any(isinstance(parameter, UninitializedParameter) for parameter in network.parameters()):
        inputs, _, lengths = next(source.batches(config.rows, config.seed, device))
        decide(network, inputs[:1], None if lengths is None else lengths[:1], Never())


def _batches(source: Source, config: Training, device: torch.device, start: int) -> Iterator[Batch]:
    if start > 0 and isinstance(source, Loader) and source.epoch(config.rows) is None:
        warnings.warn("the data loader does not say how long it is: it starts again from its beginning", stacklevel=3)
    return source.batches(config.rows, config.seed, device, start)


def _names(source: Source, config: Training, batch: int, group: Processes) -> Callable[[int], str]:
    """What to call a row of a training batch: by its place in the data, where that is known."""
    if not isinstance(source, Rows):
        return lambda row: f"row {row} of training batch {batch}"

    def name(row: int) -> str:
        index = source.index(batch, config.rows, config.seed)
        place = group.rank + row * group.count if group.rank < len(index) else row  # in the whole batch
        return f"row {int(index[place])} of the training data"

    return name


def _summary(state: TrainingState) -> str:
    means = state.means()
    return f"loss {means['loss']:.4f}  accuracy {100 * means['accuracy']:.2f} %  steps read {means['mean_steps']:.2f}"


def _record(state: TrainingState, held_out: Source | None, rule: Rule, spike_rule: Rule) -> dict[str, Any]:
    """One line of the history: training since the last one, and validation now."""
    means = state.means()
    if not math.isfinite(means["loss"]):
        raise ValueError(f"the loss is no longer a number at batch {state.batch}: lower the rate or clip")
    record: dict[str, Any] = {
        "batch": state.batch,
        "examples": state.examples + int(state.sums[0]),
        "seconds": state.seconds,
        "training_seconds": state.training_seconds,
        "rate": state.rate,
        "training": means,
    }
    if held_out is not None:
        engine = state.config.engine
        report = evaluate(state.model, held_out, rule, engine=engine)
        spikes = report if spike_rule is rule else evaluate(state.model, held_out, spike_rule, engine=engine)
        record |= {"validation": report.as_dict(), "first_spike": spikes.as_dict()}
    return json.loads(json.dumps(record))  # exactly what metrics.jsonl gives back


def _settings(network: Network, task: Any, source: Source, objective: Objective, config: Training) -> dict[str, Any]:
    """What defines a run, as JSON."""
    if is_dataclass(task):
        data = {field.name: _describe(getattr(task, field.name)) for field in fields(task)}
    else:
        arrays = isinstance(source, Arrays)
        data = {"inputs": list(source.inputs.shape), "fingerprint": source.fingerprint()} if arrays else {}
    return {"task": {"name": str(getattr(task, "name", "own data")), **data}, **described(network, objective, config)}


def described(network: Network, objective: Objective, config: Training) -> dict[str, Any]:
    """A training apart from its data, as JSON."""
    training = {field.name: _describe(getattr(config, field.name)) for field in fields(config)}
    own = {} if type(objective) in OBJECTIVES else {"rule": _describe(objective.rule)}
    return {
        "network": describe(network),
        "objective": _describe(objective) | own,
        "training": {name: value for name, value in training.items() if name not in Training.WHERE},
    }


def _describe(part: Any) -> Any:
    """A dataclass by name and fields; anything else by its name and those attributes that are plain, or rules."""
    if part is None or isinstance(part, str | bool):
        return part
    if isinstance(part, Number):
        return getattr(part, "item", lambda: part)()  # NumPy's numbers as Python's
    if isinstance(part, tuple | list):
        return [_describe(item) for item in part]
    name = type(part).__name__
    if not is_dataclass(part):
        held = getattr(part, "__dict__", {}).items()
        plain = {key: each for key, each in held if isinstance(each, Number | str | Rule) and not key.startswith("_")}
        return {"own": getattr(part, "__qualname__", name), **{key: _describe(each) for key, each in plain.items()}}
    return {"kind": name, **{field.name: _describe(getattr(part, field.name)) for field in fields(part)}}
