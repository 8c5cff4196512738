"""Any cell, batched: a row leaves the batch when it fires or ends.

Each step runs only the rows that have not answered, so time and memory, forward and backward, follow the sum of steps
read. Inputs past a row's answer are never read. On a GPU, where finding out which rows have fired makes the host wait,
rows leave only every few steps; until then rows that have answered read zeros, and what they compute is dropped.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankcode.engines.run import Keep, Run, ask, decide_rows, planted_steps
from rankcode.network import Network
from rankcode.rules import Rule
from rankcode.state import map_state


def can_run(network: Network, inputs: Tensor, rule: Rule) -> str | None:
    return None


def steps_until_rows_leave(begin: int, inputs: Tensor) -> int:
    """How many steps from step `begin` on run before rows that answered leave. On a GPU the number grows, so that
    networks that answer in their first steps are fast too."""
    return min(begin, 8) if inputs.is_cuda else 1


def run(
    network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep, expected_steps: Tensor | None = None
) -> Run:
    rows = len(inputs)
    planted = planted_steps(rule, lengths) if network.checkpoints is None else None
    row_ends = set((lengths if planted is None else planted.minimum(lengths)).tolist())
    only_ends = keep == "answer" and planted is not None  # logits are needed only where a row answers
    columns = inputs.unbind(1)  # its gradient takes linear time, that of indexing at every step quadratic time
    live, live_ends = torch.arange(rows, device=inputs.device), lengths
    state = network.initial_state(rows)
    rule_state = map_state(lambda part: part.to(inputs.device), rule.initial_state(rows))
    answers = []  # each time that rows leave: the rows that answered since, their logits, steps and whether they fired
    read = []  # likewise: the rows that read a step, their logits and steps
    begin, last = 1, max(row_ends)

    while begin <= last:
        end = min(begin + steps_until_rows_leave(begin, inputs), last + 1)
        going = torch.ones_like(live, dtype=torch.bool)
        moments = []  # for each step: logits, whether rows fire, answer, and still read
        for step in range(begin, end):
            x_t = columns[step - 1] if len(live) == rows else columns[step - 1][live]
            if step > begin:
                x_t = x_t.where(going.view(-1, *[1] * (x_t.dim() - 1)), 0.0)
            features, state = network.cell(x_t, state)
            may_fire = network.may_fire(step)
            if step not in row_ends and (only_ends or not may_fire):
                continue
            logits = network.logits(features, step)
            spikes = torch.zeros_like(going)
            if may_fire:
                with torch.no_grad():
                    spikes, rule_state = ask(rule, *network.activate(logits), step, rule_state, features)
            done = (spikes | (live_ends == step)) & going
            moments.append((logits, spikes, done, going if may_fire else done, torch.full_like(live, step)))
            going = going & ~done
        begin = end
        if not moments:
            continue
        logits, spikes, done, reading, steps = (torch.stack(column) for column in zip(*moments, strict=True))
        if keep == "read":
            at = reading.nonzero(as_tuple=True)
            read.append((live[at[1]], logits[at], steps[at]))
        at = done.nonzero(as_tuple=True)
        if len(at[0]) == 0:
            continue
        answers.append((live[at[1]], logits[at], steps[at], spikes[at]))
        staying = going.nonzero().squeeze(1)
        if len(staying) == 0:
            break
        live, live_ends = live[staying], live_ends[staying]
        state, rule_state = (map_state(lambda part, at=staying: part[at], part) for part in (state, rule_state))

    row, logits, steps, fired = (torch.cat(column) for column in zip(*answers, strict=True))
    order = row.argsort()
    logits, steps, fired = logits[order], steps[order], fired[order]
    decision = decide_rows(network, rule, logits, steps, fired)
    if keep == "answer":
        return Run(decision, logits, row[order], steps, lengths, keep)
    read_row, read_logits, read_step = (torch.cat(column) for column in zip(*read, strict=True))
    return Run(decision, read_logits, read_row, read_step, lengths, keep)
