"""`rankcode compare`."""

from pathlib import Path

import numpy as np
import pytest
from small_data import says

from rankcode.cli.main import main

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")


def levels(folder, name):
    """A set of two classes that differ by 3 from the start."""
    random, labels = np.random.default_rng(0), np.arange(20) % 2
    (folder / name).mkdir(parents=True)
    for split in ("TRAIN", "TEST"):
        values = random.normal(size=(20, 10)) + 3 * labels[:, None]
        np.savetxt(folder / name / f"{name}_{split}.tsv", np.column_stack([labels, values]), delimiter="\t")


def test_methods_are_compared(capsys):
    for name in ("One", "Two"):
        levels(Path("data"), name)
    arguments = ["compare", "--data", "data", "--seeds", "1", "--output", "out", "--no-progress"]
    main([*arguments, "--methods", "kernels", "checkpoint-cost", "--sets", "Two"])
    assert Path("out/results.jsonl").read_text().count("\n") == 6
    shown = capsys.readouterr().out
    assert "| checkpoint-cost |" in shown and "wrote results.jsonl" in shown
    main([*arguments, "--methods", "kernels"])
    assert Path("out/results.jsonl").read_text().count("\n") == 9
    assert "| One |" in Path("out/table.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--methods", "kernel"], "did you mean kernels?"),
        (["--methods", "steam"], "choose from kernels, auto"),
        (["--sets", "Three"], "no set 'Three'"),
        (["--seeds", "0"], "--seeds must be at least 1"),
    ],
)
def test_a_mistake_is_one_line(arguments, said):
    levels(Path("data"), "One")
    says(["compare", "--data", "data", *arguments], said, status=2)


def test_data_that_is_not_there_is_one_line():
    says(["compare", "--data", "nowhere"], "there is no folder nowhere", status=1)
