"""One row of any length, whose inputs come in blocks: memory does not grow with its length."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from rankcode.decision import Decision
from rankcode.engines.cpu import TorchLayers, block_spikes
from rankcode.engines.cpu_settings import single_thread_if
from rankcode.engines.run import decide_rows, has_fused_step
from rankcode.network import Network
from rankcode.rules import Rule


@torch.no_grad()
def decide_in_blocks(network: Network, blocks: Iterable[Tensor], rule: Rule) -> Decision:
    """The answer to one row on the CPU, from blocks [1, steps, features…]; those after the answer are not asked for.
    The network can fire at every step."""
    cell, state = network.cell, network.initial_state(1)
    layers = TorchLayers(cell, rows=1) if has_fused_step(network) else None
    rule_state = rule.initial_state(1)
    before, logits, fired = 0, torch.empty(0), False
    with single_thread_if(True):
        for block in blocks:
            before += len(logits)
            if layers is not None:
                features = layers.forward(block.transpose(0, 1)).flatten(0, 1)
            else:
                columns = []
                for x_t in block.unbind(1):
                    column, state = cell(x_t, state)
                    columns.append(column)
                features = torch.cat(columns)
            logits = network.logits(features)
            spikes, rule_state = block_spikes(network, rule, logits[:, None], before, rule_state)
            if fired := bool(spikes.any()):
                logits = logits[: int(spikes[:, 0].int().argmax()) + 1]
                break
        steps = torch.tensor([before + len(logits)])
        return decide_rows(network, rule, logits[-1:], steps, torch.tensor([fired]))
