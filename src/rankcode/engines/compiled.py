"""LSTM and GRU on a CPU, in C: steps, readout and rule in one call.

Up to 48 rows are read at once. When one answers, the next row takes its place, so time follows the sum of steps read,
however the answers are distributed. The backward pass works in the same way, from each row's answer to its first step;
the gradients of the weights are matrix multiplications over the steps that were read.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rankcode.compiled.layer import Layer, checked
from rankcode.compiled.library import functions
from rankcode.decision import Decision
from rankcode.engines.cpu_settings import is_small, single_thread_if
from rankcode.engines.run import (
    Keep,
    Run,
    decide_rows,
    layers_of,
    planted_steps,
    readout_of,
    table_of,
    why_not_fused,
)
from rankcode.network import Network
from rankcode.rules import Rule

ACTIVATIONS = ("relu", "tanh", "sigmoid")  # of a readout's hidden layer, as in recurrence.c


def can_run(network: Network, inputs: Tensor, rule: Rule) -> str | None:
    if functions() is None:
        return "it was not compiled when rankcode was installed: install a C compiler, then rankcode again"
    if inputs.device.type != "cpu":
        return f"the inputs are on {inputs.device}"
    layers = layers_of(network)
    if layers is None or layers.below:
        return "it runs LSTMs and GRUs, in a stack only those of one kind and size"
    if inputs.dtype != torch.float32:
        return f"it runs float32, the network is {inputs.dtype}"
    if torch.is_autocast_enabled("cpu"):
        return "it does not support mixed precision"
    return why_not_fused(network, rule)


def run(
    network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep, expected_steps: Tensor | None = None
) -> Run:
    # PyTorch computes a small readout, and its loss, in one thread; the steps have all threads.
    threads, entries = torch.get_num_threads(), len(inputs) * (inputs.shape[1] if keep == "read" else 1)
    one_thread = threads > 1 and not inputs.requires_grad
    if one_thread:
        one_thread = is_small(sum(part.numel() for part in network.readout.parameters()), entries)
    if not one_thread:
        return _run(network, inputs, lengths, rule, keep, threads)
    with single_thread_if(True):
        return _run(network, inputs, lengths, rule, keep, threads)._replace(one_thread=True)


def _run(network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep, threads: int) -> Run:
    rows, planted, cells = len(inputs), planted_steps(rule, lengths), layers_of(network).top  # type: ignore[union-attr]
    lowest, *above = [cell.weights(number) for cell in cells for number in range(cell.num_layers)]
    weights = [*lowest, *chain(*above)]
    gradients = torch.is_grad_enabled() and any(part.requires_grad for part in (inputs, *weights))
    ends = lengths if planted is None else planted.minimum(lengths)
    layer = Layer(lowest, inputs, ends, threads, every_step=keep == "read", saves=gradients, above=above)
    ruled = _add_rule(layer, network, rule) if planted is None else None
    if ruled is not None:
        ends = ruled.decision.steps
    if gradients:
        features, place = _Features.apply(layer, ends, inputs, *weights)  # type: ignore[misc]
    else:
        features, place = _read(layer, ends)
    logits = network.logits(features) if ruled is None or keep == "read" or torch.is_grad_enabled() else ruled.logits
    if ruled is None:
        last = torch.searchsorted(place, (ends - 1) * rows + torch.arange(rows)) if keep == "read" else slice(None)
        decision = decide_rows(network, rule, logits.detach()[last], ends, ends == planted)
    elif getattr(rule, "classes", None) is None:
        decision = ruled.decision
    else:  # a row that has fired is labelled with a class that may fire
        decision = decide_rows(network, rule, ruled.logits, ends, ruled.decision.fired)
    if keep == "answer":
        return Run(decision, logits, torch.arange(rows), ends, lengths, keep)
    return Run(decision, logits, place % rows, place // rows + 1, lengths, keep)


class _Ruled(NamedTuple):
    """What the steps will write: the decision, with the most likely class as label, and the logits of the answers."""

    decision: Decision
    logits: Tensor


def _add_rule(layer: Layer, network: Network, rule: Rule) -> _Ruled:
    """Read until the rule fires."""
    job, (rows, steps, _) = layer.job, layer.inputs.shape
    inner, activation, last = readout_of(network)  # type: ignore[misc]
    classes = job.classes = network.num_classes
    job.one_output, job.padded_classes, size = network.activation == "sigmoid", layer.padded(classes), job.units
    parts = []
    if inner is not None:
        size = job.inner = inner.out_features
        job.padded_inner, job.activation = layer.padded(size), ACTIVATIONS.index(activation)
        parts = [checked(inner.weight, size, job.units), checked(inner.bias, size)]
        job.inner_weight, job.inner_bias = (part.data_ptr() for part in parts)
    parts += [checked(last.weight, network.outputs, size), checked(last.bias, network.outputs)]
    job.last_weight, job.last_bias = (part.data_ptr() for part in parts[-2:])
    padding = job.padded_classes - classes
    table = checked(
        table_of(rule, steps, classes, torch.float32, layer.inputs.device, padding), steps, classes + padding
    )
    job.table = table.data_ptr()
    layer.kept += [*parts, table]
    decision = Decision(
        label=layer.memory("label", rows, dtype=torch.int64),
        steps=layer.memory("answered", rows, dtype=torch.int64),
        fired=layer.memory("fired", rows, dtype=torch.bool),
        probabilities=layer.memory("probabilities", rows, classes),
    )
    layer.answered = decision.steps
    return _Ruled(decision, layer.memory("logits", rows, classes))


def _read(layer: Layer, answered: Tensor) -> tuple[Tensor, Tensor]:
    """The features of each row's answer or, if the layer has those of every step, of every step read with its place:
    step · rows + row, with steps counted from 0."""
    features = layer.read()
    if not layer.every_step:
        return features, torch.empty(0, dtype=torch.int64)
    place = (torch.arange(len(features))[:, None] < answered).flatten().nonzero()[:, 0]
    return features.flatten(0, 1).index_select(0, place), place


class _Features(torch.autograd.Function):
    """`_read`, with gradients."""

    @staticmethod
    def forward(ctx: Any, layer: Layer, answered: Tensor, inputs: Tensor, *weights: Tensor):  # type: ignore[override]
        features, place = _read(layer, answered)
        ctx.mark_non_differentiable(place)
        ctx.layer = layer
        # The chunks are saved so that PyTorch knows of their memory.
        ctx.save_for_backward(place, inputs, *weights, *layer.chunks)
        return features, place

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor):  # type: ignore[override]
        saved, layer = ctx.saved_tensors, ctx.layer  # an error if they are gone, or were changed in place
        place, inputs = saved[:2]
        if layer.every_step:
            every = torch.empty(inputs.shape[0] * inputs.shape[1], gradient.shape[1])  # those not read take no place
            gradient = every.index_copy_(0, place, gradient)
        if ctx.needs_input_grad[2]:
            layer.of_inputs = torch.zeros_like(inputs, memory_format=torch.contiguous_format)
        of_weights = layer.gradients(gradient)
        return None, None, layer.of_inputs, *of_weights
