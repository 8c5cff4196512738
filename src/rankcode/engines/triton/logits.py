"""The logits of features, with gradients, in two launches for a readout of one or two small layers. PyTorch launches a
dozen kernels, each of which takes longer to start than to run."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rankcode.engines.run import readout_of
from rankcode.engines.triton import kernels
from rankcode.network import Network

MAX_WIDTH = 64  # of a layer; wider ones are faster with PyTorch, part by part
MAX_FEATURES = 2**21  # numbers; PyTorch is faster for more


def logits_of(network: Network, features: Tensor) -> Tensor:
    """`network.logits`, never in mixed precision for a small readout, which is faster, and more exact, without."""
    found = readout_of(network)
    if found is None:
        return network.logits(features)
    inner, activation, last = found
    layers = [last] if inner is None else [inner, last]
    if max(layer.out_features for layer in layers) > MAX_WIDTH or features.numel() > MAX_FEATURES:
        with torch.autocast(features.device.type, enabled=False):
            return network.logits(features)
    weights = [part for layer in layers for part in (layer.weight, layer.bias)]
    return network.as_logits(_Readout.apply(features, activation, *weights))  # type: ignore[arg-type]


class _Readout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, activation, *weights):  # type: ignore[override]
        features, *weights = map(kernels.as_argument, (features, *weights))
        (entries, units), classes, inner = features.shape, len(weights[-1]), len(weights[1]) if weights[2:] else 0
        ctx.sizes = sizes = kernels.Readout(units, inner, classes, activation)
        outputs = features.new_empty(entries, classes)
        squashed = features.new_empty(entries, inner) if inner else features
        own = (*weights[:2], *weights[-2:])  # without a hidden layer the first two are not read
        grid = (-(-entries // kernels.READOUT_ENTRIES), 1, 1)
        kernels.readout_forward(sizes, features.device)(grid, features, *own, squashed, outputs, entries)
        ctx.save_for_backward(features, squashed, *weights)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):  # type: ignore[override]
        features, squashed, *weights = ctx.saved_tensors
        into_features, entries = torch.empty_like(features), len(features)
        sizes = [part.shape for part in weights]
        programs = kernels.readout_programs(features.device, entries)
        shares = features.new_zeros(programs, sum(map(math.prod, sizes)))
        kernels.readout_backward(ctx.sizes, features.device)(
            (programs, 1, 1), features, squashed, kernels.as_argument(gradient), weights[0], weights[-2], into_features,
            shares, entries,
        )  # fmt: skip
        parts = shares.sum(0).split([math.prod(size) for size in sizes])
        return into_features, None, *(part.view(size) for part, size in zip(parts, sizes, strict=True))
