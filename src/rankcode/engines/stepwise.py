"""Any cell, batched: a row leaves the batch when it fires or ends.

Every step runs the rows still live and no other, so time and memory, forward and backward, follow the sum
of steps read. Inputs past a row's answer are never looked at. On a GPU, where a look at who has fired makes the host
wait, rows leave every few steps only; until then those that have answered read zeros, and nothing of it is kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankcode.engines.run import Keep, Run, checked_fired, decide_rows
from rankcode.network import Network
from rankcode.rules import Never, Rule
from rankcode.state import map_state


def steps_until_look(begin: int, inputs: Tensor) -> int:
    """How many steps, from the step `begin` on, pass until the next look at who has answered: on a GPU more and more,
    so that networks that answer in their first steps gain too."""
    return min(begin, 8) if inputs.is_cuda else 1


def run(network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep) -> Run:
    rows = len(inputs)
    row_ends = set(lengths.tolist())
    only_ends = keep == "answer" and isinstance(rule, Never)  # logits are needed where a row ends, else not
    live, live_ends = torch.arange(rows, device=inputs.device), lengths
    state = network.initial_state(rows)
    rule_state = map_state(lambda part: part.to(inputs.device), rule.initial_state(rows))
    answers = []  # for each look: the rows that answered since the last, their logits, steps and whether they fired
    read = []  # for each look: the rows that read a step, their logits and steps
    begin, last = 1, max(row_ends)

    while begin <= last:
        end = min(begin + steps_until_look(begin, inputs), last + 1)
        going = torch.ones_like(live, dtype=torch.bool)
        moments = []  # of each step: logits, whether rows fire, answer, and still read
        for step in range(begin, end):
            x_t = inputs[:, step - 1] if len(live) == rows else inputs[live, step - 1]
            if step > begin:
                x_t = x_t.where(going.view(-1, *[1] * (x_t.dim() - 1)), 0.0)
            features, state = network.cell(x_t, state)
            if only_ends and step not in row_ends:
                continue
            logits = network.logits(features)
            with torch.no_grad():
                spikes, rule_state = rule(*network.activate(logits), step, rule_state)
            done = (checked_fired(spikes, len(live)) | (live_ends == step)) & going
            moments.append((logits, spikes, done, going, torch.full_like(live, step)))
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
        return Run(decision, logits, row[order], steps, lengths)
    read_row, read_logits, read_step = (torch.cat(column) for column in zip(*read, strict=True))
    return Run(decision, read_logits, read_row, read_step, lengths)
