"""`rankcode listen`."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from itertools import chain, islice

import numpy as np

from rankcode.cli.bars import Bars
from rankcode.cli.options import Flag, rule_at
from rankcode.data.sound_files import sound_blocks
from rankcode.network import Network
from rankcode.prediction import named_answers
from rankcode.saving.run_folder import load
from rankcode.streaming import Listener, Stream
from rankcode.streaming.microphone import microphone

MAX_CLIP_SECONDS = 2  # a longer recording may hold several words
CHUNK_SECONDS = 0.02
END_SECONDS = 0.5  # of silence after a long recording: a word at its end can still fire


@dataclass(frozen=True)
class Listen:
    """Recognise words as they are spoken, in sound files or from a microphone.

    The network that comes with rankcode knows yes, no, up, down, left, right, on, off, stop and go. A recording of at
    most two seconds gets one answer, as soon as the network is sure. In a longer one, and from a microphone, every word
    that the network knows is reported.

    For example:

        rankcode listen clip.wav
        rankcode listen --mic
        rankcode listen meeting.flac --json
        rankcode listen clip.wav --model runs/speech --speed 0.25
    """

    files: tuple[str, ...] = ()
    """Sound files."""
    _: KW_ONLY
    mic: Flag = False
    """Listen to the microphone until Ctrl-C."""
    model: str = "speech-commands"
    """Folder of a run, a model file, or the network that comes with rankcode."""
    threshold: float | None = None
    """θ to answer at. Default: that of the network for short recordings, that of rankcode.Listener otherwise."""
    speed: float | None = None
    """How fast a file is played: 1 is real time, 0 as fast as possible. Default: 1 in a terminal, 0 otherwise."""
    json: Flag = False
    """Print a line of JSON for each word instead of bars and text."""

    def run(self) -> None:
        if self.mic == bool(self.files):
            raise ValueError("name sound files to listen to, or --mic" + (", not both" if self.mic else ""))
        if self.speed is not None and not 0 <= self.speed < math.inf:
            raise ValueError(f"--speed must be a number of at least 0, not {self.speed:g}")
        network = load(self.model)
        rate = getattr(network.front_end, "sample_rate", None)
        if rate is None:
            raise ValueError(f"{self.model} does not read sound: choose another --model")
        if self.mic:
            return self._listen(network, "microphone", microphone(rate))
        for path in self.files:
            chunks = _chunks(sound_blocks(path, rate), round(CHUNK_SECONDS * rate))
            start = list(islice(chunks, round(MAX_CLIP_SECONDS / CHUNK_SECONDS) + 1))
            if sum(map(len, start)) <= MAX_CLIP_SECONDS * rate:
                self._answer(network, path, start, rate)
            else:
                ending = np.zeros(round(END_SECONDS * rate), np.float32)
                self._listen(network, path, self._played(chain(start, chunks, [ending]), rate))

    def _answer(self, network: Network, path: str, chunks: list[np.ndarray], rate: int) -> None:
        """One answer to a short recording."""
        stream = Stream(network, None if self.threshold is None else rule_at(self.threshold, network))
        bars, decision = Bars(network, stream.rule, not self.json), None
        for chunk in self._played(chunks, rate):
            if (decision := stream.push(chunk)) is not None:
                break
            bars.draw(stream)
        decision = stream.finish() if decision is None else decision
        bars.draw(stream, now=True)
        samples = sum(map(len, chunks))
        (answer,) = named_answers(network, decision, [samples])
        length = 1000 * samples / rate
        if self.json:
            print(json.dumps({"from": path, **answer._asdict(), "length": length}), flush=True)
            return
        when = f"after {answer.milliseconds:.0f} ms of {length:,.0f}" if answer.fired else "at the end, not sure"
        bars.say(f"{answer.label}, {when} ({answer.probability:.3f})   {path}", below=True)

    def _listen(self, network: Network, name: str, chunks: Iterable[np.ndarray]) -> None:
        """Every keyword in a long recording."""
        listener = Listener(network) if self.threshold is None else Listener(network, self.threshold)
        bars = Bars(network, listener.rule.rule, not self.json)
        count = 0
        for chunk in chunks:
            for found in listener.push(chunk):
                count += 1
                if self.json:
                    print(json.dumps({"from": name, **found._asdict()}), flush=True)
                else:
                    bars.say(f"{found.seconds:9.2f} s   {found.label:<10} ({found.probability:.3f})   {name}")
            bars.draw(listener)
        if not self.json:
            bars.say(f"{count:,} words   {name}", below=True)

    def _played(self, chunks: Iterable[np.ndarray], rate: int) -> Iterator[np.ndarray]:
        """Chunks of a file, each when its last sample would have been recorded."""
        speed = float(sys.stdout.isatty() and not self.json) if self.speed is None else self.speed
        start, samples = time.monotonic(), 0
        for chunk in chunks:
            samples += len(chunk)
            if speed:
                time.sleep(max(0.0, start + samples / rate / speed - time.monotonic()))
            yield chunk


def _chunks(blocks: Iterable[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """The same samples in chunks of this size; the last of a block may be shorter."""
    return (block[begin : begin + size] for block in blocks for begin in range(0, len(block), size))
