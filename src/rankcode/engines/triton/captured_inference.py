"""Inference as CUDA graphs: the kernels of a small batch take the host longer to launch than the GPU to run."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import ClassVar
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

from rankcode.decision import Decision
from rankcode.device_constants import capturing
from rankcode.engines.capture import CudaGraphs, settings_of
from rankcode.engines.run import Keep, Run
from rankcode.network import Network
from rankcode.rules import Rule

MAX_KEPT = 4  # graphs of a network: each keeps memory for a batch
WARMUP_RUNS = 16  # before a capture, which takes longer than a run and so pays only for shapes that come often


def captures(network: Network, inputs: Tensor, keep: Keep) -> bool:
    """Whether a run is captured, if it can be. Parametrized weights are computed for each run, at other addresses."""
    if keep != "answer" or torch.is_grad_enabled() or not _has_graphs(inputs.device) or capturing(inputs.device):
        return False
    return not any(is_parametrized(part) for part in network.modules())


def _has_graphs(device: torch.device) -> bool:
    return device.type == "cuda"


class Inference:
    """Runs of batches of one shape, with the same weights, rule, settings of PyTorch and CUDA stream."""

    all: ClassVar[WeakKeyDictionary[Network, OrderedDict[Hashable, Inference]]] = WeakKeyDictionary()
    looking: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, network: Network, rule: Rule, read: Callable[..., Run]):
        self.lock = threading.Lock()  # a graph has memory for one run at a time
        self.found = found = []  # by the last run that was launched or captured, or by the graph
        network_at = ref(network)

        def work(inputs: Tensor, lengths: Tensor, expected_steps: Tensor | None) -> None:
            found[:] = [read(network_at(), inputs, lengths, rule, expected_steps)]

        self.graphs = CudaGraphs(work, warmup_runs=WARMUP_RUNS)

    @classmethod
    def of(cls, network: Network, inputs: Tensor, rule: Rule, ordered: bool, read: Callable[..., Run]) -> Inference:
        """`ordered`: whether it is told where rows are expected to answer. `read` is called with the network, inputs,
        lengths, rule and expected steps."""
        stream = torch.cuda.current_stream(inputs.device).cuda_stream
        key = settings_of(network, inputs), inputs.shape, rule, ordered, stream, torch.is_inference_mode_enabled()
        with cls.looking:
            kept = cls.all.setdefault(network, OrderedDict())
            if key not in kept:
                kept[key] = cls(network, rule, read)
            kept.move_to_end(key)
            while len(kept) > MAX_KEPT:
                kept.popitem(last=False)
            return kept[key]

    def __call__(self, inputs: Tensor, lengths: Tensor, expected_steps: Tensor | None) -> Run:
        with self.lock:
            self.graphs(None, inputs, lengths, expected_steps)
            (found,) = self.found
            if not self.graphs.graphs:
                return found
            decision = Decision(*(part.clone() for part in found.decision))
            row, logits = found.row.clone(), found.logits.clone()
            return Run(decision, logits, row, decision.steps, lengths, "answer")
