"""Blocks of steps, the order of rows and what memory held change nothing in the engine `triton`."""

from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("triton.language", reason="needs Triton")

from triton_outcomes import (  # isort: skip
    DEVICE, MARKS, TOLERANCES, Example, compare, error, example, hidden_layer, identical, mixed, never, outcome,
    planted, products_in, stepwise, threshold_for,
)  # fmt: skip

import rankcode as rc
from rankcode.cells import GRU, LSTM
from rankcode.engines import run
from rankcode.engines.triton import blocks, kernels

pytestmark = MARKS


PERMUTATION = torch.randperm(18, generator=torch.Generator().manual_seed(0))
VARIATIONS: dict[str, tuple[Any, int, str, str, tuple[int, ...], Any]] = {
    # name: cell, layers, what is kept, precision, sizes of blocks, and the steps that are expected
    "blocks of one step": (LSTM, 2, "read", "tf32", (1, 1), None),
    "blocks of more steps than the rule": (GRU, 2, "answer", "float32", (3, 2), None),
    "blocks of three steps": (GRU, 2, "read", "tf32", (3, 2), None),
    "a block that is not full": (LSTM, 1, "answer", "float32", (4, 2), None),
    "one block": (LSTM, 1, "answer", "bfloat16", (50, 4), None),
    "expected: a permutation": (LSTM, 1, "read", "tf32", (50,), PERMUTATION),
    "expected: the same for all": (GRU, 1, "answer", "tf32", (2,), torch.full((18,), 4)),
    "expected: the opposite": (LSTM, 1, "answer", "float32", (2,), lambda steps: -steps),
    "expected: right": (GRU, 1, "read", "float32", (2,), lambda steps: steps),
    "expected: not whole, not possible": (GRU, 1, "answer", "bfloat16", (50,), torch.linspace(-1e9, 1e9, 18)),
}


@pytest.mark.parametrize("variation", VARIATIONS)
def test_blocks_and_expected_steps_change_nothing(variation, small_blocks):
    kind, layers, keep, precision, sizes, guess = VARIATIONS[variation]
    made = example(kind, layers, rows=15 if guess is None else 18)
    rule = threshold_for(made)
    expected = stepwise(made, rule, keep)
    mixed(expected.decision, made.lengths)
    small_blocks(*sizes)
    guess = guess(expected.decision.steps) if callable(guess) else guess
    compare(expected, outcome(made, rule, keep, precision, expected_steps=guess))


