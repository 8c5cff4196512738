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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import UninitializedParameter

from rankcode.checks import check_rows_apart, rows_named
from rankcode.data.sources import Arrays, Batch, Loader, Rows, Source, as_source, split_of
from rankcode.front_ends import front_end_of
from rankcode.inference import decide
from rankcode.metrics import evaluate
from rankcode.network import Network
from rankcode.objectives import Objective
from rankcode.progress import Progress
from rankcode.rules import Never, Rule, Threshold, check_rule
from rankcode.saving.description import RULES, describe
from rankcode.saving.run_folder import RunFolder
from rankcode.training.config import Training, described
from rankcode.training.distributed import Processes, own_device, processes
from rankcode.training.plan import make_plan
from rankcode.training.state import TrainingState
from rankcode.training.step import Answers, Step, Update


@dataclass(frozen=True)
class History:
    """What training went through: a record for each validation, and the best of them.

    A record holds batch, examples, seconds, learning_rate, means over the batches since the last record
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
    network.label_names = tuple(names) if names and len(names) == network.num_classes else network.label_names
    network.rule = objective.rule if type(objective.rule) in RULES.values() and objective.rule != Never() else None
    source = split_of(task, "train")
    network.front_end = getattr(task, "front_end", None) or front_end_of(source) or network.front_end
    held_out = as_source(task.validation) if getattr(task, "validation", None) is not None else None
    spike_rule = _spike_rule(network, objective, config)
    group = processes(device)
    kept = config.folder is not None and group.first
    keeper = closing(RunFolder(config.folder, config.tensorboard)) if kept else nullcontext()  # type: ignore[arg-type]
    with _training_mode(network, device), keeper as folder:
        check_rows_apart(network)
        plan = group.from_first(lambda: make_plan(source, config, group.count))
        _size_lazy_layers(network, source, config, device)
        step = group.wrap(Step(network, objective, config, device), device)
        state = TrainingState(network, config, group, device)
        update = Update(step, state, Answers(source, config, device, group.count))
        checkpoint = group.from_first(
            lambda: folder.begin(_settings(network, task, source, objective, config), config.resume) if folder else None
        )
        if checkpoint is not None:
            state.restore(checkpoint, Path(config.folder or "") / "checkpoint.pt")
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


def _spike_rule(network: Network, objective: Objective, config: Training) -> Rule:
    """The rule of first-spike inference: the objective's, or θ of its own where training never fires."""
    rule = Threshold(config.first_spike_threshold) if isinstance(objective.rule, Never) else objective.rule
    check_rule(rule, network.activation, network.num_classes)
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
        inputs, _, lengths = next(source.batches(config.batch_size, config.seed, device))
        decide(network, inputs[:1], None if lengths is None else lengths[:1], Never())


def _batches(source: Source, config: Training, device: torch.device, start: int) -> Iterator[Batch]:
    if start > 0 and isinstance(source, Loader) and source.epoch(config.batch_size) is None:
        warnings.warn("the data loader does not say how long it is: it starts again from its beginning", stacklevel=3)
    return source.batches(config.batch_size, config.seed, device, start)


def _names(source: Source, config: Training, batch: int, group: Processes) -> Callable[[int], str]:
    """What to call a row of a training batch: by its place in the data, where that is known."""
    if not isinstance(source, Rows):
        return lambda row: f"row {row} of training batch {batch}"

    def name(row: int) -> str:
        index = source.index(batch, config.batch_size, config.seed)
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
        raise ValueError(f"the loss is no longer a number at batch {state.batch}: lower learning_rate or max_grad_norm")
    record: dict[str, Any] = {
        "batch": state.batch,
        "examples": state.examples + int(state.sums[0]),
        "seconds": state.seconds,
        "training_seconds": state.training_seconds,
        "learning_rate": state.learning_rate,
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
    data = {"own": type(task).__name__} if isinstance(task, tuple | list) else describe(task)
    if "own" in data and isinstance(source, Arrays):
        data |= {"inputs": list(source.inputs.shape), "fingerprint": source.fingerprint()}
    return {"task": data, **described(network, objective, config)}
