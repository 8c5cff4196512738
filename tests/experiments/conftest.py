import pytest
import torch

from rankcode.experiments.speech_sounds import SECOND, Sounds


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The reproduction at smoke scale, whose runs the tests of a file share."""
    from rankcode.experiments.reproduction import Reproduction  # which needs matplotlib

    return Reproduction("smoke", tmp_path_factory.mktemp("reproduction"), device="cpu", progress=False)


@pytest.fixture(scope="session")
def sounds():
    """Tones of two lengths, and noise."""
    generator = torch.Generator().manual_seed(0)
    time = torch.arange(SECOND) / SECOND
    pitch = torch.randint(200, 3000, (24, 1), generator=generator)
    samples = (8000 * torch.sin(2 * torch.pi * pitch * time)).short()
    lengths = torch.tensor([SECOND, 9000]).repeat(12)
    samples[time * SECOND >= lengths[:, None]] = 0
    noise = 0.1 * torch.randn(3 * SECOND, generator=generator)
    return Sounds(samples, lengths, torch.arange(24) % 11, noise, 0.5 * noise[: 2 * SECOND])
