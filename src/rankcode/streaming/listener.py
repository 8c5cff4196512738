"""Always-on listening: endless input in, the keywords in it out, each with its time.

A network that was trained on clips of about a second cannot read for hours: its state drifts into what it has never
seen. So copies of the network start one after the other, every `stagger` steps, and start anew when each of the others
has started. All read the same input, as rows of one batch. A copy that has just started knows too little, and one that
started in the middle of a word hears only the rest of it, so no copy decides alone: the rule reads the mean of their
probabilities, and has to hold for some time. What tells a keyword from other words is not how probable it is, but how
probable it is beside "unknown". docs/listening.md describes how this policy and its numbers were chosen.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankcode.engines.cpu_settings import single_thread_if
from rankcode.inference import inference
from rankcode.network import Network
from rankcode.rules import Patience, Threshold, allowed, check_rule
from rankcode.state import map_state
from rankcode.streaming.live_inputs import ONLY_ROW, LiveInputs

NOT_KEYWORDS = ("unknown", "silence")  # classes that are not reported, by default


class Detection(NamedTuple):
    """A keyword that was heard."""

    label: str  # the name of the class
    probability: float  # of that class, the mean of the copies of the network
    steps: int  # read when it fired, counted from the first step of the listener
    seconds: float | None  # of sound heard when it fired, counted from its beginning; None: not sound


class Listener:
    """Finds keywords in endless input, in bounded memory.

    A keyword is detected when its `evidence` has been at least `threshold` (θ) for `patience` steps in a row, and the
    last detection is at least `refractory` steps ago. `keywords` are names of classes; by default all except "unknown"
    and "silence". Each of `copies` copies of the network reads `copies · stagger` steps; in its first
    `warm_up` steps it is not counted. The defaults were chosen for the network "speech-commands", with steps of 20 ms.
    `sample_rate`, if given, must be that of the front end: sound is not resampled.
    """

    def __init__(
        self,
        network: Network,
        threshold: float = 0.965,
        patience: int = 12,
        keywords: Collection[str] | None = None,
        copies: int = 4,
        stagger: int = 12,
        warm_up: int = 24,
        refractory: int = 38,
        sample_rate: int | None = None,
    ):
        if network.checkpoints is not None:
            raise ValueError("a listener needs a network that can fire at every step")
        if min(copies, stagger, refractory) < 1 or not 0 <= warm_up < copies * stagger:
            raise ValueError(
                "copies, stagger and refractory must be at least 1 and warm_up in 0…copies · stagger − 1, not "
                f"{copies}, {stagger}, {refractory} and {warm_up}"
            )
        self.network, self._inputs = network, LiveInputs(network, 1, sample_rate)
        self.label_names = network.class_names
        classes = _classes(self.label_names, keywords)
        self._unknown = self.label_names.index("unknown") if "unknown" in self.label_names else None
        self.rule = Patience(Threshold(threshold, classes), patience)
        check_rule(self.rule, network.activation, network.num_classes)
        self.copies, self.stagger, self.warm_up, self.refractory = copies, stagger, warm_up, refractory
        self.reset()

    def reset(self) -> None:
        """Forget everything, and count from 0 again."""
        self._inputs.streams.reset(0)
        with torch.no_grad():
            self._state = self.network.initial_state(self.copies)
            self._rule_state = map_state(lambda part: part.to(self._inputs.device), self.rule.initial_state(1))
        self.steps = 0  # read so far
        self.probabilities: Tensor | None = None  # [1, classes], mean after the last step; None before the first
        self.evidence: Tensor | None = None  # [1, classes], from these: what is compared with θ
        self._reported: int | None = None  # the class that continues to fire
        self._last = -self.refractory  # step of the last detection

    def push(self, inputs: Any) -> list[Detection]:
        """A chunk of any size, as for `Stream`. Returns the keywords that were found in it, in order.

        Bad data raises a ValueError, and the listener stays as it was.
        """
        found = []
        for waiting in self._inputs.pushed(inputs):
            if waiting:
                with inference(self.network), single_thread_if(self._inputs.device.type == "cpu"):
                    for x in self._inputs.take(ONLY_ROW, waiting)[0]:
                        found += self._read(x)
        return found

    def _read(self, x: Tensor) -> list[Detection]:
        """Read one step with every copy."""
        network = self.network
        if self.steps % self.stagger == 0:
            row = self.steps // self.stagger % self.copies
            parts = self._state, network.initial_state(1)
            self._state = map_state(lambda whole, new: torch.cat([whole[:row], new, whole[row + 1 :]]), *parts)
        features, self._state = network.cell(x.expand(self.copies, *x.shape), self._state)
        self.steps += 1
        age = self._ages()
        counted = (age > self.warm_up) & (age <= self.steps)
        if not counted.any():
            return []
        activations, self.probabilities = (
            part[counted].mean(0, keepdim=True) for part in network.activate(network.logits(features))
        )
        self.evidence = evidence(self.probabilities, self._unknown)
        activations = activations if network.activation == "membrane" else self.evidence
        fired, self._rule_state = self.rule(activations, self.probabilities, self.steps, self._rule_state)
        if not fired:
            self._reported = None
            return []
        label = int(allowed(activations, self.rule.classes).argmax())
        if label == self._reported or self.steps - self._last < self.refractory:
            return []
        self._reported, self._last = label, self.steps
        heard = None
        if network.front_end is not None:
            heard = network.front_end.heard(torch.tensor([self.steps]), torch.tensor([torch.iinfo(torch.int64).max]))
        seconds = None if heard is None else heard.item() / 1000
        return [Detection(self.label_names[label], self.probabilities[0, label].item(), self.steps, seconds)]

    def _ages(self) -> Tensor:
        """Steps that each copy has read since it started; more than all steps if it has not started."""
        started = self.stagger * torch.arange(self.copies)
        return (self.steps - 1 - started) % (self.copies * self.stagger) + 1


def evidence(probabilities: Tensor, unknown: int | None) -> Tensor:
    """What is compared with θ, for each class: its share of the probability that it has together with the class
    "unknown", or 0 if it is not the most probable class. Without such a class, its probability."""
    if unknown is None:
        return probabilities
    share = probabilities / (probabilities + probabilities[..., [unknown]])
    share[..., unknown] = probabilities[..., unknown]
    return share.where(probabilities == probabilities.amax(-1, keepdim=True), 0.0)


def _classes(names: tuple[str, ...], keywords: Collection[str] | None) -> tuple[int, ...]:
    """The numbers of the classes that may fire."""
    chosen = [name for name in names if name not in NOT_KEYWORDS] if keywords is None else keywords
    for name in chosen:
        if name not in names:
            raise ValueError(f"the network has no class {name!r}, only {', '.join(names)}")
    return tuple(names.index(name) for name in chosen)
