"""Live sound streams in real time: how long after the sound do decisions come, and how many streams hold a limit?

Every stream gets a packet of 20 ms when its last sample has been recorded, and answers at a planted step, evenly spread
over a second; then the next stream begins in its place. So there are always as many live streams, whatever the weights.
Packets of different streams arrive at different times. A decision's latency is counted from the recording of the last
sample that it depends on, so it includes the time until that sample's packet arrived.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rankcode.front_ends import Audio, LogMel
from rankcode.network import Network
from rankcode.streaming import StreamPool

LIMIT_MS = 50.0  # within which 99 % of the decisions should come
PACKET_SECONDS = 0.02
TICK_SECONDS = 0.01  # between two ticks: more often would make batches smaller and streams slower
WARM_UP_SECONDS = 1.5  # in which streams start one after the other
MAX_LATE_SECONDS = 2.0  # a measurement that is further behind the clock is given up: the machine is too slow


@dataclass(frozen=True)
class Streams:
    """A number of live streams, measured for some seconds."""

    streams: int
    seconds: float
    decisions: int
    p50: float  # milliseconds from the sound to the decision, median
    p99: float
    longest: float
    busy: float  # share of the time spent in `push` and `tick`

    @property
    def holds(self) -> bool:
        return self.p99 <= LIMIT_MS


class PlantedEvenly:
    """Fires each row at a step drawn from 1…steps."""

    def __init__(self, steps: int):
        self.steps, self.generator = steps, torch.Generator().manual_seed(0)

    def initial_state(self, batch_size: int) -> torch.Tensor:
        return torch.randint(1, self.steps + 1, (batch_size,), generator=self.generator)

    def __call__(self, activations, probabilities, step, state):
        return state <= step, state


def sound_front_end() -> Audio:
    """A front end as for Speech Commands: 420 values a step."""
    return Audio((-5.0,) * 20, (3.0,) * 20, LogMel())


def measure_streams(network: Network, count: int, seconds: float) -> Streams:
    """Run `count` streams for this many seconds of real time, after a warm-up."""
    front_end: Any = network.front_end
    rate, size = front_end.sample_rate, round(PACKET_SECONDS * front_end.sample_rate)
    steps = int(front_end.num_steps(torch.tensor(1 + rate // front_end.log_mel.hop)))  # in a second
    pool = StreamPool(network, PlantedEvenly(steps), count, rate, max_buffered=2 * round(MAX_LATE_SECONDS * rate))
    sound = (3000 * np.random.default_rng(0).standard_normal(2 * rate)).astype(np.int16)
    packets = [sound[begin : begin + size] for begin in range(0, len(sound) - size, size)]
    places: dict[int, int] = {pool.open(): place for place in range(count)}
    ids = list(places)
    latencies, spent, begun = [], 0.0, time.perf_counter()
    started = begun + np.arange(count) / count  # when the sound of each stream began
    pushed = np.zeros(count, np.int64)  # packets of each stream
    while (now := time.perf_counter()) < begun + WARM_UP_SECONDS + seconds:
        recorded = np.floor((now - started) / PACKET_SECONDS).astype(np.int64)
        if (recorded - pushed).max() * PACKET_SECONDS > MAX_LATE_SECONDS:
            latencies += count * [1000 * MAX_LATE_SECONDS]  # at least: the decisions that are due
            break
        for place in np.flatnonzero(recorded > pushed).tolist():
            for number in range(pushed[place], recorded[place]):
                pool.push(ids[place], packets[number % len(packets)])
            pushed[place] = recorded[place]
        answers = pool.tick()
        answered = time.perf_counter()
        for stream, decision in answers:
            place = places.pop(stream)
            heard = front_end.heard(decision.steps, torch.tensor([2 * rate])).item() / 1000
            if started[place] + heard > begun + WARM_UP_SECONDS:
                latencies.append(1000 * (answered - started[place] - heard))
            started[place] += pushed[place] * PACKET_SECONDS
            pushed[place], ids[place] = 0, pool.open()
            places[ids[place]] = place
        done = time.perf_counter()
        spent += done - now
        time.sleep(max(0.0, now + TICK_SECONDS - done))
    if len(latencies) < 2:
        raise ValueError(f"{count:,} streams for {seconds:g} s gave {len(latencies)} decisions: measure for longer")
    centiles = statistics.quantiles(latencies, n=100, method="inclusive")
    elapsed = time.perf_counter() - begun
    return Streams(count, seconds, len(latencies), centiles[49], centiles[98], max(latencies), spent / elapsed)


def streams_table(found: Iterable[Streams]) -> str:
    """The measurements as text, and the largest number of streams that holds the limit."""
    found = list(found)
    lines = [f"{'streams':>8} {'decisions':>10} {'p50 ms':>8} {'p99 ms':>8} {'longest':>8} {'busy':>6}"]
    for each in found:
        lines.append(
            f"{each.streams:>8,} {each.decisions:>10,} {each.p50:>8.1f} {each.p99:>8.1f} {each.longest:>8.1f} "
            f"{each.busy:>6.0%}"
        )
    largest = max((each.streams for each in found if each.holds), default=0)
    return "\n".join([*lines, f"99 % of the decisions within {LIMIT_MS:g} ms: up to {largest:,} streams"])
