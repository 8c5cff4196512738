"""One training step: a batch, from its inputs to the new weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from rankcode.data.sources import Batch, Rows, Source, sent
from rankcode.decision import Decision
from rankcode.engines import choose
from rankcode.engines.capture import CudaGraphs
from rankcode.engines.choose import Capture
from rankcode.front_ends import front_end_of
from rankcode.network import Network
from rankcode.objectives import Objective
from rankcode.training.config import Training
from rankcode.training.scheduled_update import ScheduledUpdate
from rankcode.training.state import TrainingState


class Step(nn.Module):
    """Network and objective as one module: distributed training acts on a module's `forward`."""

    def __init__(self, network: Network, objective: Objective, config: Training, device: torch.device):
        super().__init__()
        self.network, self.objective, self.engine, self.device = network, objective, config.engine, device
        self.precision = None if config.precision == "float32" else getattr(torch, config.precision)

    def forward(self, batch, progress: float, expected: Tensor | None, check: bool) -> tuple[Tensor, Decision]:
        with self.autocast():
            return self.objective(
                self.network, *batch, engine=self.engine, progress=progress, expected_steps=expected, check=check
            )

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.precision, enabled=self.precision is not None)

    def capturable(self, inputs: Tensor) -> Capture | None:
        """How a batch can be captured in a CUDA graph, if it can."""
        if not self.objective.capturable:
            return None
        with self.autocast():
            how = choose(self.network, inputs, self.objective.rule, self.engine).capturable
        # Gradients that are scaled for float16 may have to be discarded, which a schedule does not provide for.
        return None if how == "with a schedule" and self.precision == torch.float16 else how


class Share(NamedTuple):
    """The rows of a batch that this process trains on."""

    batch: Batch
    weight: float  # of their mean loss
    checked: bool = False  # whether all of their values are known to be right


