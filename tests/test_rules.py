import math
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import rankcode as rc
from rankcode.rules import check_rule


class Echo(nn.Module):
    """A cell that gives what it reads: with an identity readout the inputs are the logits."""

    def __init__(self):
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(()))

    def initial_state(self, rows):
        return None

    def forward(self, x_t, state):
        return x_t, None


def network_of(outputs, activation=None):
    return rc.Network(Echo(), outputs, readout=nn.Identity(), activation=activation)


def logits_of(probabilities):
    """[rows, steps, classes] whose softmax is the given numbers."""
    return torch.tensor(probabilities, dtype=torch.float64).log()


def ask(rule, activations):
    """The answers of a rule to the activations of one row, step by step: a list of bools."""
    state, answers = rule.initial_state(1), []
    for step, activation in enumerate(activations, 1):
        now = torch.tensor([activation])
        fired, state = rule(now, now, step, state)
        assert fired.shape == (1,) and fired.dtype == torch.bool
        answers.append(bool(fired))
    return answers


def first(rule, activations):
    answers = ask(rule, activations)
    return answers.index(True) + 1 if True in answers else None


# Threshold


def test_threshold_is_reached_by_equality():
    assert ask(rc.Threshold(0.75), [[0.25, 0.74], [0.75, 0.25], [0.1, 0.76]]) == [False, True, True]
    assert ask(rc.Threshold(1.0), [[0.9999, 0.0001], [1.0, 0.0]]) == [False, True]


def test_only_the_given_classes_fire():
    activations = [[0.1, 0.9, 0.0], [0.8, 0.1, 0.1], [0.1, 0.2, 0.7]]
    assert ask(rc.Threshold(0.7), activations) == [True, True, True]
    assert ask(rc.Threshold(0.7, classes=(0,)), activations) == [False, True, False]
    assert ask(rc.Threshold(0.7, classes=[0, 2]), activations) == [False, True, True]


def test_the_label_of_a_spike_is_among_the_classes_that_may_fire():
    # Row 0 fires with class 0 although class 1 is larger; row 1 never fires and names the largest of all.
    inputs = logits_of([[[0.2, 0.7, 0.1], [0.4, 0.5, 0.1]], [[0.2, 0.7, 0.1], [0.2, 0.7, 0.1]]])
    decision = rc.decide(network_of(3).double(), inputs, rule=rc.Threshold(0.35, classes=(0, 2)))
    assert decision.label.tolist() == [0, 1]
    assert decision.steps.tolist() == [2, 2]
    assert decision.fired.tolist() == [True, False]
    assert torch.allclose(decision.probabilities[0], torch.tensor([0.4, 0.5, 0.1], dtype=torch.float64))


def test_a_sigmoid_fires_on_both_sides():
    p = torch.tensor([[0.5, 0.89, 0.95], [0.5, 0.11, 0.05], [0.5, 0.6, 0.4]], dtype=torch.float64)
    decision = rc.decide(network_of(1).double(), p.logit()[..., None], rule=rc.Threshold(0.9))
    assert decision.label.tolist() == [1, 0, 0]
    assert decision.steps.tolist() == [3, 3, 3]
    assert decision.fired.tolist() == [True, True, False]
    assert torch.allclose(decision.probabilities[:, 1], p[:, 2])
    sooner = rc.decide(network_of(1).double(), p.logit()[..., None], rule=rc.Threshold(0.85))
    assert sooner.steps.tolist() == [2, 2, 3]
    positive = rc.Threshold(0.85, classes=(1,))
    assert rc.decide(network_of(1).double(), p.logit()[..., None], rule=positive).fired.tolist() == [True, False, False]


def test_a_sigmoid_fires_exactly_at_its_threshold():
    inputs = torch.tensor([[[0.0]], [[math.log(3)]], [[-math.log(3)]]], dtype=torch.float64)  # p = 1/2, 3/4, 1/4
    at_half = rc.decide(network_of(1).double(), inputs, rule=rc.Threshold(0.5))
    assert at_half.fired.all()
    just_below = rc.decide(network_of(1).double(), inputs, rule=rc.Threshold(0.75 - 1e-12))
    just_above = rc.decide(network_of(1).double(), inputs, rule=rc.Threshold(0.75 + 1e-12))
    assert just_below.fired.tolist() == [False, True, True]
    assert not just_above.fired.any()


