"""Any cell, batched: a row leaves the batch when it fires or ends.

Each step runs only the rows that have not answered, so time and memory, forward and backward, follow the sum of steps
read. Inputs past a row's answer are never read. Where rows can fire at checkpoints only, a cell with `forward_block`
reads up to the next at once. On a GPU, where finding out which rows have fired makes the host wait, rows leave only
every few steps; until then rows that have answered read zeros, and what they compute is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from rankcode.engines.cpu_settings import single_thread_if
from rankcode.engines.run import Keep, Run, ask, decide_rows, planted_steps, reads_in_blocks
from rankcode.network import Network
from rankcode.rules import Rule
from rankcode.state import map_state, rows_of

PARALLEL_ROWS = 200  # of cells that read many steps at once: for fewer, a second thread costs more than it gains


def can_run(network: Network, inputs: Tensor, rule: Rule) -> str | None:
    return None


def steps_until_rows_leave(begin: int, inputs: Tensor) -> int:
    """How many steps from step `begin` on run before rows that answered leave. On a GPU the number grows, so that
    networks that answer in their first steps are fast too."""
    return min(begin, 8) if inputs.is_cuda else 1


def run(
    network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep, expected_steps: Tensor | None = None
) -> Run:
    in_blocks = reads_in_blocks(network)
    with single_thread_if(in_blocks and len(inputs) < PARALLEL_ROWS):
        return _run(network, inputs, lengths, rule, keep, in_blocks)


def _run(network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep, in_blocks: bool) -> Run:
    rows = len(inputs)
    planted = planted_steps(rule, lengths) if network.checkpoints is None else None
    row_ends = set((lengths if planted is None else planted.minimum(lengths)).tolist())
    only_ends = keep == "answer" and planted is not None  # logits are needed only where a row answers
    before, last, leave = 0, max(row_ends), steps_until_rows_leave(1, inputs)
    if in_blocks:
        read, stops, columns = network.cell.forward_block, sorted(row_ends.union(network.checkpoints or ())), ()
    else:  # the gradient of `unbind` takes linear time, that of indexing at every step quadratic time
        read, stops, columns = network.cell, range(1, last + 1), inputs.unbind(1)
    live, live_ends = torch.arange(rows, device=inputs.device), lengths
    going = torch.ones_like(live, dtype=torch.bool)
    state = network.initial_state(rows)
    rule_state = map_state(lambda part: part.to(inputs.device), rule.initial_state(rows))
    # Of each step since rows left: which live rows have an entry, rows, logits, steps, whether they fired and answered
    moments: list[Sequence[Tensor]] = []
    entries: list[Sequence[Tensor]] = []  # the same of the rows with an entry, each time that rows left

    for step in stops:
        x = inputs[:, before:step] if in_blocks else columns[step - 1]
        x = x if len(live) == rows else x.index_select(0, live)
        if moments:
            x = x.where(going.view(-1, *[1] * (x.dim() - 1)), 0.0)
        before = step
        features, state = read(x, state)
        may_fire = network.may_fire(step)
        if step not in row_ends and (only_ends or not may_fire):
            continue
        logits = network.logits(features, step)
        spikes = torch.zeros_like(going)
        if may_fire:
            with torch.no_grad():
                spikes, rule_state = ask(rule, *network.activate(logits), step, rule_state, features)
        done = (spikes | (live_ends == step)) & going
        has_entry = going if keep == "read" and may_fire else done
        moments.append((has_entry, live, logits, torch.full_like(live, step), spikes, done))
        going = going & ~done
        if step < min(leave, last):
            continue
        leave = step + steps_until_rows_leave(step + 1, inputs)
        has_entry, *given = _joined(moments)
        moments = []
        at = has_entry.nonzero().squeeze(1)
        if len(at) == 0:
            continue
        entries.append([part.index_select(0, at) for part in given])
        staying = going.nonzero().squeeze(1)
        if len(staying) == 0:
            break
        if len(staying) < len(live):
            live, live_ends, going, state, rule_state = rows_of((live, live_ends, going, state, rule_state), staying)

    row, logits, steps, fired, done = _joined(entries)
    answers = done.nonzero().squeeze(1)
    answers = answers[row[answers].argsort()]
    logits_of_answers = logits[answers]
    decision = decide_rows(network, rule, logits_of_answers, steps[answers], fired[answers])
    if keep == "answer":
        return Run(decision, logits_of_answers, row[answers], decision.steps, lengths, keep)
    return Run(decision, logits, row, steps, lengths, keep)


def _joined(parts: list[Sequence[Tensor]]) -> Iterable[Tensor]:
    return parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