@pytest.mark.parametrize(("kind", "layers", "precision"), [(LSTM, 1, "tf32"), (GRU, 2, "bfloat16")])
@pytest.mark.parametrize("error", [-25, -9, 0, 4])  # at -25 the last block is three times as long as the one before
def test_the_first_block_ends_where_rows_should_answer(error, kind, layers, precision, small_blocks):
    made = example(kind, layers, rows=40, steps=21)
    rule = rc.FireAt(torch.arange(40) % 21 + 1)
    expected = stepwise(made, rule, "read")
    small_blocks()
    guess = (expected.decision.steps + error).clamp(min=0)
    compare(expected, outcome(made, rule, "read", precision, expected_steps=guess))
    tiles = blocks._tiles(made.lengths, 21, rule, guess, block=3, own_blocks=True)
    first = [max(0, -(-int(part.max()) // 8) * 8) for part in guess.sort(descending=True)[0].split(16)]
    assert tiles.bounds.T.tolist() == [[0, min(each, 21), min(each + 3, 21), 21] for each in first]


@pytest.mark.parametrize(("programs", "precision"), [(2, "tf32"), (1, "bfloat16")])
def test_more_steps_than_a_block_as_it_is(programs, precision, monkeypatch):
    """However many programs take turns with the steps."""
    monkeypatch.setattr(blocks, "MAX_SINGLE_BLOCK", 0)
    monkeypatch.setattr(kernels, "_programs", lambda *_, **__: programs)
    made = example(GRU, steps=blocks.BLOCK_STEPS + 2, rows=4)
    made.lengths[:3] = blocks.BLOCK_STEPS + 2
    rule = rc.FireAt(torch.tensor([blocks.BLOCK_STEPS, blocks.BLOCK_STEPS + 1, blocks.BLOCK_STEPS + 3, 2]))
    compare(stepwise(made, rule, "read"), outcome(made, rule, "read", precision))


def test_rows_that_should_end_together_stand_together(small_blocks):
    small_blocks()
    lengths = example(rows=18).lengths
    guess = PERMUTATION.to(DEVICE)
    tiles = blocks._tiles(lengths, 17, never, guess, block=9, own_blocks=False)
    assert len(tiles.order) == 32 and tiles.bounds.tolist() == [[0, 0], [9, 9], [17, 17]]
    assert guess[tiles.order[:18]].tolist() == list(range(17, -1, -1))
    assert tiles.ends.tolist() == [*lengths[tiles.order[:18]].tolist(), *[0] * 14]


@pytest.mark.parametrize(
    ("kind", "layers", "keep", "precision", "rubbish", "several"),
    [
        (LSTM, 1, "answer", "float32", float("nan"), False),
        (LSTM, 1, "read", "tf32", float("inf"), False),
        (GRU, 1, "read", "float32", float("inf"), True),
        (GRU, 2, "answer", "tf32", float("nan"), True),
    ],
)
def test_what_follows_the_answer_changes_nothing(kind, layers, keep, precision, rubbish, several, small_blocks):
    if several:
        small_blocks(2)
    made = example(kind, layers)
    rule = threshold_for(made) if keep == "answer" else planted(made)
    clean = outcome(made, rule, keep, precision)
    past = torch.arange(5, device=DEVICE) >= clean.decision.steps[:, None]
    assert (past & (torch.arange(5, device=DEVICE) < made.lengths[:, None])).any()  # not only past the length
    dirty = made._replace(inputs=made.inputs.masked_fill(past[:, :, None], rubbish))
    identical(clean, outcome(dirty, rule, keep, precision))


@pytest.mark.parametrize(
    ("kind", "layers", "keep", "precision", "several"),
    [
        (LSTM, 1, "read", "tf32", False),
        (GRU, 2, "answer", "tf32", True),
        (LSTM, 1, "answer", "float32", True),
        (GRU, 1, "read", "bfloat16", True),
    ],
)
def test_what_memory_held_changes_nothing(kind, layers, keep, precision, several, small_blocks, request):
    made = example(kind, layers)
    rule = threshold_for(made)
    expected = stepwise(made, rule, keep)
    if several:
        small_blocks(2)
    request.getfixturevalue("rubbish_in_fresh_memory")
    compare(expected, outcome(made, rule, keep, precision, expected_steps=-expected.decision.steps))
    with torch.no_grad(), products_in(precision):
        got = run(*made, rule, keep, "triton", expected.decision.steps).decision
    assert torch.equal(expected.decision.steps, got.steps) and torch.equal(expected.decision.fired, got.fired)
    assert error(expected.decision.probabilities, got.probabilities) <= TOLERANCES[precision][0]


def kept_by(monkeypatch) -> list[list[Any]]:
    """Filled with what the layers of each run keep."""
    kept, forward = [], blocks._forward

    def watched(*given, **named):
        found = forward(*given, **named)
        kept.append(found[2])
        return found

    monkeypatch.setattr(blocks, "_forward", watched)
    return kept


@pytest.mark.parametrize("precision", ["float32", "tf32"])
@pytest.mark.parametrize("rule", [rc.FireAt([1, 3, 2, 3]), rc.Threshold(0.34)], ids=["planted", "threshold"])
def test_a_tile_stops_when_its_rows_have_answered(rule, precision, small_blocks, monkeypatch):
    small_blocks(50, 1)
    made, kept = example(rows=4), kept_by(monkeypatch)
    made.lengths[:] = 5
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda like, *size, **more: like.new_full(size, 7, **more))
    with products_in(precision):
        steps = run(*made, rule, "answer", "triton").decision.steps
    last = int(steps.max())
    assert last == (1 if isinstance(rule, rc.Threshold) else 3)
    hidden = kept[0][0].hidden
    assert all((hidden[row, : end + 1] != 7).all() for row, end in enumerate(steps.tolist()))
    assert (hidden[:, last + 1 :] == 7).all()


@pytest.mark.parametrize(
    ("kind", "keep", "precision"),
    [(LSTM, "answer", "tf32"), (LSTM, "read", "float32"), (GRU, "answer", "float32"), (GRU, "read", "tf32")],
)
def test_without_gradients_the_same(kind, keep, precision, small_blocks, monkeypatch):
    made = example(kind, layers=2, steps=7)
    rule = threshold_for(made)
    expected = stepwise(made, rule, keep)  # which the run with gradients equals
    mixed(expected.decision, made.lengths)
    small_blocks()
    kept = kept_by(monkeypatch)
    with torch.no_grad(), products_in(precision):
        got = run(*made, rule, keep, "triton")
    assert torch.equal(expected.decision.steps, got.decision.steps)
    assert torch.equal(expected.decision.fired, got.decision.fired)
    order = (got.row * 8 + got.step).argsort()
    assert torch.stack([got.row, got.step], 1)[order].tolist() == expected.entries
    assert error(expected.logits, got.logits[order]) <= TOLERANCES[precision][0]
    slots = {part.shape[1] for layer in kept[0] for part in layer}
    assert slots == ({3, 3 + 1} if keep == "answer" else {7, 7 + 1})  # answers need the memory of one block


def shifted(part: torch.Tensor) -> torch.Tensor:
    """The same values, at an address that is no multiple of 16 bytes."""
    room = torch.empty(part.numel() + 1, dtype=part.dtype, device=part.device)
    view = room[1:].view(part.shape)
    assert view.data_ptr() % 16
    return view.copy_(part)


@pytest.mark.parametrize("how", ["a part of each step", "steps first", "every second row", "an odd address"])
def test_where_tensors_lie_changes_nothing(how):
    network, inputs, lengths = made = example(GRU, rows=7, readout=hidden_layer(nn.Tanh()))
    rule: Any = threshold_for(made)
    expected = stepwise(made, rule)
    if how == "a part of each step":
        inputs = torch.cat([inputs * 0 + 9, inputs, inputs * 0 + 9], 2)[:, :, 3:6]
    elif how == "steps first":
        inputs = inputs.transpose(0, 1).contiguous().transpose(0, 1)
    elif how == "every second row":
        inputs, lengths = inputs.repeat_interleave(2, 0)[::2], lengths.repeat_interleave(2)[::2]
    else:
        inputs, lengths = shifted(inputs), shifted(lengths)
        for parameter in network.parameters():
            parameter.data = shifted(parameter.data)
    moved = Example(network, inputs, lengths)
    compare(expected, outcome(moved, rule))
    if how == "an odd address":
        rule = rc.FireAt(shifted(planted(made).steps))
        compare(stepwise(moved, rule), outcome(moved, rule))


@pytest.mark.parametrize(("kind", "layers", "units", "precision"), [(LSTM, 1, 5, "bfloat16"), (GRU, 2, 7, "float32")])
@pytest.mark.parametrize("objective", ["every step", "until the spike", "until the spike, with a penalty"])
def test_while_a_graph_is_captured_every_step_has_an_entry(
    objective, kind, layers, units, precision, monkeypatch, rubbish_in_fresh_memory
):
    """The number of steps read cannot be read on the host; entries of steps that were not read do not count."""
    made = example(kind, layers, units, rows=18)
    theta = threshold_for(made).threshold
    make = {"every step": rc.EveryStep(), "until the spike": rc.UntilSpike(theta)}
    chosen = make.get(objective, rc.UntilSpike(theta, beta=0.2))
    labels = torch.randint(3, (18,), device=DEVICE)
    results = []
    for captured in (False, True):
        monkeypatch.setattr(blocks, "capturing", lambda device, captured=captured: captured)
        made.network.zero_grad(set_to_none=True)
        with products_in(precision):
            result = run(*made, chosen.rule, "read", "triton")
        assert (result.read is not None) == captured
        loss = chosen.loss(result, labels)
        loss.backward()
        results.append((loss.detach(), result, [part.grad for part in made.network.parameters()]))
    (expected, seen, gradients), (got, unseen, others) = results
    assert len(seen.logits) < len(unseen.logits) == 18 * 5
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    for one, other in zip(seen.decision, unseen.decision, strict=True):
        torch.testing.assert_close(other, one)
    torch.testing.assert_close(unseen.at_answer(), seen.at_answer())
    for one, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)
