"""One live sequence: push inputs, get the decision as soon as there is one."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rankcode.decision import Decision
from rankcode.engines.long_row import RowReader
from rankcode.inference import inference, rule_for
from rankcode.network import Network
from rankcode.rules import Rule
from rankcode.streaming.live_inputs import ONLY_ROW, LiveInputs


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
        self.reset()

    def reset(self) -> None:
        """Forget everything and start a new sequence."""
        self._reader = RowReader(self.network, self.rule)
        self._inputs.streams.reset(0)
        self._answered = False

    @property
    def steps(self) -> int:
        """Steps read so far."""
        return self._reader.steps

    @property
    def probabilities(self) -> Tensor | None:
        """Class probabilities [1, classes] after the last step that was read; None before the first."""
        if self.steps == 0:
            return None
        with inference(self.network):
            return self.network.activate(self.network.logits(self._reader.features, self.steps))[1]

    def push(self, inputs: Any) -> Decision | None:
        """One step [features…], or a chunk of any number of steps or samples. Returns the decision once the rule fires,
        and until then None. What comes after the step of the decision is not read.

        Bad data raises a ValueError, and the stream stays as it was.
        """
        self._check_open()
        for waiting in self._inputs.pushed(inputs):
            if (decision := self._read(waiting)) is not None:
                return decision
        return None

    def finish(self) -> Decision:
        """The sequence has ended: the decision at its last step, with `fired=False`. Only where a front end completes
        steps with the end of its data, as for sound, the rule can still fire at one of these."""
        self._check_open()
        if self._inputs.streams.pushed[0] == 0:
            raise RuntimeError("nothing was read: push inputs before finish()")
        self._inputs.streams.finish(0)
        if (decision := self._read(int(self._inputs.streams.waiting()[0]))) is None:
            with inference(self.network):
                decision = self._reader.finish()
        self._answered = True
        return decision

    def _check_open(self) -> None:
        if self._answered:
            raise RuntimeError("the stream has answered; call reset()")

    def _read(self, waiting: int) -> Decision | None:
        """Read the steps that are complete, up to the one at which the rule fires."""
        decision = None
        if waiting:
            with inference(self.network):
                decision = self._reader.read(self._inputs.take(ONLY_ROW, waiting))
        self._answered = decision is not None
        return decision
