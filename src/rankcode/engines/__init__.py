"""How a network is run through time, and which engine does it.

An engine is a function `run(network, inputs, lengths, rule, keep) -> Run`. Every engine gives what
`reference` gives. `choose` says which one `engine="auto"` takes, and why.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from rankcode.engines import cpu, reference, stepwise, whole
from rankcode.engines.run import Engine, Keep, Run
from rankcode.network import Network
from rankcode.rules import Rule

ENGINES: dict[str, Engine] = {"reference": reference.run, "stepwise": stepwise.run, "whole": whole.run, "cpu": cpu.run}


class Choice(NamedTuple):
    name: str
    reason: str


def choose(network: Network, inputs: Tensor, rule: Rule, engine: str = "auto") -> Choice:
    """The engine a run will use, by name, and the reason."""
    if engine in ENGINES:
        return Choice(engine, "asked for by name")
    if engine != "auto":
        raise ValueError(f"there is no engine {engine!r}: choose from auto, {', '.join(ENGINES)}")
    if inputs.is_cuda and whole.can_run(network) is None:
        return Choice("whole", "on a GPU PyTorch's own kernels beat a loop over steps")
    if cpu.can_run(network, inputs) is None:
        return Choice("cpu", "fused steps, and rows that have answered cost nothing")
    return Choice("stepwise", "runs any cell on any device")


def run(
    network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep = "answer", engine: str = "auto"
) -> Run:
    """Run a network until each row fires or ends. Inputs are taken as they are: see `rankcode.checks`."""
    return ENGINES[choose(network, inputs, rule, engine).name](network, inputs, lengths, rule, keep)


__all__ = ["ENGINES", "Choice", "Engine", "Keep", "Run", "choose", "run"]
