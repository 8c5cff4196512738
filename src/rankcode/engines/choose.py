"""Which engine runs a network: the one asked for by name, or else the fastest that can."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor
from torch.nn.utils import parametrize

from rankcode.engines import compiled, cpu, graphs, reference, scheduled, stepwise, triton, whole
from rankcode.engines.run import Engine, Keep, Run, reads_sequences
from rankcode.network import Network
from rankcode.rules import Rule

ENGINES: dict[str, Engine] = {
    "reference": reference,
    "stepwise": stepwise,
    "whole": whole,
    "cpu": cpu,
    "compiled": compiled,
    "graphs": graphs,
    "triton": triton,
}


Capture = Literal["as it is", "with a schedule"]  # how a run and its backward pass are captured in a CUDA graph


class Choice(NamedTuple):
    name: str
    reason: str
    capturable: Capture | None = None


def choose(network: Network, inputs: Tensor, rule: Rule, engine: str = "auto") -> Choice:
    """The engine that a run will use, and the reason."""
    if engine != "auto":
        if engine not in ENGINES:
            raise ValueError(f"there is no engine {engine!r}: choose from auto, {', '.join(ENGINES)}")
        if why_not := ENGINES[engine].can_run(network, inputs, rule):
            raise ValueError(f"the engine {engine} cannot run this network: {why_not}")
        return Choice(engine, "asked for by name", _capturable(engine, network, inputs, rule))
    if inputs.is_cuda:
        why_not = triton.can_run(network, inputs, rule) or triton.slower(network, inputs)
        if why_not is None:
            reason = "fused steps, and rows that have answered cost nothing"
            return Choice("triton", reason, _capturable("triton", network, inputs, rule))
        if reads_sequences(network) and whole.can_run(network, inputs, rule) is None:
            reason = f"on a GPU PyTorch's own kernels are faster than a loop over steps; not triton: {why_not}"
            return Choice("whole", reason)
        if graphs.can_run(network, inputs, rule) is None and not graphs.slower(network, inputs):
            reason = "blocks of steps as CUDA graphs, between which rows that have answered leave"
            return Choice("graphs", reason, _capturable("graphs", network, inputs, rule))
    if compiled.can_run(network, inputs, rule) is None:
        return Choice("compiled", "compiled steps, and rows that have answered cost nothing")
    if cpu.can_run(network, inputs, rule) is None:
        return Choice("cpu", "blocks of steps, between which rows that have answered leave")
    return Choice("stepwise", "runs any cell on any device")


def _capturable(engine: str, network: Network, inputs: Tensor, rule: Rule) -> Capture | None:
    if engine == "triton" and triton.can_capture(network, inputs, rule):
        return "as it is"
    return "with a schedule" if engine == "graphs" and scheduled.can_capture(network, inputs, rule) else None


def run(
    network: Network,
    inputs: Tensor,
    lengths: Tensor,
    rule: Rule,
    keep: Keep = "answer",
    engine: str = "auto",
    expected_steps: Tensor | None = None,
) -> Run:
    """Run a network until each row fires or ends. Inputs are not checked: see `rankcode.checks`. `expected_steps`
    [rows], the steps at which rows will probably answer, makes some engines faster and never changes the result."""
    chosen = ENGINES[choose(network, inputs, rule, engine).name]
    with parametrize.cached():  # a parametrized weight is computed once per run, not at every step
        return chosen.run(network, inputs, lengths, rule, keep, expected_steps)
