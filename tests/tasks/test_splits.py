import pytest

from rankcode.tasks import Spotting, TwoSequence
from rankcode.tasks.splits import GeneratedSplits, Splits


@pytest.mark.parametrize("kind", [Splits, GeneratedSplits])
def test_a_task_must_define_how_its_rows_are_made(kind):
    class Incomplete(kind):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Incomplete()


@pytest.mark.parametrize("task", [Spotting(), TwoSequence()], ids=lambda task: task.name)
def test_splits_are_drawn_with_other_seeds(task):
    validation, test = (next(source.scan(64, "cpu")).inputs for source in (task.validation, task.test))
    assert not validation.equal(test)
    assert next(type(task)().test.scan(64, "cpu")).inputs.equal(test)
