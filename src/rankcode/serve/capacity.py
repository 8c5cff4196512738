"""How many streams of sound this computer can read in real time."""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch

from rankcode.engines.cpu_settings import single_thread_if
from rankcode.rules import Never
from rankcode.serve.limits import Limits
from rankcode.serve.served_model import ServedModel
from rankcode.streaming import StreamPool

TRIED_STREAMS = 256
TRIED_TICKS = 8
TRIED_SECONDS = 0.04  # of sound in a tick: when there is much to do, ticks take longer and streams read more in each
WARM_UP_SECONDS = 0.3  # of sound, before a stream reads its first step
SHARE = 0.7  # of the time that streams may take: messages need time too, and a processor is slower when all cores work


def measured_streams(model: ServedModel) -> int:
    """As many streams as can be read in a share of the time in which their sound arrives, and at most
    `Limits().max_clients`; for other data than sound, the default of `Limits`."""
    rate = model.sample_rate
    if rate is None:
        return Limits().max_streams
    pool = StreamPool(model.network, Never(), TRIED_STREAMS)
    streams = [pool.open() for _ in range(TRIED_STREAMS)]
    noise = (3000 * np.random.default_rng(0).standard_normal(rate)).astype(np.int16)
    spent = []
    with single_thread_if(next(model.network.parameters()).device.type == "cpu"), torch.inference_mode():
        for tick in range(-1, TRIED_TICKS):
            begun = time.perf_counter()
            for stream in streams:
                pool.push(stream, noise[: round((TRIED_SECONDS if tick >= 0 else WARM_UP_SECONDS) * rate)])
            pool.tick()
            spent.append(time.perf_counter() - begun)
    possible = SHARE * TRIED_SECONDS / (statistics.median(spent[2:]) / TRIED_STREAMS)
    return max(1, min(int(possible), Limits().max_clients))
