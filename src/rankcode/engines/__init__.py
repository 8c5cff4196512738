"""How a network is run through time, and which engine does it.

An engine is a function `run(network, inputs, lengths, rule, keep) -> Run`. Every engine gives what
`reference` gives, to the digits of its precision. `choose` says which one `engine="auto"` takes, and why.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from rankcode.engines import cpu, reference, stepwise, triton, whole
from rankcode.engines.run import Engine, Keep, Run
from rankcode.network import Network
from rankcode.rules import Rule

ENGINES: dict[str, Engine] = {
    "reference": reference.run,
    "stepwise": stepwise.run,
    "whole": whole.run,
    "cpu": cpu.run,
    "triton": triton.run,
}


class Choice(NamedTuple):
    name: str
    reason: str


def choose(network: Network, inputs: Tensor, rule: Rule, engine: str = "auto") -> Choice:
    """The engine a run will use, by name, and the reason."""
    if engine in ENGINES:
        return Choice(engine, "asked for by name")
    if engine != "auto":
        raise ValueError(f"there is no engine {engine!r}: choose from auto, {', '.join(ENGINES)}")
    if inputs.is_cuda:
        if (why_not := triton.can_run(network, inputs, rule) or triton.slower(network, inputs)) is None:
            return Choice("triton", "fused steps, and rows that have answered cost nothing")
        if whole.has_kernels(network) and whole.can_run(network) is None:
            return Choice("whole", f"on a GPU PyTorch's own kernels beat a loop over steps; not triton: {why_not}")
    if cpu.can_run(network, inputs) is None:
        return Choice("cpu", "fused steps, and rows that have answered cost nothing")
    return Choice("stepwise", "runs any cell on any device")


def run(
    network: Network,
    inputs: Tensor,
    lengths: Tensor,
    rule: Rule,
    keep: Keep = "answer",
    engine: str = "auto",
    expected_steps: Tensor | None = None,
) -> Run:
    """Run a network until each row fires or ends. Inputs are taken as they are: see `rankcode.checks`.
    `expected_steps` [rows] says where rows will probably answer; it changes how fast an engine is, and nothing else."""
    name = choose(network, inputs, rule, engine).name
    if name == "triton":
        return triton.run(network, inputs, lengths, rule, keep, expected_steps)
    return ENGINES[name](network, inputs, lengths, rule, keep)


__all__ = ["ENGINES", "Choice", "Engine", "Keep", "Run", "choose", "run"]
