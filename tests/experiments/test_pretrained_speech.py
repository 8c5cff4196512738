import pytest
import torch

import rankcode as rc
from rankcode.experiments import pretrained_speech as speech


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
    best, other = speech.pretrain(sounds, epochs=1, batch_size=12, seeds=2)
    rc.save(speech.refined(best, [other], sounds, epochs=1, batch_size=12), tmp_path / "model.safetensors")
    loaded, shipped = rc.load(tmp_path / "model.safetensors"), rc.load("speech-commands")
    assert {name: part.shape for name, part in loaded.state_dict().items()} == {
        name: part.shape for name, part in shipped.state_dict().items()
    }
    assert loaded.label_names == shipped.label_names
    assert loaded.front_end.log_mel == shipped.front_end.log_mel
    assert rc.predict(loaded, sounds.samples[0].float().numpy() / 32768)[0].label in speech.LABELS


def test_refinement_averages_copies_and_takes_more_teachers_in_each_round(sounds, monkeypatch):
    """With a training that only adds its learning rate to the weights."""
    first, other = speech.student(), speech.student()
    before, taught = [part.clone() for part in first.parameters()], []

    def train_student(network, sounds, teacher, recipe, *_):
        taught.append(list(teacher.args[0]))
        with torch.no_grad():
            for part in network.parameters():
                part += recipe.rate

    monkeypatch.setattr(speech, "train_student", train_student)
    found = speech.refined(first, [other], sounds)
    rates = [sum(recipe.rate for recipe in recipes) / 2 for recipes in speech.ROUNDS]
    for part, old, now in zip(found.parameters(), before, first.parameters(), strict=True):
        torch.testing.assert_close(part, old + sum(rates))
        assert torch.equal(now, old)
    assert taught[:2] == [[first], [first]] and taught[2] == taught[3] and taught[2][:2] == [first, other]
    assert len(taught[2]) == 4


def test_teachers_answer_with_their_mean_and_silence_with_its_label():
    torch.manual_seed(0)
    networks, inputs = [speech.student().eval() for _ in range(2)], torch.randn(2, 12, 40)
    own = [speech.mean_answers([each], inputs, torch.tensor([3, 4])) for each in networks]
    answers = speech.mean_answers(networks, inputs, torch.tensor([3, speech.SILENCE]))
    torch.testing.assert_close(answers[0], (own[0][0] + own[1][0]) / 2)
    assert answers[1].tolist() == [*11 * [0.0], 1.0]


def test_a_network_is_scored_with_its_best_threshold(sounds, monkeypatch):
    monkeypatch.setattr(speech, "SILENCES", 50)
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
