"""The model for a set of labelled series: which network, fitted how, and when it answers.

`rankcode train FILE` and `rankcode.EarlyClassifier` both come here, so they give the same model.
"""

from __future__ import annotations

import os
import warnings
from contextlib import closing, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rankcode.data import BadData
from rankcode.data.sources import Batch
from rankcode.engines.cpu_settings import single_thread_if
from rankcode.front_ends import Standardise
from rankcode.network import Network
from rankcode.objectives import UntilSpike
from rankcode.saving.description import describe
from rankcode.saving.run_folder import RunFolder
from rankcode.stopping import Tuning, Wish, tune_on
from rankcode.stopping.second_axis import traces_with_axis
from rankcode.stopping.traces import Traces, traces_of
from rankcode.stopping.tuning import MIN_ROWS
from rankcode.tasks import OwnData
from rankcode.training.baselines import nearest_neighbour
from rankcode.training.config import Training
from rankcode.training.distributed import own_device
from rankcode.training.ensemble import fit_ensemble
from rankcode.training.fit_kernels import fit_kernels
from rankcode.training.loop import fit
from rankcode.training.recipes import recipe
from rankcode.training.standard_network import standard_network

ModelName = Literal["auto", "kernels", "recurrent", "ensemble"]
Candidate = tuple[Network, Traces]  # and what it says about rows that it was not fitted to
MANY_ROWS = 2000  # from here on `auto` tries all models on held-out rows; with fewer, kernels win (docs/compare.md)
VALIDATION_SHARE = 0.2
COPIES = 8  # of padded rows in float32, that are in memory at once: mostly in `merged`
PARALLEL_ROWS = 1000  # for fewer, a second thread or a GPU costs more than it gains, above all on a busy machine


class LabelledSeries(NamedTuple):
    """Series [rows, steps, channels], padded, with their lengths and labels 0…classes − 1."""

    values: Tensor
    lengths: Tensor
    labels: Tensor

    def rows(self, index: Tensor) -> LabelledSeries:
        return LabelledSeries(*(part[index] for part in self))


@dataclass(frozen=True)
class SeriesModel:
    """A network with its front end and rule, what the rule promises, and simple classifiers on the same rows."""

    network: Network
    tuning: Tuning
    model: Literal["kernels", "recurrent", "ensemble"]
    held_out: Traces  # what the rule was fitted to
    majority: float  # share of the most frequent class
    nearest_neighbour: float  # accuracy of the class of the nearest other row, whole rows compared
    compared: dict[str, Tuning]  # with `auto`, what each model that was tried promises, on the same rows


