from itertools import pairwise, product

import pytest
import torch

from rankcode.data.sources import Source, seeded
from rankcode.tasks import TASKS, Spotting


def longest_run(sequence) -> int:
    longest = run = 1
    for before, now in pairwise(sequence):
        run = run + 1 if now == before else 1
        longest = max(longest, run)
    return longest


def every_sequence(task: Spotting) -> tuple[torch.Tensor, torch.Tensor]:
    sequences = list(product((0.0, 1.0), repeat=task.steps))
    labels = torch.tensor([int(longest_run(sequence) >= task.run_length) for sequence in sequences])
    return torch.tensor(sequences)[..., None], labels


def test_shape_and_names():
    task = Spotting()
    assert TASKS["spotting"] is Spotting
    assert (task.steps, task.input_shape, task.num_classes, task.label_names) == (25, (1,), 2, ("negative", "positive"))
    assert task.train.size is None and task.validation.size == 2_000 and task.test.size == 100_000
    assert all(isinstance(source, Source) for source in (task.train, task.validation, task.test))


def test_labels_against_plain_python():
    batch = Spotting().draw(500, seeded("cpu", 3))
    assert batch.inputs.shape == (500, 25, 1) and batch.inputs.dtype == torch.float32
    assert set(batch.inputs.unique().tolist()) == {0.0, 1.0}
    expected = [int(longest_run(sequence) >= 5) for sequence in batch.inputs[..., 0].tolist()]
    assert batch.labels.tolist() == expected
    assert batch.labels.dtype == torch.int64
    assert 0 < sum(expected) < 500


@pytest.mark.parametrize(("steps", "run_length"), [(9, 3), (10, 5), (4, 4), (6, 2)])
def test_posterior_against_every_continuation(steps, run_length):
    task = Spotting(steps=steps, run_length=run_length)
    inputs, labels = every_sequence(task)
    posterior = task.posterior(inputs)
    assert posterior.shape == (2**steps, steps, 2) and posterior.dtype == torch.float64
    for step in range(1, steps + 1):
        # Sequences in counting order: those with the same first `step` values stand together.
        share = labels.double().view(2**step, -1).mean(1).repeat_interleave(2 ** (steps - step))
        assert torch.equal(posterior[:, step - 1, 1], share)  # powers of two: equal to the last bit
    assert torch.equal(posterior.sum(-1), torch.ones(2**steps, steps, dtype=torch.float64))


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9, 0.95, 1.0])
def test_limit_against_every_sequence(threshold):
    task = Spotting(steps=12, run_length=4)
    inputs, labels = every_sequence(task)
    posterior = task.posterior(inputs)
    fires = posterior.amax(-1) >= threshold
    fires[:, -1] = True
    steps = fires.int().argmax(1)
    right = posterior[torch.arange(len(inputs)), steps].argmax(-1) == labels
    # A tie is half right whichever way it is answered, and so is its mean over all continuations.
    steps = steps.double() + 1
    limit = task.limit(threshold)
    assert limit.accuracy == pytest.approx(right.double().mean().item(), abs=1e-12)
    assert limit.steps == pytest.approx(steps.mean().item(), abs=1e-12)
    assert limit.positive_steps == pytest.approx(steps[labels == 1].mean().item(), abs=1e-12)
    assert limit.negative_steps == pytest.approx(steps[labels == 0].mean().item(), abs=1e-12)
    assert limit.positive_share == pytest.approx(labels.double().mean().item(), abs=1e-12)


def test_limit_of_the_paper():
    limit = Spotting().limit(0.95)
    assert limit.accuracy == pytest.approx(1.0, abs=1e-12)
    assert limit.steps == pytest.approx(17.49, abs=0.005)
    assert limit.positive_steps == pytest.approx(13.29, abs=0.005)
    assert limit.negative_steps == pytest.approx(22.61, abs=0.005)
    assert limit.positive_share == pytest.approx(0.550, abs=0.0005)


def test_wrong_settings_and_inputs_are_named():
    with pytest.raises(ValueError, match="run_length"):
        Spotting(steps=4)
    with pytest.raises(ValueError, match="threshold"):
        Spotting().limit(0.4)
    with pytest.raises(ValueError, match=r"\[rows, 25, 1\]"):
        Spotting().posterior(torch.zeros(3, 25))
