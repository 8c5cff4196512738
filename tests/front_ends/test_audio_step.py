"""Sound in hops, as exported networks read it: exactly the inputs of whole recordings."""

import pytest
import torch

from rankcode.front_ends import Audio, LogMel


@pytest.mark.parametrize(
    ("rate", "bands", "hop_ms", "context"),
    [
        (16_000, 40, 10, 0),
        (16_000, 40, 20, 0),
        (16_000, 20, 10, 10),
        (4000, 4, 25, 3),
        (1200, 4, 10, 2),
    ],
)
def test_hops_give_the_inputs_of_the_whole_recording(rate, bands, hop_ms, context):
    audio = Audio((-6.0,) * bands, (3.0,) * bands, LogMel(rate, bands, hop_ms), context)
    step = audio.step_module()
    generator = torch.Generator().manual_seed(0)
    for samples in (1, rate // 9, rate // 3 + 7, rate // 100 * 12):
        loudness = torch.linspace(0, 0.5, samples) ** 3
        waveforms = (loudness * torch.randn(2, samples, generator=generator)).clamp(-1, 1)
        hops = torch.stack([step.sequence(waveform) for waveform in waveforms], 1)
        state, found = step.initial_state(2), []
        for hop in hops:
            inputs, state = step(hop, state)
            found.append(inputs)
        whole = torch.cat([audio(audio.read(waveform).values[None])[0] for waveform in waveforms])
        assert torch.equal(torch.stack(found[step.warm_up :], 1), whole)