def fit_series(
    train: LabelledSeries,
    names: tuple[str, ...],
    wish: Wish,
    model: ModelName = "auto",
    weights: Tensor | None = None,
    validation: LabelledSeries | None = None,
    seed: int = 0,
    progress: bool = False,
    device: str = "auto",
) -> SeriesModel:
    """Fit a network, which is on the CPU afterwards, and its rule. Without `validation`, kernels use held-out
    predictions and a recurrent network sets a fifth of the rows aside. An ensemble consists of these two networks;
    `auto` compares the three on the same rows."""
    if model not in get_args(ModelName):
        raise ValueError(f"model must be auto, kernels, recurrent or ensemble, not {model!r}")
    if len(names) < 2:
        raise ValueError("the data has only one class: there is nothing to tell apart")
    weights = torch.ones(len(train.labels), dtype=torch.float64) if weights is None else weights.double()
    counts = torch.bincount(train.labels, weights.clamp(min=1), minlength=len(names))
    if float(counts.min()) < 2:
        raise ValueError(f"class {names[int(counts.argmin())]!r} has a single row: every class needs at least two")
    weight, unequal = weights[0], bool((weights != weights[0]).any())
    if unequal and model in ("recurrent", "ensemble"):
        raise ValueError("weights of rows and classes need model='kernels'")
    train, weights = merged(train, weights)
    if model == "auto" and (unequal or len(train.labels) < MANY_ROWS):
        model = "kernels"
    front_end = weighted_standardise(train, weights)
    ready = train._replace(values=front_end(train.values)[0].float())
    held = None if validation is None else validation._replace(values=front_end(validation.values)[0].float())
    if held is None:
        apart = _set_aside(ready.labels, seed)
        part, tried, copies = ready.rows(~apart), ready.rows(apart), weights[~apart] / weight
    else:
        apart, part, tried, copies = torch.ones(len(held.labels)).bool(), ready, held, weights / weight

    if model in ("recurrent", "ensemble") and int(apart.sum()) < MIN_ROWS:
        raise ValueError(f"model {model} needs at least {MIN_ROWS} held-out rows, not {int(apart.sum())}: use kernels")

    def kernels() -> Candidate:
        on = own_device("cpu" if device == "auto" and len(ready.labels) < PARALLEL_ROWS else device)
        values, lengths, labels = (part.to(on) for part in ready)
        found = fit_kernels(values, lengths, labels, len(names), weights, seed, progress=progress)
        left_out = found.left_out.cpu()
        traces = Traces(left_out, left_out, found.network.checkpoints or (), ready.lengths, ready.labels, weights)
        if held is not None:
            traces = traces_of(found.network, _arrays(held))
        return found.network, traces

    def recurrent() -> Candidate:
        settings = recipe("default", len(part.labels))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            shape = SimpleNamespace(input_shape=(part.values.shape[2],), num_classes=len(names))
            network = standard_network(shape, settings.cell, settings.hidden_size)
        training = Training(seed=seed, progress=progress, device=device)
        rows = part.rows(torch.arange(len(copies)).repeat_interleave(copies.round().long()))  # as they were given
        with warnings.catch_warnings():  # it recommends settings that are not given here
            warnings.filterwarnings("ignore", "at half of the training")
            fit(network, _arrays(rows), UntilSpike(0.95), training, validation=_arrays(tried))
        return network, traces_with_axis(network, _arrays(tried))

    def tuned(name: str, traces: Traces) -> Tuning:
        if name == "recurrent":
            return tune_on(traces, wish)
        # Left-out predictions are calibrated, and so is an ensemble by its weights.
        return tune_on(traces, wish, "optimal", temperatures=name == "kernels" and held is not None)

    found: dict[Any, Candidate] = {}
    with single_thread_if(model == "kernels" and len(ready.labels) < PARALLEL_ROWS):
        if model != "recurrent":
            found["kernels"] = kernels()
        if model != "kernels":
            found["recurrent"] = recurrent()
        if len(found) == 2:
            (one, left_out), (other, _) = found.values()
            at_checkpoints = traces_of(other, _arrays(tried), steps=left_out.steps)
            found["ensemble"] = fit_ensemble((one, left_out.rows(apart)), (other, at_checkpoints))
        chosen: Any = model
        tunings: dict[Any, Tuning] = {}
        if model == "auto":
            for name, (_, traces) in found.items():
                with suppress(ValueError):  # a model that cannot meet the wish is left out
                    tunings[name] = tuned(name, traces.rows(apart) if name == "kernels" else traces)
            chosen = max(tunings, key=lambda name: tunings[name].worth, default="ensemble")
        network, traces = found[chosen]
        tuning = tunings[chosen] if chosen in tunings and chosen != "kernels" else tuned(chosen, traces)
    network.cpu().front_end, network.label_names, network.rule = front_end, names, tuning.rule
    majority = float((torch.bincount(ready.labels, weights).max() / weights.sum()).item())
    neighbour = nearest_neighbour(Batch(ready.values, ready.labels, ready.lengths))
    return SeriesModel(network, tuning, chosen, traces, majority, neighbour, tunings)


