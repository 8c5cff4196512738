"""The training loop: `fit`, on one screen.

Every random choice of batch n comes from the seed and n alone, so that a run that was cut off and resumed ends with the
same weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn.parameter import UninitializedParameter

from rankcode.checks import check_rows_apart, is_clean, rows_named
from rankcode.data.sources import Arrays, Batch, Loader, Rows, Source, as_source, seed_of, sent, split_of
from rankcode.front_ends import front_end_of
from rankcode.inference import decide
from rankcode.network import Network
from rankcode.objectives import Objective
from rankcode.progress import Progress
from rankcode.rules import Never, Rule, Threshold, check_rule
from rankcode.saving.description import RULES, describe
from rankcode.saving.run_folder import RunFolder
from rankcode.training.batch_update import Answers, Share, Step, Update
from rankcode.training.config import Training, described
from rankcode.training.distributed import Processes, processes
from rankcode.training.out_of_memory import memory_for
from rankcode.training.plan import make_plan
from rankcode.training.records import History, make_record, near_majority, problem_of
from rankcode.training.state import TrainingState


def fit(
    network: Network,
    task: Any,
    objective: Objective,
    config: Training | None = None,
    *,
    validation: Any = None,
    stop: Callable[[Network, dict[str, Any]], bool] | None = None,
) -> History:
    """Train a network in place.

    `task` is a task of rankcode, (inputs, labels[, lengths]) arrays, a DataLoader, or any object whose `train` and, if
    it has one, `validation` is one of these. `validation`, of the same kinds, takes the place of the task's validation
    data. Without validation data the last weights are kept. `stop` is called after each validation with the validated
    model and its record; training ends there if it returns True, and can be resumed.
    """
    config = config or Training()
    device = _checked(network, objective, config)
    source = split_of(task, "train")
    held_out = _validation_of(task) if validation is None else split_of(validation, "validation")
    _set_extras(network, task, source, objective)
    config = config.for_data(getattr(source, "size", None), network.front_end)
    spike_rule = _spike_rule(network, objective, config)
    group = processes(device)
    with group.together(), _training_mode(network, device), _folder(config, group) as folder:
        check_rows_apart(network)
        plan = group.from_first(lambda: make_plan(source, config, group.count))
        rows = source.rows if isinstance(source, Loader) else None
        if rows is not None and is_clean(Batch(*rows.columns()), network.num_classes, network.dtype):
            plan = plan._replace(checked_batches=0)
        _size_lazy_layers(network, source, config, device)
        step = group.wrap(Step(network, objective, config, device), device)
        state = TrainingState(network, config, group, device)
        answers = Answers(source, config, device, used=device.type == "cuda" and group.count == 1)
        update = Update(step, state, answers, source)

        def settings() -> dict[str, Any]:
            data = _described_data(task, source, held_out, validation is not None)
            return {"task": data, **described(network, objective, config), "batches": plan.batches}

        checkpoint = group.from_first(lambda: folder.begin(settings(), config.resume) if folder else None)
        if checkpoint is not None:
            state.restore(checkpoint)
        if folder is not None:
            folder.start(state.records, state.checkpoint())
        data = _batches(source, config, device, start=state.batch)

        with Progress(plan.batches, config.progress and group.first, done=state.batch) as bar, closing(update):
            stopped = False
            while state.batch < plan.batches and not stopped:
                with rows_named(_names(source, config, state.batch, group)):
                    update(
                        lambda: _next_share(data, source, state, device),
                        state.batch / plan.batches,
                        check=state.batch < plan.checked_batches,
                    )
                if bar.due(state.batch):
                    bar.show(state.batch, state.summary())
                if plan.validates(state.batch) or plan.saves(state.batch):
                    state.collect()
                if plan.validates(state.batch):
                    record = group.from_first(lambda: make_record(state, held_out, objective.rule, spike_rule))
                    better = state.add(record)
                    if folder is not None:
                        folder.write_record(record)
                        if better:
                            folder.write_model("best", state.model)
                    if plan.is_halfway(state.batch) and group.first and (slow := near_majority(record, source)):
                        warnings.warn(f"at half of the training {slow}", stacklevel=2)
                    stopped = stop is not None and group.from_first(partial(stop, state.model, record))
                if plan.saves(state.batch) and folder is not None:
                    folder.write_checkpoint(state.checkpoint())
        _finish(state, folder)
    return History(state.records, state.best, problem_of(state.kept_record, objective.rule, source))


def _checked(network: Any, objective: Any, config: Any) -> torch.device:
    """Check the arguments of `fit` that are not data; the device to train on."""
    if not (isinstance(network, Network) and isinstance(objective, Objective) and isinstance(config, Training)):
        raise ValueError("fit takes a Network, a task, an objective such as AtSpike(0.95), and a Training")
    objective.check()
    if config.tensorboard and config.folder is None:
        raise ValueError("tensorboard needs a folder: name it with folder=…")
    return config.own_device()


def _validation_of(task: Any) -> Source | None:
    return as_source(task.validation) if getattr(task, "validation", None) is not None else None


def _set_extras(network: Network, task: Any, source: Source, objective: Objective) -> None:
    """What a network keeps of its training: names of the classes, a front end and a rule, which are saved with it."""
    names = getattr(task, "label_names", None)
    if names and len(names) == network.num_classes:
        network.label_names = tuple(names)
    network.front_end = getattr(task, "front_end", None) or front_end_of(source) or network.front_end
    fires = type(objective.rule) in RULES.values() and not isinstance(objective.rule, Never)
    network.rule = objective.rule if fires else None


def _spike_rule(network: Network, objective: Objective, config: Training) -> Rule:
    """The rule of first-spike inference: the objective's, or a threshold where training never fires."""
    rule = Threshold(config.first_spike_threshold) if isinstance(objective.rule, Never) else objective.rule
    check_rule(rule, network.activation, network.num_classes)
    return rule


