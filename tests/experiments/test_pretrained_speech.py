import pytest
import torch

import rankcode as rc
from rankcode.experiments import pretrained_speech as speech


@pytest.fixture(scope="module")
def sounds():
    """Tones of two lengths, and noise."""
    generator = torch.Generator().manual_seed(0)
    time = torch.arange(speech.SECOND) / speech.SECOND
    pitch = torch.randint(200, 3000, (24, 1), generator=generator)
    samples = (8000 * torch.sin(2 * torch.pi * pitch * time)).short()
    lengths = torch.tensor([speech.SECOND, 9000]).repeat(12)
    samples[time * speech.SECOND >= lengths[:, None]] = 0
    noise = 0.1 * torch.randn(3 * speech.SECOND, generator=generator)
    return speech.Sounds(samples, lengths, torch.arange(24) % 11, noise)


def test_frames_are_those_of_the_front_end(sounds):
    values = speech.log_mel(sounds.samples[:3].float() / 32768)
    for row, own in enumerate(values):
        frames = speech.LOG_MEL.frames(sounds.samples[row].float() / 32768)
        torch.testing.assert_close(own, rc.front_ends.audio.power_of(frames), atol=0.05, rtol=0)  # half of a byte


def test_augmentation_makes_silence_of_some_and_leaves_the_labels_of_the_others(sounds):
    rows = torch.arange(24).repeat(40)
    values, labels = speech.augmented(sounds, rows, torch.Generator().manual_seed(0))
    silent = labels == speech.SILENCE
    assert 0.04 < silent.float().mean() < 0.13
    assert torch.equal(labels[~silent], sounds.labels[rows][~silent])
    assert values.shape == (960, 51, 40)
    assert values.isfinite().all()
    assert not torch.equal(values[0], values[24])  # another variant of the same recording


def test_masks_are_stretches_of_bands_and_of_frames():
    inputs = speech.masked(torch.ones(50, 101, 40), torch.Generator().manual_seed(0))
    bands, frames = (inputs == 0).all(1), (inputs == 0).all(2)
    assert bands.sum(1).max() == 40 // 6
    assert 8 < frames.sum(1).max() <= 16
    assert torch.equal(inputs == 0, bands[:, None] | frames[:, :, None])


def test_the_loss_counts_the_steps_until_the_network_is_sure():
    logits = torch.zeros(2, 4, 12)
    logits[0, 1, 3] = 20.0  # sure from its second step on: steps 3 and 4 do not count
    labels, answers = torch.tensor([3, 3]), torch.eye(12)[[3, 3]]
    uncertain = torch.log(torch.tensor(12.0))
    assert speech.loss_until_sure(logits, labels, answers).item() == pytest.approx(5 / 6 * uncertain.item(), abs=1e-5)


def test_steps_of_the_network_are_those_of_the_kernels():
    torch.manual_seed(0)
    network = speech.student().eval()
    inputs = torch.randn(2, 12, 40)
    state, logits = network.initial_state(2), []
    for x_t in inputs.unbind(1):
        now, state = network(x_t, state)
        logits.append(now)
    torch.testing.assert_close(speech.logits_at_every_step(network, inputs), torch.stack(logits, 1))


def test_a_short_training_gives_a_model_like_the_one_that_ships(sounds, tmp_path):
    (network,) = speech.pretrain(sounds, epochs=1, batch_size=12)
    rc.save(network, tmp_path / "model.safetensors")
    loaded, shipped = rc.load(tmp_path / "model.safetensors"), rc.load("speech-commands")
    assert {name: part.shape for name, part in loaded.state_dict().items()} == {
        name: part.shape for name, part in shipped.state_dict().items()
    }
    assert loaded.label_names == shipped.label_names
    assert loaded.front_end.log_mel == shipped.front_end.log_mel
    assert rc.predict(loaded, sounds.samples[0].float().numpy() / 32768)[0].label in speech.LABELS


def test_a_network_is_scored_with_its_best_threshold(sounds, monkeypatch):
    network = speech.student().eval()
    network.front_end, network.label_names = rc.load("speech-commands").front_end, speech.LABELS
    never = speech.score(network, sounds)  # it is not sure of anything, and hears everything
    assert never.milliseconds == pytest.approx((1000 + 562.5) / 2) and never.threshold == speech.THRESHOLDS[0]
    with torch.no_grad():
        network.readout.weight.zero_()
        network.readout.bias[speech.SILENCE] = 20.0
    always = speech.score(network, sounds)  # silence at once, which counts as unknown
    assert always.accuracy == pytest.approx((sounds.labels == speech.UNKNOWN).float().mean().item())
    assert always[1:4] == pytest.approx((0.1, 0.0, 12.5))
