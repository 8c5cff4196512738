from pathlib import Path

import numpy as np
import pytest
import torch

import rankcode as rc
from rankcode.models import NAMES, model_path


@pytest.mark.parametrize("name", NAMES)
def test_a_pretrained_network_is_small_and_has_a_card(name):
    assert model_path(name).stat().st_size <= 2 * 2**20
    assert model_path(name).with_suffix(".md").read_text().startswith(f"# {name}\n")


def test_neither_silence_nor_a_tone_is_a_word():
    network = rc.load("speech-commands")
    second = np.arange(16_000) / 16_000
    silence = np.zeros(16_000, np.float32)
    tone = (0.1 * np.sin(2 * np.pi * 440 * second)).astype(np.float32)
    for heard in rc.predict(network, [silence, tone]):
        assert (heard.label, heard.fired) == ("silence", True)


def test_a_file_with_the_name_of_a_pretrained_network_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network = rc.Network(rc.cells.GRU(2, 3), 4)
    rc.save(network, "speech-commands")
    assert rc.load("speech-commands").num_classes == 4
    assert rc.load(Path("speech-commands")).num_classes == 4


def test_the_network_of_the_card():
    network = rc.load("speech-commands")
    assert sum(parameter.numel() for parameter in network.parameters()) == 471_948
    assert network.rule == rc.Threshold(0.9825)
    assert network.label_names == (*rc.tasks.speech_commands.KEYWORDS, "unknown", "silence")
    assert torch.equal(
        network.front_end.heard(torch.tensor([1, 27]), torch.tensor([16_000, 16_000])),
        torch.tensor([12.5, 532.5]).double(),
    )