class Update:
    """A batch, from its inputs to the new weights: on a GPU as one or two CUDA graphs, if it can be captured. Where the
    rows are kept on the GPU, the graph begins with their index."""

    def __init__(self, step: nn.Module, state: TrainingState, answers: Answers, source: Source):
        self.step, self.state, self.answers = step, state, answers
        self.progress = 0.0
        self.alone = step if isinstance(step, Step) and _captures(step.device) else None  # not distributed
        self.rows = source if self.alone is not None and _begins_with_index(source, state.config, self.alone) else None
        self.capturable: dict[tuple[int, int | None], Capture] = {}  # by size of batch: rows, and the longest of them
        self.longest: int | None = None
        self.graphs = CudaGraphs(self._captured, undo=state.optimizer.zero_grad)
        self.scheduled = ScheduledUpdate(self)

    def __call__(self, prepare: Callable[[], Share], progress: float, check: bool) -> None:
        """`prepare` returns the rows of this process. `check`: whether the values of the batch are to be checked."""
        state, self.progress = self.state, progress
        state.set_learning_rate(state.config.learning_rate_at(progress))
        index = self.answers.index(state.batch)
        if not self._launch_rows(index, check):
            batch, weight, checked = prepare()
            check = check and not checked
            if self.alone is not None:  # to the dtype of the network, before the graph
                batch = batch._replace(inputs=batch.inputs.to(self.alone.network.dtype))
            how = None if self.alone is None else self.alone.capturable(batch.inputs)
            if how is not None and self.rows is not None:
                self.capturable[len(batch.labels), self.longest] = how
            if self.rows is not None or not self._launch(how, check, len(batch.labels), *batch, index):
                self.run(batch, weight, index, check)
        state.batch += 1

    def _launch_rows(self, index: Tensor | None, check: bool) -> bool:
        """Run the batch from its index, if a batch of its size was found to be capturable before."""
        if self.rows is None or index is None:
            return False
        config = self.state.config
        own = self.rows.index(self.state.batch, config.batch_size, config.seed)  # on the CPU
        self.longest = self.rows.longest(own)
        return self._launch(self.capturable.get((len(own), self.longest)), check, len(own), index)

    def _launch(self, how: Capture | None, check: bool, rows: int, *tensors: Tensor | None) -> bool:
        """Run a batch as CUDA graphs; False if that is not possible."""
        if how is None or self.alone is None:
            return False
        key = self.alone.objective.beta_at(self.progress), self.longest  # all that it depends on besides its tensors
        if how == "with a schedule" and rows == self.state.config.batch_size:  # not the last of an epoch
            self.scheduled(key, check, *tensors)
            return True
        if how == "as it is" and not check:
            self.graphs(key, *tensors)
            return True
        return False

    def close(self) -> None:
        self.graphs.close()
        self.scheduled.close()

    def _captured(self, *tensors: Tensor | None) -> None:
        batch, index = self.batch_of(*tensors)
        self.run(batch, 1.0, index, check=False)

    def batch_of(self, *tensors: Tensor | None) -> tuple[Batch, Tensor | None]:
        """The batch, and the index of its rows, that a graph begins with."""
        *given, index = tensors
        if self.rows is None or self.alone is None or index is None:
            return Batch(*given), index  # type: ignore[arg-type]
        batch = self.rows.encoded(self.rows.take(index, self.alone.device, self.longest))
        return batch._replace(inputs=batch.inputs.to(self.alone.network.dtype)), index

    def run(self, batch: Batch, weight: float, index: Tensor | None, check: bool) -> Decision:
        expected, last = self.answers.expected(index), self.state.answered
        if last is not None and len(last) == len(batch.inputs):
            expected = last
        loss, decision = self.step(batch, self.progress, expected, check)
        if isinstance(self.step, Step) and self.step.device.type == "cpu":  # not distributed
            self.state.answered = decision.steps
        self.state.backward(loss * weight)
        self.finish(batch.labels, index, loss, decision, weight)
        return decision

    def finish(self, labels: Tensor, index: Tensor | None, loss: Tensor, decision: Decision, weight: float = 1) -> None:
        """From the gradients to the new weights."""
        self.answers.note(index, decision)
        self.state.step()
        if weight > 0:
            self.state.count(labels, loss, decision)


def _captures(device: torch.device) -> bool:
    return device.type == "cuda"


def _begins_with_index(source: Source, config: Training, step: Step) -> TypeGuard[Rows]:
    """Whether a batch depends on nothing but the index of its rows, which are on the GPU."""
    if not isinstance(source, Rows) or source.augment is not None or config.input_noise:
        return False
    return step.objective.capturable and source.is_on(step.device)


class Answers:
    """The step at which each row answered last, and so will probably answer next: it makes engines on a GPU faster.
    It changes no result, so it is not part of a checkpoint. Before its first answer it is the length of the row."""

    def __init__(self, source: Source, config: Training, device: torch.device, used: bool = True):
        """`used`: on a single GPU. Elsewhere, and for data without numbered rows, it expects nothing."""
        self.source = source if used and isinstance(source, Rows) else None
        self.config, self.device = config, device
        if self.source is not None:
            lengths, front_end = getattr(source, "lengths", None), front_end_of(source)
            if lengths is None:
                lengths = torch.zeros(self.source.size, dtype=torch.long)
            elif front_end is not None:
                lengths = front_end.num_steps(lengths)
            self.steps = lengths.to(device, copy=True)

    def index(self, batch: int) -> Tensor | None:
        """The rows of a batch; None if they are not numbered."""
        if self.source is None:
            return None
        return sent(self.source.index(batch, self.config.batch_size, self.config.seed), self.device)

    def expected(self, index: Tensor | None) -> Tensor | None:
        return None if index is None else self.steps[index]

    def note(self, index: Tensor | None, decision: Decision) -> None:
        if index is not None:
            self.steps[index] = decision.steps