@contextmanager
def _training_mode(network: Network, device: torch.device) -> Iterator[None]:
    """On the device and in training mode. Restores the caller's random state and the network's mode."""
    training = network.training
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        memory_for("training", "choose a smaller batch_size or hidden_size"),
    ):
        try:
            network.to(device).train()
            yield
        finally:
            network.train(training)


@contextmanager
def _folder(config: Training, group: Processes) -> Iterator[RunFolder | None]:
    """The run folder, in the first process; closed at the end."""
    if config.folder is None or not group.first:
        yield None
        return
    folder = RunFolder(config.folder, config.tensorboard)
    try:
        yield folder
    except Exception:
        folder.discard_if_new()
        raise
    finally:
        folder.close()


def _described_data(task: Any, source: Source, held_out: Source | None, given: bool) -> dict[str, Any]:
    """What a run was trained on, as JSON. Arrays are named by their shape and a fingerprint. `given`: validation data
    was given apart from the task."""
    data: dict[str, Any] = {"custom": type(task).__name__} if isinstance(task, tuple | list) else describe(task)
    custom = "custom" in data
    if custom and isinstance(source, Arrays):
        data |= _described_arrays(source)
    if (custom or given) and isinstance(held_out, Arrays):
        data["validation"] = _described_arrays(held_out)
    return data


def _described_arrays(source: Arrays) -> dict[str, Any]:
    return {"inputs": list(source.inputs.shape), "fingerprint": source.fingerprint()}


def _seed(device: torch.device, *numbers: int) -> None:
    """Seed the generators that layers and loaders draw from; those of other devices are left alone."""
    seed = seed_of(*numbers, 2)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def _next_share(data: Iterator[Batch], source: Source, state: TrainingState, device: torch.device) -> Share:
    """The rows of the next batch that this process trains on, with noise, and their weight; all rows of a loader.

    Noise and augmentation are those of a single process, whatever the number of processes: they need all rows of the
    batch. Layers such as dropout differ in each process.
    """
    config, group, own = state.config, state.group, isinstance(source, Loader)
    if group.count > 1 and isinstance(source, Rows) and source.augment is None and not config.input_noise:
        _seed(device, config.seed, state.batch, group.rank)
        index, weight = group.own_rows(source.index(state.batch, config.batch_size, config.seed))
        return Share(source.encoded(source.take(index, device)), weight)
    _seed(device, config.seed, state.batch, group.rank if own else 0)
    if isinstance(source, Rows):
        batch = source.batch(state.batch, config.batch_size, config.seed, device)
    else:
        batch = next(data)
    network, waits = state.network, device.type == "cuda" and batch.inputs.device.type == "cpu"
    checked = waits and is_clean(batch, network.num_classes, network.dtype)
    if own:
        batch = Batch(*(sent(part, device) for part in batch if part is not None))
    if config.input_noise:
        inputs = batch.inputs if batch.inputs.is_floating_point() else batch.inputs.float()
        batch = batch._replace(inputs=inputs + config.input_noise * torch.randn_like(inputs))
    if own:
        return Share(batch, 1.0, checked)
    if not group.first:
        _seed(device, config.seed, state.batch, group.rank)
    return Share(*group.share(batch))


def _size_lazy_layers(network: Network, source: Source, config: Training, device: torch.device) -> None:
    """Run lazy layers once, so that they get their size and weights."""
    _seed(device, config.seed)
    if any(isinstance(parameter, UninitializedParameter) for parameter in network.parameters()):
        first = next(source.batches(config.batch_size, config.seed, device)).rows(slice(1))
        decide(network, first.inputs, first.lengths, Never())


def _batches(source: Source, config: Training, device: torch.device, start: int) -> Iterator[Batch]:
    if start > 0 and isinstance(source, Loader) and source.epoch(config.batch_size) is None:
        warnings.warn("the data loader does not know its length: it starts again from its beginning", stacklevel=3)
    if isinstance(source, Loader) and source.rows is None:
        # Checked on the CPU and then sent, without waiting for a GPU.
        return source.batches(config.batch_size, config.seed, None, start)
    return source.batches(config.batch_size, config.seed, device, start)


def _names(source: Source, config: Training, batch: int, group: Processes) -> Callable[[int], str]:
    """What to call a row of a training batch: its place in the data, where that is known."""
    if not isinstance(source, Rows):
        return lambda row: f"row {row} of training batch {batch}"

    def name(row: int) -> str:
        index = source.index(batch, config.batch_size, config.seed)
        place = group.rank + row * group.count if group.rank < len(index) else row  # in the whole batch
        return f"row {int(index[place])} of the training data"

    return name


def _finish(state: TrainingState, folder: RunFolder | None) -> None:
    """Load the best or the last weights into the network, and save both."""
    found = {"best": state.best_weights, "last": state.weights()}
    for name in ("last", "best") if state.config.finish_with == "best" else ("best", "last"):
        state.network.load_state_dict(found[name])
        if folder is not None:
            folder.write_model(name, state.network)
    if folder is not None:
        folder.finish()
