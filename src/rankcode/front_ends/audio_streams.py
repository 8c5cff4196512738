"""Live sound: samples in as they arrive, log-mel frames with their context out.

Frame f is centred at sample f · hop and complete with half a window after it; a step needs the `context` frames after
its own. Nothing else of a recording is needed: what is held of each stream is less than a window of samples and
2 · context frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rankcode.data.arrays import as_array
from rankcode.front_ends.input_streams import InputStreams, Queues

if TYPE_CHECKING:
    from rankcode.front_ends.audio import Audio

MAX_FRAMES = 1 << 11  # computed at once: bounds the float64 intermediates to some 30 MB
MAX_AMPLITUDE = 4  # of a waveform in −1…1, which may overshoot a little; integer samples are far larger
INT16_SCALE = 1 / 32768


class AudioStreams(InputStreams):
    """Recordings that are read as they arrive, at the sample rate of the front end."""

    def __init__(self, audio: Audio, rows: int):
        self.audio, self.log_mel = audio, audio.log_mel
        self.pushed = np.zeros(rows, np.int64)
        self._samples = Queues(rows, (), torch.float64)
        self._new: list[tuple[int, np.ndarray]] = []  # rows and their samples, which `waiting` adds to the queues
        self._frames = Queues(rows, (self.log_mel.n_mels,), torch.uint8)

    def check(self, row: int, raw: Any) -> np.ndarray:
        """Samples [samples] in −1…1, or of 16 bits."""
        samples = as_array(raw)
        if samples.ndim == 1 and samples.dtype == np.int16:
            return samples
        if samples.ndim != 1 or samples.dtype.kind != "f":
            raise ValueError(
                f"samples are [samples] of floats in −1…1 or of int16, not {samples.dtype} {list(samples.shape)}"
            )
        largest = np.abs(samples).max(initial=0)
        if not np.isfinite(largest):
            raise ValueError("the samples hold NaN or infinity: none of them were read")
        if largest > MAX_AMPLITUDE:
            raise ValueError(f"samples of floats are in −1…1, not up to {largest:,.0f}: scale them first")
        return samples

    def push(self, row: int, items: np.ndarray) -> None:
        if len(items):
            # The caller may reuse its buffer before they are read, unless it is of bytes, which never change.
            self._new.append((row, items if isinstance(items.base, bytes) else items.copy()))
            self.pushed[row] += len(items)

    def finish(self, row: int) -> None:
        """Silence after the end, as for a whole recording: enough for one step at least."""
        silence = max(0, self.log_mel.shortest(self.audio.context) - int(self.pushed[row]))
        self._new.append((row, np.zeros(silence + self.log_mel.window // 2)))

    def waiting(self) -> np.ndarray:
        self._queue_samples()
        self._compute_frames()
        return np.maximum(self._frames.lengths - 2 * self.audio.context, 0)

    def take(self, rows: np.ndarray, steps: int = 1) -> Tensor:
        frames = self._frames.windows(rows, 0, 2 * self.audio.context + steps)
        self._frames.drop(rows, steps)
        return self.audio(frames)[0]

    def reset(self, row: int) -> None:
        self.pushed[row] = 0
        self._new = [new for new in self._new if new[0] != row]
        self._samples.clear(row)
        self._frames.clear(row)
        self._samples.append(row, np.zeros(self.log_mel.window // 2))

    def _queue_samples(self) -> None:
        """Add the new samples of all rows to their queues, in one operation: packets are many and small."""
        if not self._new:
            return
        self._new.sort(key=lambda new: new[0])  # stable: the samples of a row stay in order
        owners, parts = zip(*self._new, strict=True)
        self._new = []
        if all(part.dtype == np.int16 for part in parts):
            samples = np.concatenate(parts) * INT16_SCALE
        else:
            samples = np.concatenate([part * INT16_SCALE if part.dtype == np.int16 else part for part in parts])
        rows, first = np.unique(owners, return_index=True)
        counts = np.add.reduceat([len(part) for part in parts], first)
        self._samples.append_each(rows, counts, torch.from_numpy(samples.astype(np.float64, copy=False)))

    def _compute_frames(self) -> None:
        """The frames that are complete, of all rows together."""
        window, hop = self.log_mel.window, self.log_mel.hop
        counts = (self._samples.lengths - window) // hop + 1
        rows = np.flatnonzero(counts > 0)
        if len(rows) == 0:
            return
        counts = counts[rows]
        owner = np.repeat(rows, counts)
        starts = (np.arange(len(owner)) - np.repeat(counts.cumsum() - counts, counts)) * hop
        frames = []
        for begin in range(0, len(owner), MAX_FRAMES):
            part = slice(begin, begin + MAX_FRAMES)
            frames.append(self.log_mel.of_windows(self._samples.windows(owner[part], starts[part], window)))
        self._frames.append_each(rows, counts, torch.cat(frames))
        self._samples.drop(rows, counts * hop)
