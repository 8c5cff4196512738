"""Threads and denormal numbers during a run on a CPU and its backward pass."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import rankcode as rc
from rankcode.engines import run


def flushed():
    return sys.float_info.min / 2 == 0


@pytest.mark.parametrize("engine", ["cpu", "whole"])
@pytest.mark.parametrize("rows", [3, 900])
def test_the_number_of_threads_is_given_back(rows, engine, set_threads):
    set_threads(3)
    network = rc.Network(rc.cells.GRU(4, 50), 3)
    seen = []
    network.readout.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    inputs, labels = torch.randn(rows, 5, 4), torch.arange(rows) % 3
    loss, _ = rc.AtSpike(0.9)(network, inputs, labels, engine=engine)
    assert set(seen) == {1 if rows == 3 else 3} and torch.get_num_threads() == 3
    loss.backward()
    assert torch.get_num_threads() == 3
    with pytest.raises((RuntimeError, ValueError), match=r"mat1 and mat2|reads 4 numbers"):
        run(network, torch.randn(rows, 5, 7), torch.full((rows,), 5), rc.Never(), "answer", engine)
    assert torch.get_num_threads() == 3
    seen.clear()
    with ThreadPoolExecutor(1, initializer=lambda: torch.set_num_threads(3)) as pool:
        pool.submit(rc.decide, network, inputs, engine=engine).result()
    assert set(seen) == {3}  # in a thread of the user's own it is left alone


@pytest.mark.parametrize("engine", ["cpu", "whole"])
def test_settings_hold_in_the_backward_pass_and_end_with_it(engine, set_threads):
    set_threads(3)
    try:
        network = rc.Network(rc.cells.LSTM(4, 8), 3)
        seen, weight = [], network.cell.weight_hh_l0
        weight.register_hook(lambda _: seen.append((torch.get_num_threads(), flushed())))
        inputs, labels = torch.randn(6, 5, 4), torch.arange(6) % 3
        loss, _ = rc.AtSpike(0.9)(network, inputs, labels, engine=engine)
        assert not flushed()
        loss.backward()
        assert seen == [(1, True)] and torch.get_num_threads() == 3 and not flushed()

        def fail(_):
            raise RuntimeError("in a hook")

        weight.register_hook(fail)
        loss, _ = rc.AtSpike(0.9)(network, inputs, labels, engine=engine)
        with pytest.raises(RuntimeError, match="in a hook"):
            loss.backward()
        assert torch.get_num_threads() == 3 and not flushed()
        torch.set_flush_denormal(True)
        rc.AtSpike(0.9)(network, inputs, labels, engine=engine)
        assert flushed()  # as it was
    finally:
        torch.set_flush_denormal(False)


def test_settings_end_where_a_backward_pass_is_interrupted_as_it_begins(set_threads, monkeypatch):
    set_threads(3)
    flush = torch.set_flush_denormal
    try:
        network = rc.Network(rc.cells.LSTM(4, 8), 3)
        loss, _ = rc.AtSpike(0.9)(network, torch.randn(6, 5, 4), torch.arange(6) % 3, engine="cpu")

        def interrupted(wanted):
            flush(wanted)
            if wanted:
                raise KeyboardInterrupt
            return True

        monkeypatch.setattr(torch, "set_flush_denormal", interrupted)
        with pytest.raises(KeyboardInterrupt) as held:
            loss.backward()
        assert held and torch.get_num_threads() == 3
    finally:
        flush(False)


@pytest.mark.parametrize("kind", [rc.cells.LSTM, rc.cells.GRU])
def test_gradients_that_fade_end_at_zero(kind):
    """Gates that are nearly shut let gradients fade; with denormal numbers a CPU is many times as slow."""
    torch.manual_seed(0)
    network = rc.Network(kind(3, 16), 3)
    for parameter in network.cell.parameters():
        nn.init.normal_(parameter, mean=0.0 if parameter.dim() == 2 else -1.5, std=0.1)
    inputs, lengths = torch.randn(64, 80, 3, requires_grad=True), torch.full((64,), 80)
    found = []
    for engine in ("stepwise", "cpu"):
        run(network, inputs, lengths, rc.Never(), "answer", engine).logits.square().sum().backward()
        found.append([inputs.grad, *(parameter.grad for parameter in network.parameters())])
        network.zero_grad()
        inputs.grad = None
    expected, gradients = found
    denormal = [
        ((part != 0) & (part.abs() < torch.finfo(part.dtype).tiny)).sum() for part in (expected[0], gradients[0])
    ]
    assert denormal[0] > 20 * denormal[1]
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-8)