def merged(series: LabelledSeries, weights: Tensor) -> tuple[LabelledSeries, Tensor]:
    """Rows that are the same in everything as one row with the sum of their weights: one of them would say too much
    about another that is left out."""
    real = (torch.arange(series.values.shape[1]) < series.lengths[:, None])[:, :, None]
    flat = series.values.where(real, 0.0).flatten(1).double()
    keys = torch.cat([series.labels[:, None], series.lengths[:, None], flat], 1).numpy()
    _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    total = torch.bincount(torch.from_numpy(group.reshape(-1)), weights)
    return series.rows(torch.from_numpy(first)), total


def weighted_standardise(series: LabelledSeries, weights: Tensor) -> Standardise:
    """Standardises with the mean and standard deviation of all steps of all rows, a row of weight 2 like two rows."""
    real = (torch.arange(series.values.shape[1]) < series.lengths[:, None])[:, :, None]
    real = real & ~series.values.isnan()
    values = series.values.double().where(real, 0.0)
    count = (weights[:, None] * real.sum(1)).sum(0).clamp(min=1)
    mean = (values.sum(1) * weights[:, None]).sum(0) / count
    squares = ((values - mean).square() * real).sum(1)
    std = ((squares * weights[:, None]).sum(0) / count).sqrt()
    varies = std > 1e-12 * (1 + mean.abs())
    if not varies.any():
        raise ValueError("every channel is constant: there is nothing to tell the classes apart by")
    std = torch.where(varies, std, 1.0)
    return Standardise(tuple(mean.tolist()), tuple(std.tolist()))


def fit_task(
    task: OwnData,
    wish: Wish,
    model: ModelName,
    seed: int,
    folder: str,
    progress: bool = True,
    device: str = "auto",
) -> SeriesModel:
    """Fit to the training and validation rows of a user's series, and keep the model in a run folder."""
    splits = [split for split in (task.train, task.validation) if split is not None]
    size = sum(split.size for split in splits) * max(int(split.lengths.max()) for split in splits)
    needed = COPIES * 4 * size * task.input_shape[0]
    if needed > physical_memory():
        raise BadData(f"{task.path}: fitting takes about {needed / 1e9:.0f} GB: use model=recurrent")
    parts = [split.take(torch.arange(split.size), "cpu") for split in splits]
    steps = max(part.inputs.shape[1] for part in parts)
    values = torch.cat([F.pad(part.inputs, (0, 0, 0, steps - part.inputs.shape[1])) for part in parts])
    lengths = torch.cat([part.lengths for part in parts if part.lengths is not None])
    rows = LabelledSeries(values, lengths, torch.cat([part.labels for part in parts]))
    if int(torch.bincount(rows.labels).min()) < 2 and len(rows.labels) < MANY_ROWS:
        name = task.label_names[int(torch.bincount(rows.labels).argmin())]
        raise BadData(f"{task.path}: class {name!r} has a single row, and kernels need two: use model=recurrent")
    with closing(RunFolder(folder)) as run:
        run.begin({"task": describe(task)}, resume=False)
        try:
            found = fit_series(rows, task.label_names, wish, model, seed=seed, progress=progress, device=device)
            found.network.front_end = cast(Standardise, found.network.front_end).reading(task.columns)
            fitted = {"model": found.model, "wish": wish.given, "seed": seed}
            run.write_fitted({"network": describe(found.network), "fit": fitted}, found.network, found.held_out)
        except BaseException:
            run.discard_if_new()
            raise
    return found


def physical_memory() -> float:
    """Of this machine in bytes; infinite where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # on Windows
        return float("inf")


def _arrays(series: LabelledSeries) -> tuple[Tensor, Tensor, Tensor]:
    return series.values, series.labels, series.lengths


def _set_aside(labels: Tensor, seed: int) -> Tensor:
    """True for a fifth of the rows of each class, at least one and never all."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    one_hot = F.one_hot(labels[order])
    rank = (one_hot.cumsum(0) * one_hot).sum(1) - 1
    count = one_hot.sum(0)[labels[order]]
    apart = torch.zeros(len(labels), dtype=torch.bool)
    apart[order] = rank < (count * VALIDATION_SHARE).round().clamp(min=1)
    return apart
