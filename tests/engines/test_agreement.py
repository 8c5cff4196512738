"""The check of engines against the reference passes where they agree, and sees where they do not."""

import math
from types import SimpleNamespace

import pytest
import torch

import rankcode as rc
from rankcode.cli.main import main
from rankcode.engines import ENGINES, agreement, cpu
from rankcode.engines.agreement import TOLERANCES, check_engines


@pytest.fixture
def few_cases(monkeypatch):
    cases = [case for case in agreement._cases() if math.prod(case.network.cell.output_shape) < 30]
    monkeypatch.setattr(agreement, "_cases", lambda: cases)
    return cases


def test_every_engine_of_this_machine_is_checked_and_agrees(few_cases):
    found = list(check_engines("cpu"))
    assert {each.engine for each in found} == {"stepwise", "whole", "cpu", "compiled", "graphs"}
    assert len(few_cases) == 5 and len(found) == len(few_cases) * 6 + 4  # compiled does not run the stack
    assert all(each.wrong == "" and each.differing == 0 for each in found)
    assert all(0 <= each.gradients <= TOLERANCES[each.precision].gradients for each in found)


def altered(result, **parts):
    return result._replace(decision=result.decision._replace(**parts))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda result: result._replace(logits=result.logits * 1.001), "differs by more than"),
        (lambda result: altered(result, steps=torch.ones_like(result.decision.steps)), "steps"),
        (lambda result: result._replace(logits=result.logits * torch.nan), "differs by more than"),
        (lambda result: altered(result, label=torch.zeros_like(result.decision.label)), "labels"),
    ],
    ids=["logits", "steps", "NaN", "labels"],
)
def test_an_engine_that_is_wrong_is_seen(damage, said, few_cases, monkeypatch):
    damaged = SimpleNamespace(can_run=cpu.can_run, run=lambda *given: damage(cpu.run(*given)))
    monkeypatch.setitem(ENGINES, "cpu", damaged)
    wrong = [each for each in check_engines("cpu") if each.wrong]
    assert wrong and all(each.engine == "cpu" and said in each.wrong for each in wrong)


def broken(*given):
    raise ValueError("out of order")


def test_an_engine_that_raises_an_error_is_wrong(few_cases, monkeypatch, capsys):
    monkeypatch.setitem(ENGINES, "cpu", SimpleNamespace(can_run=cpu.can_run, run=broken))
    found = [each for each in check_engines("cpu") if each.engine == "cpu"]
    assert len(found) == 2 * len(few_cases) and all(each.wrong == "raised ValueError: out of order" for each in found)
    with pytest.raises(SystemExit, match="differ from the reference"):
        main(["bench", "--check", "--device", "cpu"])
    assert "out of order" in capsys.readouterr().out


def test_an_engine_that_cannot_run_a_case_is_not_checked_on_it(few_cases, monkeypatch):
    monkeypatch.setitem(ENGINES, "cpu", SimpleNamespace(can_run=lambda *given: "too small", run=broken))
    assert {each.engine for each in check_engines("cpu") if not each.wrong} == {
        "stepwise",
        "whole",
        "compiled",
        "graphs",
    }


def test_products_run_in_the_precision_asked_for():
    before = torch.backends.cudnn.allow_tf32
    with agreement.products_in("tf32", on_gpu=False):
        assert torch.backends.cudnn.allow_tf32 and torch.backends.cuda.matmul.allow_tf32
    with agreement.products_in("bfloat16", on_gpu=False):
        assert not torch.backends.cudnn.allow_tf32
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    assert torch.backends.cudnn.allow_tf32 == before


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.gpu
@on_a_gpu
def test_every_engine_agrees_on_a_gpu():
    found = list(check_engines("cuda"))
    assert {each.engine for each in found} == {"stepwise", "whole", "graphs", "triton"}
    assert not [each for each in found if each.wrong]


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("objective", [rc.AtSpike(0.8, beta=0.1), rc.UntilSpike(0.8), rc.AtEnd(), rc.EveryStep()])
def test_the_reference_gives_the_same_on_a_gpu(objective):
    torch.manual_seed(0)
    network = rc.Network(rc.cells.LSTM(3, 8), outputs=4).double()
    with torch.no_grad():
        network.readout.weight *= 10
    inputs, labels, lengths = torch.randn(12, 9, 3).double(), torch.randint(4, (12,)), torch.randint(1, 10, (12,))
    results = []
    for device in ("cpu", "cuda"):
        network.to(device).zero_grad()
        batch = (part.to(device) for part in (inputs, labels, lengths))
        loss, decision = objective(network, *batch, engine="reference")
        loss.backward()
        parts = [loss.detach(), decision.steps, decision.label, *(part.grad for part in network.parameters())]
        results.append([part.cpu().clone() for part in parts])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-8, atol=1e-12)
