import pytest

from rankcode.tasks.splits import GeneratedSplits, Splits


@pytest.mark.parametrize("kind", [Splits, GeneratedSplits])
def test_a_task_must_define_how_its_rows_are_made(kind):
    class Incomplete(kind):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Incomplete()
