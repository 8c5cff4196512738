"""Any cell, with the number of rows at each step fixed beforehand, so that a whole training step is one CUDA graph.

A schedule says how many rows there is room for in each block of steps. Between blocks, the rows that have not answered
move together into the places that remain; the host never waits. If there are more rows than places, the run is
incomplete and has to be repeated with another engine. `Schedule` chooses the numbers of places by where rows answered
in the last batches, so this is rare.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankcode.engines.block_reading import block_spikes
from rankcode.engines.run import Keep, Run, decide_rows, declared, planted_steps, read_steps
from rankcode.network import Network
from rankcode.rules import Rule
from rankcode.state import map_state, rows_of

Blocks = tuple[tuple[int, int], ...]  # places and steps of each

MAX_STEPS = 256  # of a row: every step is captured
MIN_PLACES = 16  # fewer rows take a GPU as long
COST_OF_STEP = 16  # of any number of rows, in rows
MIN_BATCHES, MAX_BATCHES = 8, 32  # that a schedule is made for
MAX_INCOMPLETE = 2  # of them, with a schedule that is kept
GAIN = 0.85  # cost of another schedule ÷ that of the present one, below which it pays to capture it


def can_capture(network: Network, inputs: Tensor, rule: Rule) -> bool:
    """Whether a run and its backward pass can be captured in a CUDA graph."""
    known = declared(rule, "planted_steps") or declared(rule, "stationary")
    return bool(known and declared(rule, "capturable")) and inputs.shape[1] <= MAX_STEPS


class Schedule:
    """Places for the rows of batches of one size, by where rows answered in the last batches."""

    def __init__(self, rows: int, steps: int):
        self.rows, self.steps = rows, steps
        self.recent: deque[np.ndarray] = deque(maxlen=MAX_BATCHES)  # of each batch: rows left after 0, 1, 2, … steps
        self.blocks: Blocks | None = None  # None while too few batches are known
        self.batches = self.incomplete = 0  # since `blocks` were considered last
        self.margin = 0.5  # square roots of the rows left, for which there are more places

    def note(self, answered: list[int], incomplete: bool = False) -> None:
        """The steps at which the rows of a batch answered. Changes `blocks` if too many batches were incomplete, or if
        other blocks cost much less."""
        self.recent.append(len(answered) - np.bincount(answered, minlength=self.steps + 1).cumsum())
        self.batches, self.incomplete = self.batches + 1, self.incomplete + incomplete
        if self.batches < (MIN_BATCHES if self.blocks is None else MAX_BATCHES) and self.incomplete <= MAX_INCOMPLETE:
            return
        if self.incomplete > MAX_INCOMPLETE:  # rows answer later and later, or there is more chance than was thought
            self.margin = min(2 * self.margin, self.rows)  # no more, as then there are places for all
        best = self._best()
        if self.blocks is None or self.incomplete > MAX_INCOMPLETE or _cost(best) < GAIN * _cost(self.blocks):
            self.blocks = best
        self.batches = self.incomplete = 0

    def _best(self) -> Blocks:
        most = np.max(self.recent, 0)[: self.steps]
        places = [min(self.rows, _size(math.ceil(left + self.margin * left**0.5))) for left in most.tolist()]
        ends = [step for step in range(1, self.steps + 1) if step == self.steps or places[step] < places[step - 1]]
        return tuple((places[end - 1], end - begin) for begin, end in zip([0, *ends], ends, strict=False))


def _size(rows: int) -> int:
    """Places for some rows: 16, 24, 32, 48, 64, …, so that schedules seldom change."""
    power = max(MIN_PLACES, 1 << max(rows - 1, 0).bit_length())
    return power * 3 // 4 if rows <= power * 3 // 4 >= MIN_PLACES else power


def _cost(blocks: Blocks) -> int:
    return sum((places + COST_OF_STEP) * steps for places, steps in blocks)


def run(
    network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep, blocks: Blocks
) -> tuple[Run, Tensor]:
    """Run all rows; also whether the run is incomplete, a bool tensor. An incomplete run holds arbitrary values.
    With keep="read" the entries are those of a captured run: see `Run`."""
    total, steps, device = *inputs.shape[:2], inputs.device
    inputs = inputs.nan_to_num(0.0, 0.0, 0.0)  # past an answer the gradient is 0, and 0 · NaN would be NaN
    row = torch.arange(total, device=device)
    live = torch.ones(total, dtype=torch.bool, device=device)
    incomplete = torch.zeros((), dtype=torch.bool, device=device)
    answered, fired, planted = lengths.clone(), torch.zeros_like(live), planted_steps(rule, lengths)
    entry = torch.zeros(total, steps, dtype=torch.long, device=device)  # which of the logits are those of a row's step
    state: Any = network.initial_state(total)
    rule_state = map_state(lambda part: part.to(device), rule.initial_state(total))
    found, first, entries = [], 0, 0
    for places, count in blocks:
        if places < len(row):
            incomplete = incomplete | (live.sum() > places)
            staying = (~live).to(torch.uint8).argsort(stable=True)[:places]
            row, live, state, rule_state = rows_of((row, live, state, rule_state), staying)
        x = inputs[:, first : first + count]
        features, state = read_steps(network, x if places == total else x.index_select(0, row), state)
        features = features.transpose(0, 1)  # [steps, places, …]
        logits = network.logits(features.flatten(0, 1))
        step = torch.arange(count, device=device)[:, None]
        if planted is not None:
            spikes = step + first + 1 == planted[row]
        else:
            with torch.no_grad():
                spikes, rule_state = block_spikes(network, rule, features, logits, first, rule_state)
        stops = spikes | (step + first + 1 >= lengths[row])
        reading = stops.cumsum(0) - stops.long() == 0  # up to and including the step at which a row answers
        last = reading.sum(0) - 1
        answers = stops.any(0) & live
        answered[row] = torch.where(answers, first + 1 + last, answered[row])
        fired[row] = torch.where(answers, spikes.gather(0, last[None])[0], fired[row])
        entry[row, first : first + count] = (entries + step * places + torch.arange(places, device=device)).T
        live = live & ~answers
        found.append(logits)
        first, entries = first + count, entries + count * places
    logits, at = torch.cat(found), torch.arange(total, device=device)
    answers = logits.index_select(0, entry[at, answered - 1])
    decision = decide_rows(network, rule, answers, answered, fired)
    if keep == "answer":
        return Run(decision, answers, at, answered, lengths, keep), incomplete
    step = torch.arange(1, steps + 1, device=device)
    every = at.repeat_interleave(steps), step.repeat(total)
    read = (step <= answered[:, None]).flatten()
    return Run(decision, logits.index_select(0, entry.flatten()), *every, lengths, keep, read), incomplete
