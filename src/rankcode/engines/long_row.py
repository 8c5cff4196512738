"""One row of any length, read in parts: memory does not grow with its length."""

from __future__ import annotations

import torch
from torch import Tensor

from rankcode.decision import Decision
from rankcode.engines.block_reading import block_spikes
from rankcode.engines.cpu_settings import single_thread_if
from rankcode.engines.run import decide_rows, read_steps, reads_in_blocks, reads_sequences
from rankcode.network import Network
from rankcode.rules import Rule
from rankcode.state import map_state

STEPS_AT_ONCE = 32  # fewer would take longer, more would read further past an answer
MAX_STEPS = 2**62


class RowReader:
    """A network in evaluation mode on one row. `steps` were read so far, and `features` are those after the last."""

    def __init__(self, network: Network, rule: Rule):
        self.network, self.rule, self.in_blocks = network, rule, reads_in_blocks(network)
        with torch.no_grad():
            self._state, self._rule_state = network.initial_state(1), rule.initial_state(1)
        self.steps, self.features = 0, torch.empty(0)

    def read(self, inputs: Tensor) -> Decision | None:
        """Read steps [1, steps, features…] until the rule fires; what comes after that is not read, or is ignored."""
        network, begin = self.network, 0
        with single_thread_if(not inputs.is_cuda):
            if self.steps == 0:
                self._rule_state = map_state(lambda part: part.to(inputs.device), self._rule_state)
            while begin < inputs.shape[1]:
                block = inputs[:, begin : begin + self._steps_at_once()]
                begin += block.shape[1]
                if self.in_blocks:
                    features, self._state = network.cell.forward_block(block, self._state)
                else:
                    features, self._state = read_steps(network, block, self._state)
                    features = features[0]
                self.steps, self.features = self.steps + block.shape[1], features[-1:]
                if not network.may_fire(self.steps):
                    continue
                before = self.steps - len(features)
                logits = network.logits(features, self.steps)
                spikes, self._rule_state = block_spikes(
                    network, self.rule, features[:, None], logits, before, self._rule_state
                )
                if spikes.any():
                    answer = int(spikes[:, 0].int().argmax())
                    self.steps, self.features = before + answer + 1, features[answer : answer + 1]
                    return self._decide(logits[answer : answer + 1], fired=True)
        return None

    def finish(self) -> Decision:
        """The row has ended: the decision at its last step."""
        return self._decide(self.network.logits(self.features, self.steps), fired=False)

    def _steps_at_once(self) -> int:
        if not self.in_blocks:
            return STEPS_AT_ONCE if reads_sequences(self.network) else 1
        following = (step for step in self.network.checkpoints or () if step > self.steps)
        return next(following, MAX_STEPS) - self.steps

    def _decide(self, logits: Tensor, fired: bool) -> Decision:
        steps, spike = (torch.tensor([part], device=logits.device) for part in (self.steps, fired))
        return decide_rows(self.network, self.rule, logits, steps, spike)
