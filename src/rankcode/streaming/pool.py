"""Many live sequences on one network, advanced together.

Every stream has a slot in preallocated tensors: the state of the cell, the state of the rule, the last features. A tick
reads the steps that are complete: one or a few of all streams that have them in one batched forward pass, then the
next. A stream that has answered gives its slot back.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankcode.decision import Decision
from rankcode.engines.run import ask, decide_rows, read_steps, reads_in_blocks, reads_sequences
from rankcode.inference import inference, rule_for
from rankcode.network import Network
from rankcode.rules import Rule
from rankcode.state import State, map_state, rows_of
from rankcode.streaming.live_inputs import LiveInputs

MAX_BLOCK_STEPS = 256  # read at once where no checkpoint is near: bounds what waits in a pool
STEPS_AT_ONCE = 4  # of cells that read many steps: fewer would take longer, more would read further past an answer
ROWS_AT_ONCE = 256  # of more, the intermediate results would not stay in the cache, and be new memory at every tick
MAX_BUFFERED_VALUES = 2**16  # of one stream by default: 4 seconds of sound at 16 kHz

Answers = list[tuple[int, Decision]]


class StreamPool:
    """Up to `capacity` live sequences at once. Decisions are those of `Stream` and `decide`, each of one row.

    `max_buffered`: samples or steps of one stream that may come between two ticks; by default 65,536 values. The other
    arguments are those of `Stream`. A pool belongs to one thread.
    """

    def __init__(
        self,
        network: Network,
        rule: Rule | None = None,
        capacity: int = 1024,
        sample_rate: int | None = None,
        max_buffered: int | None = None,
    ):
        if capacity < 1 or (max_buffered is not None and max_buffered < 1):
            raise ValueError(f"capacity and max_buffered must be at least 1, not {capacity} and {max_buffered}")
        self.network, self.rule = network, rule_for(network, rule)
        self.capacity, self.max_buffered = capacity, max_buffered
        self._inputs, self._in_blocks = LiveInputs(network, capacity, sample_rate), reads_in_blocks(network)
        self._steps_at_once = STEPS_AT_ONCE if reads_sequences(network) else 1
        for slot in range(capacity):
            self._inputs.streams.reset(slot)
        with torch.no_grad():
            initial = self._initial(1)
            self._state, self._rule_state = map_state(lambda part: part.repeat_interleave(capacity, 0), initial)
        self._features: Tensor | None = None  # [capacity, …], of the last step that each stream has read
        self._steps = np.zeros(capacity, np.int64)  # read so far
        self._buffered = np.zeros(capacity, np.int64)  # samples or steps that came since the last tick
        self._finished = np.zeros(capacity, bool)
        self._new = np.zeros(capacity, bool)  # opened since the last tick, and without a state
        self._slots: dict[int, int] = {}  # of the streams that are open, by id
        self._ids = np.zeros(capacity, np.int64)  # of the stream in each slot
        self._free = list(range(capacity))[::-1]
        self._next_id = 0

    def __len__(self) -> int:
        """Streams that are open."""
        return len(self._slots)

    def open(self) -> int:
        """Start a stream. Returns its id, which no other stream of the pool ever gets."""
        if not self._free:
            raise RuntimeError(f"all {self.capacity:,} streams of the pool are open: close some, or raise capacity")
        slot, number = self._free.pop(), self._next_id
        self._next_id += 1
        self._slots[number], self._ids[slot] = slot, number
        self._steps[slot], self._new[slot] = 0, True
        return number

    def push(self, stream: int, inputs: Any) -> None:
        """Add a step or a chunk to a stream, which reads it at the next tick. Bad data raises a ValueError; then the
        stream stays as it was, and no other stream is affected."""
        slot, streams = self._slot(stream), self._inputs.streams
        if self._finished[slot]:
            raise RuntimeError(f"stream {stream} is finished: it answers at the next tick")
        items = streams.check(slot, inputs)
        held = int(self._buffered[slot]) + len(items)
        limit = self.max_buffered or max(1, MAX_BUFFERED_VALUES // math.prod(items.shape[1:]))
        if held > limit:
            raise RuntimeError(
                f"stream {stream} would buffer {held:,} samples or steps, and max_buffered is {limit:,}: call tick() "
                "more often"
            )
        self._buffered[slot] = held
        streams.push(slot, items)

    def finish(self, stream: int) -> None:
        """The sequence of this stream has ended: it answers at the next tick, with its last step if no rule fires."""
        slot = self._slot(stream)
        if self._inputs.streams.pushed[slot] == 0:
            raise RuntimeError(f"stream {stream} has read nothing: push inputs before finish(), or close() it")
        if not self._finished[slot]:
            self._finished[slot] = True
            self._inputs.streams.finish(slot)

    def close(self, stream: int) -> None:
        """End a stream without an answer. One that has answered is closed already."""
        if stream in self._slots:
            self._release(stream)
        elif not 0 <= stream < self._next_id:
            raise ValueError(f"the pool has never had a stream {stream}")

    def tick(self) -> Answers:
        """Read every step that is complete. Returns the ids of the streams that answered, each with its decision."""
        answers: Answers = []
        waiting = self._inputs.streams.waiting()
        self._buffered[:] = 0
        with inference(self.network):
            if len(new := np.flatnonzero(self._new)):
                self._new[:] = False
                states = self._state, self._rule_state
                self._state, self._rule_state = self._stored(states, self._at(new), self._initial(len(new)))
            while (blocks := self._blocks(waiting)).any():
                for steps in np.unique(blocks[blocks > 0]).tolist():
                    slots = np.flatnonzero(blocks == steps)
                    waiting[slots] -= steps
                    for part in np.array_split(slots, -(-len(slots) // ROWS_AT_ONCE)):
                        waiting[self._read(part, steps, answers)] = 0
            ended = np.flatnonzero(self._finished)
            if len(ended):
                assert self._features is not None, "every stream that can finish has read a step"
                steps = torch.from_numpy(self._steps[ended]).to(self._inputs.device)
                logits = self.network.logits(self._features[self._at(ended)], steps)
                self._answer(ended, logits, torch.zeros_like(steps, dtype=torch.bool), answers)
        return answers

    def _blocks(self, waiting: np.ndarray) -> np.ndarray:
        """How many steps each stream reads at once, of those that are complete: one or a few, or if the network can
        fire at checkpoints only, those up to the next, once they have all come."""
        if not self._in_blocks:
            return np.minimum(waiting, self._steps_at_once)
        checkpoints = np.array([*(self.network.checkpoints or ()), np.iinfo(np.int64).max])
        following = checkpoints[np.searchsorted(checkpoints, self._steps, "right")]
        wanted = np.minimum(following - self._steps, MAX_BLOCK_STEPS)
        return np.where((waiting >= wanted) | self._finished, np.minimum(waiting, wanted), 0)

    def _read(self, slots: np.ndarray, steps: int, answers: Answers) -> np.ndarray:
        """Read this many steps of these streams. Adds the answers, and returns the slots that they came from."""
        network, at = self.network, self._at(slots)
        inputs, state = self._inputs.take(slots, steps), rows_of(self._state, at)
        if self._in_blocks:
            features, state = network.cell.forward_block(inputs, state)
            features = features[:, None]
        else:
            features, state = read_steps(network, inputs, state)
        self._state = self._stored(self._state, at, state)
        if self._features is None:
            self._features = features.new_empty(self.capacity, *features.shape[2:])
        self._features = self._stored(self._features, at, features[:, -1])
        self._steps[slots] += steps
        if network.checkpoints is not None:
            may_fire = np.isin(self._steps[slots], network.checkpoints)
            features, slots = features[self._at(may_fire)], slots[may_fire]
            if len(slots) == 0:
                return slots
            at = self._at(slots)
        rows, read = features.shape[:2]
        step = torch.from_numpy(self._steps[slots]).to(at.device)
        logits = network.logits(features.flatten(0, 1), step).unflatten(0, (rows, read))
        activations, probabilities = network.activate(logits)
        state, spikes = rows_of(self._rule_state, at), []
        for k in range(read):
            now = activations[:, k], probabilities[:, k]
            fired, state = ask(self.rule, *now, step - (read - 1 - k), state, features[:, k])
            spikes.append(fired)
        self._rule_state = self._stored(self._rule_state, at, state)
        fired = torch.stack(spikes, 1)
        row = fired.any(1).nonzero()[:, 0]
        if len(row) == 0:
            return slots[:0]
        first = fired[row].int().argmax(1)
        slots = slots[row.cpu().numpy()]
        self._steps[slots] -= (read - 1 - first).cpu().numpy()
        self._answer(slots, logits[row, first], torch.ones_like(row, dtype=torch.bool), answers)
        return slots

    def _answer(self, slots: np.ndarray, logits: Tensor, fired: Tensor, answers: Answers) -> None:
        """Add the decisions of these streams, and give their slots back."""
        steps = torch.from_numpy(self._steps[slots]).to(logits.device)
        decision = decide_rows(self.network, self.rule, logits, steps, fired)
        for slot, row in zip(slots, zip(*(part.split(1) for part in decision), strict=True), strict=True):
            stream = int(self._ids[slot])
            answers.append((stream, Decision(*row)))
            self._release(stream)

    def _initial(self, rows: int) -> State:
        """The states of cell and rule before the first step of this many streams."""
        rule_state = map_state(lambda part: part.to(self._inputs.device), self.rule.initial_state(rows))
        return self.network.initial_state(rows), rule_state

    def _release(self, stream: int) -> None:
        slot = self._slots.pop(stream)
        self._inputs.streams.reset(slot)
        self._buffered[slot], self._finished[slot] = 0, False
        self._free.append(slot)

    def _slot(self, stream: int) -> int:
        if (slot := self._slots.get(stream)) is not None:
            return slot
        if 0 <= stream < self._next_id:
            raise RuntimeError(f"stream {stream} has answered or was closed; open() another")
        raise ValueError(f"the pool has never had a stream {stream}")

    def _at(self, index: np.ndarray) -> Tensor:
        return torch.from_numpy(index).to(self._inputs.device)

    def _stored(self, whole: State, at: Tensor, rows: State) -> State:
        """A state of all slots with these rows in some of them."""

        def put(whole: Tensor, rows: Tensor) -> Tensor:
            if rows.shape[1:] != whole.shape[1:]:
                raise ValueError(
                    f"the state of a stream changes its shape from {list(whole.shape[1:])} to {list(rows.shape[1:])}: "
                    "a pool cannot hold it; use Stream"
                )
            whole = whole.to(torch.promote_types(whole.dtype, rows.dtype))
            return whole.index_copy_(0, at, rows.to(whole.dtype))

        return map_state(put, whole, rows)
