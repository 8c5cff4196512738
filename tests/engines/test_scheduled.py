"""Any cell with fixed numbers of rows: see also tests/training/test_scheduled_update.py, which trains with it."""

import numpy as np
import pytest
import torch
from test_graphs import CELLS, made

import rankcode as rc
from rankcode.engines import run, scheduled
from rankcode.engines.scheduled import Schedule


@pytest.mark.parametrize("objective", [rc.AtSpike(0.8, beta=0.1), rc.UntilSpike(0.8, beta=0.1), rc.AtEnd()])
@pytest.mark.parametrize("ends", [(19,), (3, 19), (5, 9, 19)])
@pytest.mark.parametrize("cell", CELLS)
def test_with_just_enough_places_a_run_gives_what_stepwise_gives(cell, ends, objective):
    network, inputs, lengths = made(cell, "cpu")
    labels, rule, keep = torch.arange(20) % 3, objective.rule, objective.keep
    expected = run(network, inputs, lengths, rule, keep, "stepwise")
    begins = (0, *ends)
    blocks = tuple(
        (max(1, int((expected.decision.steps > begin).sum())), end - begin)
        for begin, end in zip(begins, ends, strict=False)
    )
    found, incomplete = scheduled.run(network, inputs, lengths, rule, keep, blocks)
    assert not incomplete
    results = []
    for each in (expected, found):
        network.zero_grad()
        loss = objective.loss(each, labels)
        loss.backward()
        results.append([loss, *each.decision, *(part.grad.clone() for part in network.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-11)
    assert len(found.decision.steps.unique()) > 1


def test_a_run_without_a_place_for_every_row_is_incomplete():
    network, inputs, _ = made("LIF", "cpu")
    lengths = torch.full((20,), 19)
    inputs = inputs.nan_to_num()
    for places, expected in ((20, False), (19, True)):
        _, incomplete = scheduled.run(network, inputs, lengths, rc.Never(), "answer", ((20, 5), (places, 14)))
        assert bool(incomplete) == expected


def test_rows_that_answer_at_the_last_step_of_a_block_need_no_place_in_the_next():
    network, inputs, _ = made("own", "cpu")
    lengths = torch.tensor([5] * 10 + [19] * 10)
    found, incomplete = scheduled.run(network, inputs.nan_to_num(), lengths, rc.Never(), "answer", ((20, 5), (10, 14)))
    assert not incomplete and torch.equal(found.decision.steps, lengths) and not found.decision.fired.any()


def test_the_places_are_those_that_the_last_batches_needed():
    schedule = Schedule(64, 10)
    for batch in range(scheduled.MIN_BATCHES):
        assert schedule.blocks is None
        schedule.note([5] * (48 - batch) + [6] * 12 + [10] * (4 + batch))
    # At most 23 rows are left after step 5, and 11 after step 6.
    assert schedule.blocks == ((64, 5), (32, 1), (16, 4))
    for _ in range(scheduled.MAX_BATCHES):
        schedule.note([5] * 47 + [6] * 13 + [10] * 4)
    assert schedule.blocks == ((64, 5), (32, 1), (16, 4))  # (24, 1) would cost little less
    for _ in range(scheduled.MAX_BATCHES):
        schedule.note([1] * 54 + [2] * 10)
    assert schedule.blocks == ((64, 1), (16, 9))


def test_places_are_chosen_anew_after_a_few_incomplete_batches():
    schedule = Schedule(64, 10)
    for _ in range(scheduled.MIN_BATCHES):
        schedule.note([2] * 64)
    assert schedule.blocks == ((64, 2), (16, 8))
    for turn in range(scheduled.MAX_INCOMPLETE + 1):
        assert schedule.blocks == ((64, 2), (16, 8)), turn
        schedule.note([2] * 30 + [9] * 34, incomplete=True)
    assert schedule.blocks == ((64, 2), (48, 7), (16, 1))


def test_rows_that_answer_later_and_later_get_ever_more_places_to_spare():
    schedule, generator, known = Schedule(512, 81), np.random.default_rng(0), []
    for batch in range(1000):
        answered = 1 + generator.binomial(80, 0.3 + 0.3 * batch / 1000, 512)
        first, incomplete = 0, False
        for places, steps in schedule.blocks or ():
            incomplete |= bool((answered > first).sum() > places)
            first += steps
        schedule.note(answered.tolist(), incomplete)
        if not known or known[-1] != schedule.blocks:
            known.append(schedule.blocks)
    assert len(known) < 10, "too many captures"
    assert sum(places * steps for places, steps in known[-1]) < 0.9 * 512 * 81


@pytest.mark.parametrize(("rows", "places"), [(0, 16), (16, 16), (17, 24), (24, 24), (25, 32), (33, 48), (49, 64)])
def test_numbers_of_places(rows, places):
    assert scheduled._size(rows) == places


def test_what_can_be_captured():
    network, inputs, _ = made("LIF", "cpu")
    rules = {rc.Threshold(0.8): True, rc.Never(): True, rc.FireAt(3): False, rc.Patience(0.8, 2): False}
    for rule, expected in rules.items():
        assert scheduled.can_capture(network, inputs, rule) == expected, rule
    assert not scheduled.can_capture(network, inputs, rc.StepThresholds([0.9, 0.8]))
    assert not scheduled.can_capture(network, inputs[:, :1].expand(-1, 300, -1), rc.Threshold(0.8))