def test_membranes_are_compared_themselves():
    network = network_of(3, activation="membrane")
    inputs = torch.tensor([[[1.2, 0.0, -1.0], [0.0, 2.5, 2.4], [9.0, 0.0, 0.0]], [[-5.0, -7.0, -6.0]] * 3])
    decision = rc.decide(network, inputs, rule=rc.Threshold(2.5))
    assert decision.label.tolist() == [1, 0]
    assert decision.steps.tolist() == [2, 3]
    assert decision.fired.tolist() == [True, False]
    assert torch.allclose(decision.probabilities[0], torch.tensor([0.0, 2.5, 2.4]).softmax(0))


# Thresholds by step


def test_one_threshold_for_each_step_and_the_last_for_all_later_ones():
    rule = rc.StepThresholds([0.9, 0.7, 0.5])
    assert ask(rule, [[0.8, 0.2]] * 5) == [False, True, True, True, True]
    assert ask(rule, [[0.6, 0.4]] * 5) == [False, False, True, True, True]
    assert ask(rule, [[0.45, 0.4]] * 5) == [False] * 5


def test_rows_at_different_steps():
    rule = rc.StepThresholds([0.9, 0.7, 0.5], classes=(0,))
    activations = torch.tensor([[0.6, 0.9]] * 5)
    fired, _ = rule(activations, activations, torch.tensor([1, 2, 3, 4, 100]), None)
    assert fired.tolist() == [False, False, True, True, True]
    one_by_one = [rule(activations[:1], activations[:1], step, None)[0].item() for step in (1, 2, 3, 4, 100)]
    assert fired.tolist() == one_by_one


