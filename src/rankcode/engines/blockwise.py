"""Networks that can fire at checkpoints only, with a cell that reads many steps at once.

The cell reads from one checkpoint to the next; between them there is nothing to decide. Rows leave at checkpoints.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankcode.engines.cpu_settings import single_thread_if
from rankcode.engines.run import Keep, Run, ask, decide_rows, reads_in_blocks
from rankcode.network import Network
from rankcode.rules import Rule
from rankcode.state import map_state

PARALLEL_ROWS = 200  # for fewer, a second thread costs more than it gains


def can_run(network: Network, inputs: Tensor, rule: Rule) -> str | None:
    if network.checkpoints is None:
        return "it can fire at every step"
    if not reads_in_blocks(network):
        return f"{type(network.cell).__name__} reads one step at a time"
    return None


def run(
    network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep, expected_steps: Tensor | None = None
) -> Run:
    with single_thread_if(len(inputs) < PARALLEL_ROWS):
        return _run(network, inputs, lengths, rule, keep)


def _run(network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep) -> Run:
    live = torch.arange(len(inputs), device=inputs.device)
    state = network.initial_state(len(inputs))
    rule_state = map_state(lambda part: part.to(inputs.device), rule.initial_state(len(inputs)))
    columns = []  # at each step with an output: rows, logits, steps, whether they fired, whether they answered
    begin = 0
    for step in sorted({*(network.checkpoints or ()), *lengths.tolist()}):
        features, state = network.cell.forward_block(inputs[live, begin:step], state)
        begin = step
        logits = network.logits(features, step)
        fired = torch.zeros_like(live, dtype=torch.bool)
        if network.may_fire(step):
            with torch.no_grad():
                fired, rule_state = ask(rule, *network.activate(logits), step, rule_state, features)
        done = fired | (lengths[live] == step)
        has_output = slice(None) if network.may_fire(step) else done.nonzero().squeeze(1)
        column = (live, logits, torch.full_like(live, step), fired, done)
        columns.append(tuple(part[has_output] for part in column))
        staying = (~done).nonzero().squeeze(1)
        if len(staying) == 0:
            break
        if len(staying) < len(live):
            live = live[staying]
            state, rule_state = (map_state(lambda part, at=staying: part[at], part) for part in (state, rule_state))

    row, logits, steps, fired, done = (torch.cat(column) for column in zip(*columns, strict=True))
    answers = done.nonzero().squeeze(1)
    answers = answers[row[answers].argsort()]
    decision = decide_rows(network, rule, logits[answers], steps[answers], fired[answers])
    if keep == "answer":
        return Run(decision, logits[answers], row[answers], steps[answers], lengths, keep)
    return Run(decision, logits, row, steps, lengths, keep)
