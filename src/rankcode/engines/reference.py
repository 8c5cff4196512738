"""Algorithm 1 of the paper, literally: one row at a time, one step at a time, until the first spike.

Slow and simple; every other engine is tested against it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankcode.engines.run import Keep, Run, ask, decide_rows
from rankcode.network import Network
from rankcode.rules import Rule
from rankcode.state import map_state


def can_run(network: Network, inputs: Tensor, rule: Rule) -> str | None:
    return None


def run(
    network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep, expected_steps: Tensor | None = None
) -> Run:
    rule_states = map_state(lambda part: part.to(inputs.device), rule.initial_state(len(inputs)))
    answers, steps, fired = [], [], []  # one for each row
    read, row, step = [], [], []  # one for each step that was read
    for i in range(len(inputs)):
        state = network.initial_state(1)
        rule_state = map_state(lambda part, i=i: part[i : i + 1], rule_states)
        t, spike = 0, False
        while not spike and t < lengths[i]:
            t += 1
            features, state = network.cell(inputs[i : i + 1, t - 1], state)
            if not (network.may_fire(t) or t == lengths[i]):
                continue
            logits = network.logits(features, t)
            if network.may_fire(t):
                with torch.no_grad():
                    fired_now, rule_state = ask(rule, *network.activate(logits), t, rule_state, features)
                spike = bool(fired_now)
            read.append(logits)
            row.append(i)
            step.append(t)
        answers.append(read[-1])
        steps.append(t)
        fired.append(spike)

    def column(values, dtype=torch.long):
        return torch.tensor(values, dtype=dtype, device=inputs.device)

    answer = torch.cat(answers)
    decision = decide_rows(network, rule, answer, column(steps), column(fired, torch.bool))
    if keep == "answer":
        return Run(decision, answer, column(range(len(inputs))), decision.steps, lengths, keep)
    return Run(decision, torch.cat(read), column(row), column(step), lengths, keep)