@pytest.mark.parametrize(
    "rule",
    [
        rc.Threshold(0.6),
        rc.Threshold(0.3, classes=(0, 3)),
        rc.StepThresholds([0.8, 0.4, 0.5]),
        rc.StepThresholds([0.4, 0.3], classes=[2]),
        rc.StepThresholds([0.5] * 9),
    ],
    ids=repr,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_table_says_what_the_rule_says(rule, dtype):
    table = rule.table(range(1, 7), 4)
    assert table.shape == (6, 4)
    assert torch.equal(rule.table(range(3, 6), 4), table[2:5])
    activations = torch.rand(200, 6, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    activations[0] = table.clamp(max=2)  # equality too
    for step in range(1, 7):
        now = activations[:, step - 1]
        by_table = (now >= table[step - 1].to(dtype)).any(1)
        by_call, _ = rule(now, now, step, rule.initial_state(200))
        by_tensor, _ = rule(now, now, torch.full((200,), step), rule.initial_state(200))
        assert by_call.equal(by_table) and by_tensor.equal(by_table)
        assert 0 < by_table.sum() < 200


# Planted steps, never, patience


def test_planted_steps_are_exact():
    network, inputs = network_of(3), torch.randn(5, 6, 3)
    lengths = torch.tensor([6, 6, 6, 3, 1])
    decision = rc.decide(network, inputs, lengths, rc.FireAt([1, 4, 6, 4, 1]))
    assert decision.steps.tolist() == [1, 4, 6, 3, 1]
    assert decision.fired.tolist() == [True, True, True, False, True]  # row 3 ended before its planted step
    expected = inputs[torch.arange(5), decision.steps - 1]
    assert decision.label.equal(expected.argmax(1))
    assert torch.allclose(decision.probabilities, expected.softmax(1))


@pytest.mark.parametrize(("planted", "steps"), [(1, [1, 1]), (3, [3, 2]), (9, [4, 2])])
def test_one_planted_step_for_all(planted, steps):
    decision = rc.decide(network_of(3), torch.randn(2, 4, 3), torch.tensor([4, 2]), rc.FireAt(planted))
    assert decision.steps.tolist() == steps
    assert decision.fired.tolist() == [planted <= 4, planted <= 2]


def test_never_reads_everything():
    inputs = torch.full((3, 4, 2), 50.0)
    inputs[..., 0] = -50.0
    decision = rc.decide(network_of(2), inputs, torch.tensor([4, 1, 2]), rc.Never())
    assert decision.steps.tolist() == [4, 1, 2]
    assert not decision.fired.any()
    assert decision.label.tolist() == [1, 1, 1]


A, B, NONE = [0.9, 0.1], [0.1, 0.9], [0.6, 0.4]


@pytest.mark.parametrize(
    ("count", "activations", "expected"),
    [
        (1, [NONE, A], 2),
        (2, [A, A], 2),
        (2, [A, NONE, A, A], 4),  # a step that does not fire starts the count anew
        (2, [A, B, A, B, A, B], None),  # the class must be the same
        (2, [A, B, B], 3),
        (3, [A, A, B, B, NONE, B, B, B], 8),
        (3, [A, A, B, A, A, A], 6),
        (3, [A, A], None),
        (2, [NONE, A, NONE, A], None),  # the class was the same before, but it did not fire
    ],
)
def test_patience_wants_the_same_class_several_steps_in_a_row(count, activations, expected):
    assert first(rc.Patience(rc.Threshold(0.8), count), activations) == expected


def test_patience_looks_at_the_classes_that_may_fire():
    flicker = [[0.30, 0.5, 0.2], [0.30, 0.2, 0.5], [0.30, 0.5, 0.2]]
    assert first(rc.Patience(rc.Threshold(0.25), 3), flicker) is None
    assert first(rc.Patience(rc.Threshold(0.25, classes=(0,)), 3), flicker) == 3


def test_patience_in_a_batch():
    rows = [[A, A, A, A], [A, NONE, A, A], [A, B, A, B], [NONE, NONE, NONE, A]]
    decision = rc.decide(network_of(2).double(), logits_of(rows), rule=rc.Patience(rc.Threshold(0.8), 2))
    assert decision.steps.tolist() == [2, 4, 4, 4]
    assert decision.fired.tolist() == [True, True, False, False]


def test_patience_of_patience():
    rule = rc.Patience(rc.Patience(rc.Threshold(0.8), 2), 2)
    assert first(rule, [A, A, A]) == 3
    assert first(rule, [A, A, B, B, B]) == 5


# A user's rule


class Majority:
    """Fires once one class has been the largest three times. A plain object: no base class, no `classes`."""

    def initial_state(self, rows):
        return torch.zeros(rows, 2)

    def __call__(self, activations, probabilities, step, state):
        votes = state + nn.functional.one_hot(activations.argmax(1), 2)
        return votes.amax(1) >= 3, votes


def test_a_users_rule_remembers():
    rows = [[A, B, A, A, B], [B, B, B, A, A], [A, B, A, B, A]]
    lengths = torch.tensor([5, 5, 4])
    decision = rc.decide(network_of(2).double(), logits_of(rows), lengths, Majority())
    assert decision.steps.tolist() == [4, 3, 4]
    assert decision.fired.tolist() == [True, True, False]
    assert decision.label.tolist() == [0, 1, 1]
    loss, same = rc.AtSpike(rule=Majority())(network_of(2).double(), logits_of(rows), torch.tensor([0, 1, 1]), lengths)
    assert loss.item() == pytest.approx(-math.log(0.9))
    assert same.steps.equal(decision.steps)


# What is refused


@contextmanager
def refused(message=None):
    """A ValueError with a message of one line."""
    with pytest.raises(ValueError, match=message) as error:
        yield
    assert str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("value", [0, 0.0, -0.1, math.nan, math.inf, -math.inf, "0.9", None, [0.9]], ids=repr)
def test_a_bad_threshold(value):
    for make in (rc.Threshold, lambda given: rc.StepThresholds([0.9, given])):
        with refused("threshold"):
            make(value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: rc.StepThresholds([]),
        lambda: rc.StepThresholds(0.9),
        lambda: rc.Threshold(0.9, classes=()),
        lambda: rc.Threshold(0.9, classes=1),
        lambda: rc.Threshold(0.9, classes=(0.5,)),
        lambda: rc.FireAt(0),
        lambda: rc.FireAt([1, 0]),
        lambda: rc.FireAt([]),
        lambda: rc.FireAt([[1, 2]]),
        lambda: rc.FireAt(2.5),
        lambda: rc.FireAt([1.0, math.nan]),
        lambda: rc.Patience(rc.Threshold(), 0),
        lambda: rc.Patience(rc.Threshold(), 1.5),
    ],
)
def test_a_rule_that_cannot_be(make):
    with refused():
        make()


@pytest.mark.parametrize("rule", [rc.Threshold(1.01), rc.StepThresholds([0.9, 1.5]), rc.Patience(rc.Threshold(2), 2)])
@pytest.mark.parametrize("outputs", [1, 3])
def test_a_threshold_above_one_is_for_membranes_only(rule, outputs):
    inputs = torch.randn(2, 3, outputs)
    with refused("threshold.*" + ("sigmoid" if outputs == 1 else "softmax")):
        rc.decide(network_of(outputs), inputs, rule=rule)
    rc.decide(network_of(3, activation="membrane"), torch.randn(2, 3, 3), rule=rule)


def test_a_threshold_below_a_half_is_not_for_a_sigmoid():
    inputs = torch.randn(2, 3, 1)
    with refused(r"0\.49.*sigmoid"):
        rc.AtSpike(threshold=0.49)(network_of(1), inputs, torch.tensor([0, 1]))
    rc.decide(network_of(1), inputs, rule=rc.Threshold(0.5))


@pytest.mark.parametrize("rule", [rc.Threshold(0.3), rc.StepThresholds([0.3, 0.9]), rc.Patience(rc.Threshold(0.3), 2)])
def test_a_threshold_that_every_row_reaches_at_once_is_used_with_a_warning(rule):
    with pytest.warns(UserWarning, match=r"^threshold 0\.3 is below 1/3, .* every row fires at its first step$"):
        rc.decide(network_of(3), torch.randn(2, 3, 3), rule=rule)
    inputs, labels = torch.randn(2, 3, 3, requires_grad=True), torch.tensor([0, 1])
    with pytest.warns(UserWarning, match="every row fires at its first step"):
        rc.AtSpike(rule=rule)(network_of(3), inputs, labels)


@pytest.mark.parametrize(
    "rule",
    [rc.Threshold(0.34), rc.StepThresholds([0.9, 0.1]), rc.Threshold(0.3, classes=(0,)), rc.FireAt(1), rc.Never()],
)
def test_thresholds_that_mean_something_are_used_without_a_warning(rule, recwarn):
    rc.decide(network_of(3), torch.randn(2, 3, 3), rule=rule)
    rc.decide(network_of(3, "membrane"), torch.randn(2, 3, 3), rule=rc.Threshold(0.1))
    rc.decide(network_of(1), torch.randn(2, 3, 1), rule=rc.Threshold(0.5))
    assert not recwarn.list


@pytest.mark.parametrize("label", [3, -1])
def test_a_class_the_network_does_not_have(label):
    for rule in (rc.Threshold(0.9, classes=(0, label)), rc.StepThresholds([0.9], classes=(label,))):
        for wrapped in (rule, rc.Patience(rule, 2)):
            with refused(f"class {label}"):
                rc.decide(network_of(3), torch.randn(2, 3, 3), rule=wrapped)


def test_planted_steps_must_fit_the_batch():
    with refused(r"2 rows.*3"):
        rc.decide(network_of(3), torch.randn(3, 3, 3), rule=rc.FireAt([1, 2]))


@pytest.mark.parametrize("rule", [0.95, "Threshold", lambda activations: True, None, object()])
def test_what_is_not_a_rule(rule):
    says = r"Threshold\(0.95\) is one" if rule == 0.95 else "a rule has"
    with refused(says):
        check_rule(rule, "softmax", 3)
    with refused(says):
        check_rule(rc.Patience(rule, 2), "softmax", 3)


def test_built_in_rules_keep_the_contract():
    for rule in (rc.Threshold(), rc.StepThresholds([0.9]), rc.FireAt(3), rc.Never(), rc.Patience(rc.Never(), 2)):
        assert isinstance(rule, rc.Rule)
    assert rc.Threshold() == rc.Threshold(0.95)
