"""Which engine runs a network, and why."""

import pytest
import torch
from torch import nn

import rankcode as rc
from rankcode.engines import Choice, choose, compiled, run, whole

BLOCKS = Choice("cpu", "blocks of steps, between which rows that have answered leave")
COMPILED = Choice("compiled", "compiled steps, and rows that have answered cost nothing")
ANY = Choice("stepwise", "runs any cell on any device")
INPUTS, MORE = torch.randn(2, 3, 4), torch.randn(40, 50, 4)


def lstm(readout=None):
    return rc.Network(rc.cells.LSTM(4, 5), 3, readout)


def spiking():
    return rc.Network(rc.cells.LIF(4, 3, emits="membranes"), 3)


def test_engines_are_chosen_by_name():
    for name in ("reference", "stepwise", "whole", "cpu", "compiled", "graphs"):
        capturable = "with a schedule" if name == "graphs" else None
        assert choose(lstm(), INPUTS, rc.Never(), name) == Choice(name, "asked for by name", capturable)
    with pytest.raises(ValueError, match=r"no engine 'fast'.*reference, stepwise"):
        rc.decide(lstm(), INPUTS, engine="fast")


@pytest.mark.parametrize(("engine", "reason"), [("cpu", "reads one step at a time"), ("triton", "has no fused step")])
def test_an_engine_that_cannot_run_a_network_says_why(engine, reason):
    if engine == "triton":
        pytest.importorskip("triton")
    with pytest.raises(ValueError, match=f"^the engine {engine} cannot run this network: LIF {reason}$"):
        run(spiking(), INPUTS, torch.tensor([3, 3]), rc.Never(), "answer", engine)


@pytest.mark.parametrize("rule", [rc.Threshold(0.9), rc.FireAt(2), rc.Never(), rc.Patience(rc.Threshold(0.9), 2)])
def test_on_a_cpu_blocks_of_steps_run_what_has_them(rule):
    dropout = lstm(nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.1)))
    double = lstm().double()
    assert choose(double, INPUTS.double(), rule) == choose(double, MORE.double(), rule) == BLOCKS
    if compiled.can_run(lstm(), INPUTS, rc.Never()) is None:  # it was compiled
        assert choose(lstm(), INPUTS, rule) == (BLOCKS if isinstance(rule, rc.Patience) else COMPILED)
        assert choose(dropout, INPUTS, rule) == (COMPILED if hasattr(rule, "planted_steps") else BLOCKS)
    assert choose(spiking(), INPUTS, rule) == ANY
    hooked = lstm()
    hooked.cell.register_forward_hook(lambda *_: None)  # which a fused step would not call
    assert choose(hooked, INPUTS, rule) == ANY
    with torch.autocast("cpu", torch.bfloat16):
        assert choose(lstm(), INPUTS, rule) == ANY
        assert "float32" in (whole.can_run(lstm(), INPUTS, rule) or "")
    assert whole.can_run(lstm(), INPUTS, rule) is None


class Doubled(rc.cells.GRU):
    """A user's cell: a GRU with another step."""

    def forward(self, x_t, state):
        return super().forward(2 * x_t, state)


class DoubledInBlocks(Doubled):
    def forward_sequence(self, inputs, state):
        return super().forward_sequence(2 * inputs, state)


def test_a_cell_whose_step_was_changed_is_read_step_by_step():
    def chosen(cell):
        return choose(rc.Network(rc.cells.Stack(rc.cells.CausalConv(4, 4, 2), cell), 3), MORE, rc.Never()).name

    hooked = rc.cells.GRU(4, 5)
    hooked.register_forward_hook(lambda *_: None)
    assert chosen(rc.cells.GRU(4, 5)) == chosen(DoubledInBlocks(4, 5)) == "cpu"
    assert chosen(Doubled(4, 5)) == chosen(hooked) == chosen(rc.cells.LIF(4, 5)) == "stepwise"
