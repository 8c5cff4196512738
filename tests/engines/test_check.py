"""The check of engines against the reference passes where they agree, and sees where they do not."""

from types import SimpleNamespace

import pytest
import torch

from rankcode.cli.main import main
from rankcode.engines import ENGINES, cpu
from rankcode.engines import check as agreement
from rankcode.engines.check import TOLERANCES, check_engines


@pytest.fixture
def few_cases(monkeypatch):
    cases = [case for case in agreement._cases() if case.network.cell.hidden_size < 30]
    monkeypatch.setattr(agreement, "_cases", lambda: cases)
    return cases


def test_every_engine_of_this_machine_is_checked_and_agrees(few_cases):
    found = list(check_engines("cpu"))
    assert {each.engine for each in found} == {"stepwise", "whole", "cpu"}
    assert len(few_cases) == 4 and len(found) == len(few_cases) * 4
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
    with pytest.raises(SystemExit, match="differ from the reference"):
        main(["bench", "--check", "--device", "cpu"])


def broken(*given):
    raise ValueError("out of order")


def test_an_engine_that_raises_an_error_is_wrong(few_cases, monkeypatch, capsys):
    monkeypatch.setitem(ENGINES, "cpu", SimpleNamespace(can_run=cpu.can_run, run=broken))
    found = [each for each in check_engines("cpu") if each.engine == "cpu"]
    assert len(found) == len(few_cases) and all(each.wrong == "raised ValueError: out of order" for each in found)
    with pytest.raises(SystemExit, match="differ from the reference"):
        main(["bench", "--check", "--device", "cpu"])
    assert "out of order" in capsys.readouterr().out


def test_an_engine_that_cannot_run_a_case_is_not_checked_on_it(few_cases, monkeypatch):
    monkeypatch.setitem(ENGINES, "cpu", SimpleNamespace(can_run=lambda *given: "too small", run=broken))
    assert {each.engine for each in check_engines("cpu") if not each.wrong} == {"stepwise", "whole"}


def test_products_run_in_the_precision_asked_for():
    before = torch.backends.cudnn.allow_tf32
    with agreement.products_in("tf32", on_gpu=False):
        assert torch.backends.cudnn.allow_tf32 and torch.backends.cuda.matmul.allow_tf32
    with agreement.products_in("bfloat16", on_gpu=False):
        assert not torch.backends.cudnn.allow_tf32
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    assert torch.backends.cudnn.allow_tf32 == before
