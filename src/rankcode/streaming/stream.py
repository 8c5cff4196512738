"""One live sequence: push inputs, get the decision as soon as there is one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankcode.decision import Decision
from rankcode.engines.cpu_settings import single_thread_if
from rankcode.engines.run import checked_fired, decide_rows
from rankcode.inference import inference, rule_for
from rankcode.network import Network
from rankcode.rules import Rule
from rankcode.state import map_state
from rankcode.streaming.live_inputs import LiveInputs, reads_in_blocks

MAX_AT_ONCE = 2**16  # raw values of a chunk that are buffered at once: a chunk of any size needs bounded memory
ONLY_ROW = np.zeros(1, np.int64)


class Stream:
    """A live sequence. Its decision is the one that `decide` and `predict` give for the whole sequence, at the same
    step.

    A network with a front end takes raw data: samples of sound in −1…1 or of int16, values of a series, an image as it
    appears. Other networks take inputs. `rule` is by default that of the network, or else `Threshold(0.95)`.
    `sample_rate`, if given, must be that of the front end: sound is not resampled.
    """

    def __init__(self, network: Network, rule: Rule | None = None, sample_rate: int | None = None):
        self.network, self.rule = network, rule_for(network, rule)
        self._inputs = LiveInputs(network, 1, sample_rate)
        self._in_blocks = reads_in_blocks(network)
        self.reset()

    def reset(self) -> None:
        """Forget everything and start a new sequence."""
        with torch.no_grad():
            self._state = self.network.initial_state(1)
            self._rule_state = map_state(lambda part: part.to(self._inputs.device), self.rule.initial_state(1))
        self._inputs.streams.reset(0)
        self._features: Tensor | None = None
        self._steps = 0
        self._answered = False

    @property
    def steps(self) -> int:
        """Steps read so far."""
        return self._steps

    @property
    def probabilities(self) -> Tensor | None:
        """Class probabilities [1, classes] after the last step that was read; None before the first."""
        if self._features is None:
            return None
        with inference(self.network):
            return self.network.activate(self.network.logits(self._features, self._steps))[1]

    def push(self, inputs: Any) -> Decision | None:
        """One step [features…], or a chunk of any number of steps or samples. Returns the decision once the rule fires,
        and until then None. What comes after the step of the decision is not read.

        Bad data raises a ValueError, and the stream stays as it was.
        """
        self._check_open()
        items = self._inputs.streams.check(0, inputs)
        at_once = max(1, MAX_AT_ONCE * len(items) // max(1, items.size))
        for begin in range(0, len(items), at_once):
            self._inputs.streams.push(0, items[begin : begin + at_once])
            if (decision := self._read()) is not None:
                return decision
        return None

    def finish(self) -> Decision:
        """The sequence has ended: the decision at its last step, with `fired=False`. Only where a front end completes
        steps with the end of its data, as for sound, the rule can still fire at one of these."""
        self._check_open()
        if self._inputs.streams.pushed[0] == 0:
            raise RuntimeError("nothing was read: push inputs before finish()")
        self._inputs.streams.finish(0)
        if (decision := self._read()) is not None:
            return decision
        assert self._features is not None, "at least one step was read"
        with inference(self.network):
            return self._decide(self.network.logits(self._features, self._steps), fired=False)

    def _check_open(self) -> None:
        if self._answered:
            raise RuntimeError("the stream has answered; call reset()")

    def _read(self) -> Decision | None:
        """Read every step that is complete, up to the one at which the rule fires."""
        waiting = int(self._inputs.streams.waiting()[0])
        if waiting == 0:
            return None
        network, device = self.network, self._inputs.device
        with inference(network), single_thread_if(device.type == "cpu"):
            inputs = self._inputs.take(ONLY_ROW, waiting)
            read = 0
            while read < waiting:
                block = min(self._steps_at_once(), waiting - read)
                if self._in_blocks:
                    features, self._state = network.cell.forward_block(inputs[:, read : read + block], self._state)
                else:
                    features, self._state = network.cell(inputs[:, read], self._state)
                read += block
                self._features, self._steps = features, self._steps + block
                if network.may_fire(self._steps):
                    logits = network.logits(features, self._steps)
                    result = self.rule(*network.activate(logits), self._steps, self._rule_state)
                    fired, self._rule_state = checked_fired(result, 1)
                    if fired:
                        return self._decide(logits, fired=True)
        return None

    def _steps_at_once(self) -> int:
        """Steps that the cell reads at once: one, or those up to the next checkpoint if it can."""
        if not self._in_blocks:
            return 1
        later = (step for step in self.network.checkpoints or () if step > self._steps)
        return next(later, self._steps + MAX_AT_ONCE) - self._steps

    def _decide(self, logits: Tensor, fired: bool) -> Decision:
        self._answered = True
        steps, spike = (torch.tensor([part], device=logits.device) for part in (self._steps, fired))
        return decide_rows(self.network, self.rule, logits, steps, spike)
