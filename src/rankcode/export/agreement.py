"""Whether an ONNX file decides as PyTorch does, and how long a step takes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankcode.decision import Decision
from rankcode.export.check_rows import CheckRows
from rankcode.export.graph import OUTPUTS
from rankcode.export.step import Step
from rankcode.inference import checked_run, decide
from rankcode.network import Network

TOLERANCE = 1e-4  # of probabilities: rounding of float32, added up over the steps of a row
MIN_TIMED_BLOCKS, TIMED_SECONDS = 3, 0.2


def session_of(model: bytes) -> Any:
    """A session on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class Answers(NamedTuple):
    """What an ONNX file says about rows."""

    decision: Decision
    probabilities: Tensor  # [rows, steps, classes]: at each step up to the decision, NaN after it


def answers_of(session: Any, step: Step, rows: CheckRows) -> Answers:
    """Call the file for each step of these rows until all have answered."""
    count, calls = rows.calls.shape[:2]
    state = [part.numpy() for part in step.initial_state(count)]
    names = [part.name for part in step.state]
    steps = rows.num_calls - step.warm_up
    probabilities = torch.full((count, calls - step.warm_up, step.network.num_classes), torch.nan)
    label, fired = torch.zeros(count, dtype=torch.long), torch.zeros(count, dtype=torch.bool)
    read, open_ = torch.zeros(count, dtype=torch.long), torch.ones(count, dtype=torch.bool)
    for call in range(calls):
        feeds = dict(zip(("x", *names), (rows.calls[:, call].numpy(), *state), strict=True))
        now, spike, answer, *state = session.run(None, feeds)
        number = call + 1 - step.warm_up
        if number < 1:
            assert not spike.any()
            continue
        probabilities[open_, number - 1] = torch.from_numpy(now)[open_].float()
        fired |= torch.from_numpy(spike) & open_
        label[open_], read[open_] = torch.from_numpy(answer)[open_], number
        open_ &= ~torch.from_numpy(spike) & (number < steps)
        if not open_.any():
            break
    at_answer = probabilities[torch.arange(count), read - 1]
    return Answers(Decision(label, read, fired, at_answer), probabilities)


@dataclass
class Agreement:
    """How an ONNX file compares with PyTorch."""

    rows: int = 0
    near: int = 0  # rows with another decision, though all probabilities up to it agree: they are at the threshold
    difference: float = 0.0  # the largest of a probability, in rows with the same decision
    wrong: list[str] = field(default_factory=list)  # other decisions, in words
    changed: int = 0  # answers that 8-bit weights have changed
    lost: int = 0  # right answers that 8-bit weights have cost; where labels are not known, answers that they changed


def compare(session: Any, step: Step, batches: Iterable[CheckRows], original: Network | None = None) -> Agreement:
    """Compare step by step, up to the decision of each row. `original`: the network before its weights were rounded."""
    found = Agreement()
    for rows in batches:
        run = checked_run(step.network, rows.inputs, rows.lengths, step.rule, "read", "auto")
        answers, count = answers_of(session, step, rows), len(rows.inputs)
        wanted = step.network.activate(run.logits)[1]
        gap = (wanted - answers.probabilities[run.row, run.step - 1]).abs().amax(1).nan_to_num(0.0)
        gaps = gap.new_zeros(count).scatter_reduce(0, run.row, gap, "amax")
        pairs = zip(run.decision[:3], answers.decision[:3], strict=True)
        same = torch.stack([ours == theirs for ours, theirs in pairs]).all(0)
        for row in (~same & (gaps > TOLERANCE)).nonzero().flatten().tolist():
            said, meant = (_in_words(step.network, each, row) for each in (answers.decision, run.decision))
            found.wrong.append(f"row {found.rows + row} is {said}, not {meant}")
        found.rows += count
        found.near += int((~same & (gaps <= TOLERANCE)).sum())
        found.difference = max(found.difference, float(gaps.where(same, 0.0).max()))
        if original is not None:
            before = decide(original, rows.inputs, rows.lengths, step.rule).label
            truth = before if rows.labels is None else rows.labels
            found.changed += int((answers.decision.label != before).sum())
            found.lost += int((before == truth).sum() - (answers.decision.label == truth).sum())
    return found


def _in_words(network: Network, decision: Decision, row: int) -> str:
    spike = "" if decision.fired[row] else ", without a spike"
    return f"{network.class_names[int(decision.label[row])]} after {int(decision.steps[row])} steps{spike}"


def milliseconds_per_step(session: Any, step: Step, rows: CheckRows) -> float:
    """The time of a call for one row: the median of a block of calls, of the fastest block, as other programs may take
    the processor."""
    names = [part.name for part in step.state]
    calls = rows.calls[0, : rows.num_calls[0]].numpy()
    blocks = []
    begin = time.perf_counter()
    while len(blocks) < MIN_TIMED_BLOCKS or time.perf_counter() - begin < TIMED_SECONDS:
        state: list[Any] = [part.numpy() for part in step.initial_state(1)]
        times = []
        for call in calls:
            feeds = dict(zip(("x", *names), (call[None], *state), strict=True))
            start = time.perf_counter()
            results = session.run(None, feeds)
            times.append(time.perf_counter() - start)
            state = results[len(OUTPUTS) :]
        blocks.append(median(times))
    return 1000 * min(blocks)
