"""A batch of any cell as two CUDA graphs, from its inputs to its gradients and from these to the new weights.

The graphs have room for a fixed number of rows at each step: see `engines.scheduled`. Between the two the host reads
whether there was room for every row, and all values were right. If not, the batch runs again, without these graphs.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankcode.engines.capture import CudaGraphs
from rankcode.engines.graphs import fastest_convolutions
from rankcode.engines.scheduled import Blocks, Schedule, run

if TYPE_CHECKING:
    from rankcode.training.batch_update import Update


class ScheduledUpdate:
    """Batches of the same shapes, with the same key: everything else that they depend on. The first batches run without
    these graphs, to see where rows answer."""

    def __init__(self, update: Update):
        self.update, self.key = update, ()
        self.schedule: Schedule | None = None
        self.blocks: Blocks = ()
        self.gradients = self.weights = CudaGraphs(lambda: None)

    def __call__(self, key: Hashable, check: bool, *tensors: Tensor | None) -> None:
        """`check`: whether to check the values of a batch that runs without these graphs, which always check them."""
        key = key, *(None if part is None else part.shape for part in tensors)
        if self.schedule is None or key != self.key:
            self.blocks = ()
            self.key, self.schedule = key, Schedule(*self.update.batch_of(*tensors)[0].inputs.shape[:2])
        if self.schedule.blocks is None or self.gradients.failed:
            return self.schedule.note(self._run_without(check, *tensors))
        if self.schedule.blocks != self.blocks:
            self._capture_anew(self.schedule.blocks)
        try:
            self.gradients(None, *tensors)
            incomplete, *answered = self.report.tolist()  # the host waits
        except torch.OutOfMemoryError:  # without these graphs less memory is needed
            incomplete, answered, self.gradients.failed = 1, [], True
        if incomplete:
            self.update.state.optimizer.zero_grad()
            answered = self._run_without(True, *tensors)
        else:
            self.weights(None)
        return self.schedule.note(answered, bool(incomplete))

    def _run_without(self, check: bool, *tensors: Tensor | None) -> list[int]:
        batch, index = self.update.batch_of(*tensors)
        return self.update.run(batch, 1.0, index, check).steps.tolist()

    def _capture_anew(self, blocks: Blocks) -> None:
        self.close()
        self.blocks = blocks
        self.gradients = CudaGraphs(self._to_gradients, undo=self.update.state.optimizer.zero_grad)
        self.weights = CudaGraphs(self._to_weights)

    def close(self) -> None:
        """Free the graphs' memory."""
        self.gradients.close()
        self.weights.close()

    def _to_gradients(self, *tensors: Tensor | None) -> None:
        step, state = self.update.alone, self.update.state
        assert step is not None
        (inputs, labels, lengths), self.index = self.update.batch_of(*tensors)
        if lengths is None:
            lengths = torch.full_like(labels, inputs.shape[1])
        self.labels = labels.clamp(0, step.network.num_classes - 1)
        objective = step.objective
        with fastest_convolutions():
            with step.autocast():
                result, incomplete = run(step.network, inputs, lengths, objective.rule, objective.keep, self.blocks)
                loss = objective.loss(result, self.labels, self.update.progress)
            state.backward(loss)
        self.loss, self.decision = loss.detach(), result.decision
        self.found = [(part, part.grad) for part in step.network.parameters()]
        unread = torch.arange(inputs.shape[1], device=inputs.device) >= result.decision.steps[:, None]
        right = (inputs.isfinite().flatten(2).all(2) | unread).all() & (labels == self.labels).all()
        self.report = torch.cat([(incomplete | ~right).long()[None], result.decision.steps])

    def _to_weights(self) -> None:
        for part, gradient in self.found:
            part.grad = gradient
        self.update.finish(self.labels, self.index, self.loss, self.decision)
