"""Any cell, batched: a row leaves the batch when it fires or ends.

Every step runs the rows still live and no other, so time and memory, forward and backward, follow the sum
of steps read. Inputs past a row's answer are never looked at.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankcode.engines.run import Keep, Run, checked_fired, decide_rows
from rankcode.network import Network
from rankcode.rules import Never, Rule
from rankcode.state import map_state


def run(network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep) -> Run:
    rows = len(inputs)
    row_ends = set(lengths.tolist())
    only_ends = keep == "answer" and isinstance(rule, Never)  # logits are needed where a row ends, else not
    live, live_ends = torch.arange(rows, device=inputs.device), lengths
    state = network.initial_state(rows)
    rule_state = map_state(lambda part: part.to(inputs.device), rule.initial_state(rows))
    answers = []  # for each step that some rows answered at: their numbers, logits, steps and whether they fired
    read = []  # for each step: the rows that read it, their logits and steps

    for step in range(1, max(row_ends) + 1):
        x_t = inputs[:, step - 1] if len(live) == rows else inputs[live, step - 1]
        features, state = network.cell(x_t, state)
        if only_ends and step not in row_ends:
            continue
        logits = network.logits(features)
        with torch.no_grad():
            spikes, rule_state = rule(*network.activate(logits), step, rule_state)
        if keep == "read":
            read.append((live, logits, torch.full_like(live, step)))
        done = checked_fired(spikes, len(live)) | (live_ends == step)
        if not done.any():
            continue
        answers.append((live[done], logits[done], torch.full_like(live[done], step), spikes[done]))
        staying = (~done).nonzero().squeeze(1)
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
