"""A step as an ONNX graph, without anything that only a debugger needs."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankcode.export.step import Step

if TYPE_CHECKING:
    from onnx import ModelProto

OPSETS = range(18, 24)  # that PyTorch's exporter writes, and that onnxruntime and onnxruntime-web run
MAX_FOLDED = 2048  # values of a constant that is stored; larger ones are made of smaller ones when a graph is loaded
MAX_REASON = 300  # characters of the message of PyTorch
OUTPUTS = ("probabilities", "fired", "label")
METADATA = "rankcode"  # the key


def graph_of(step: Step, opset: int) -> ModelProto:
    """The graph of a step for any number of rows, with the inputs x and state, and the outputs `OUTPUTS` and state."""
    import onnx  # noqa: F401 (PyTorch's exporter needs it, and names no extra)
    import onnxscript

    names = [part.name for part in step.state]
    rows = {0: torch.export.Dim("rows")}
    example = (torch.zeros(2, *step.x_shape, dtype=step.x_dtype), *step.initial_state(2))
    with torch.no_grad(), _quiet():
        step(*example)  # fills caches, which must not hold the tensors of a trace
        try:
            program: Any = torch.onnx.export(
                step,
                example,
                dynamo=True,
                dynamic_shapes=(rows, (rows,) * len(names)),
                input_names=["x", *names],
                output_names=[*OUTPUTS, *(f"new_{name}" for name in names)],
                opset_version=opset,
                optimize=False,
                verbose=False,
            )
        except torch.onnx.errors.OnnxExporterError as error:
            reason = " ".join(str(error.__cause__ or error).split())[:MAX_REASON]
            raise ValueError(f"PyTorch cannot export the network: {reason}") from None
        onnxscript.optimizer.optimize(program.model, input_size_limit=MAX_FOLDED, output_size_limit=MAX_FOLDED)
    model = program.model_proto
    if not all(part.type.tensor_type.shape.dim[0].dim_param for part in model.graph.input):
        raise ValueError("the network cannot be exported for any number of rows: use x.shape[0] rather than len(x)")
    _strip(model)
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """PyTorch's exporter warns of its own internals."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        log.setLevel(level)


def _strip(model: ModelProto) -> None:
    """Remove notes on where in the Python code each node comes from, which are half of a small file."""
    graph = model.graph
    del graph.value_info[:], model.metadata_props[:], graph.metadata_props[:]
    for part in (*graph.node, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("doc_string")
        del part.metadata_props[:]
    for number, node in enumerate(graph.node):
        node.name = f"{node.op_type}_{number}"


def set_metadata(model: ModelProto, content: dict[str, Any]) -> None:
    """Write the metadata as JSON in ASCII under one key, with which the file ends: a client without access to the
    metadata of a session can read it from there."""
    del model.metadata_props[:]
    model.metadata_props.add(key=METADATA, value=json.dumps(content))


# 8-bit weights


def rounded_weights(module: torch.nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """Round the weights of a module to 8 bits, in place: by name, whole numbers in −127…127 and the scale of each
    output."""
    found = {}
    for name, weight in module.named_parameters():
        if weight.dim() in (2, 4) and weight.numel() >= MIN_QUANTISED:
            scale = weight.flatten(1).abs().amax(1).clamp(min=1e-12).view(-1, *[1] * (weight.dim() - 1)) / 127
            number = (weight / scale).round()
            weight.copy_(number * scale)
            found[name] = number.to(torch.int8), scale
    return found


MIN_QUANTISED = 1024  # values of a weight: smaller ones stay in float32


def store_as_int8(model: ModelProto, weights: dict[str, tuple[Tensor, Tensor]]) -> None:
    """Store these weights as whole numbers and scales, which are multiplied once, when the graph is loaded."""
    from onnx import TensorProto, helper, numpy_helper

    graph, made = model.graph, []
    for initializer in [each for each in graph.initializer if each.name in weights]:
        name = initializer.name
        parts = dict(zip((f"{name}.int8", f"{name}.scale"), weights[name], strict=True))
        product = numpy_helper.to_array(initializer)
        number, scale = (part.numpy() for part in parts.values())
        if product.shape != number.shape or (product != number * scale).any():
            continue  # the exporter has changed it
        graph.initializer.remove(initializer)
        graph.initializer.extend(numpy_helper.from_array(part.numpy(), key) for key, part in parts.items())
        made.append(helper.make_node("Cast", [f"{name}.int8"], [f"{name}.float"], to=TensorProto.FLOAT))
        made.append(helper.make_node("Mul", [f"{name}.float", f"{name}.scale"], [name]))
    nodes = [*made, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
