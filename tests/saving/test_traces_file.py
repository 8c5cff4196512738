"""Traces in a file."""

import pytest
import torch

from rankcode.saving.traces_file import read_traces, write_traces
from rankcode.stopping.traces import Traces


def test_they_are_read_as_they_were_written(tmp_path):
    probabilities = torch.rand(5, 3, 2).softmax(2).float().double()
    traces = Traces(
        probabilities,
        probabilities,
        (2, 5, 9),
        torch.arange(5) + 4,
        torch.tensor([0, 1, 1, 0, 1]),
        torch.rand(5).double(),
        torch.rand(5, 3).double(),
        torch.rand(2, 4).double(),
    )
    write_traces(tmp_path / "traces", traces)
    again = read_traces(tmp_path / "traces")
    assert again.steps == (2, 5, 9)
    for name in ("activations", "probabilities", "lengths", "labels", "weights", "axis", "axis_weights"):
        assert torch.equal(getattr(again, name), getattr(traces, name))


def test_damage_is_named(tmp_path):
    test_they_are_read_as_they_were_written(tmp_path)
    content = (tmp_path / "traces").read_bytes()
    for damaged in (content[:-9], b"", content.replace(b"lengths", b"lenghts")):
        (tmp_path / "traces").write_bytes(damaged)
        with pytest.raises(ValueError, match="traces is damaged"):
            read_traces(tmp_path / "traces")
