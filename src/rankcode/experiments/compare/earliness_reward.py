"""A recurrent network with a stopping output, trained with an earliness reward.

After Rußwurm, Courty, Emonet, Lefèvre, Tuia, Tavenard: "End-to-end learned early classification of time series for
in-season crop type mapping" (ISPRS 2023, ELECTS), written from its equations. At each step t the network gives class
probabilities ŷ_t and a probability δ_t to stop there. P(t) = δ_t Π_{τ<t} (1 − δ_τ) is the probability of answering at
t, and what remains falls to the last step. The loss of a row of T steps is

    Σ_t (P(t) + ε/T) · [ω · (−log ŷ_t[label]) − (1 − ω) · ŷ_t[label] · (1 − t/T)],

where ε keeps the classes learnable at steps at which the network never stops. In the cost of a comparison, (1 −
accuracy) + α · earliness, waiting has α times the weight of an error, so ω = 1/(1 + α).
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rankcode import cells
from rankcode.data import Batch
from rankcode.engines import Run, run
from rankcode.experiments.compare.methods import Method, lengths_of, task_of, whole
from rankcode.network import Network
from rankcode.objectives import Objective
from rankcode.rules import Never
from rankcode.tasks import OwnData
from rankcode.training import Training
from rankcode.training.recipes import recipe

SMOOTHING = 10.0  # ε
MIN_BATCHES, MIN_EPOCHS = 1000, 50  # as `Training` by default
VALIDATE_EVERY = 20  # batches


@dataclass(frozen=True)
class EarlinessReward(Objective):
    """For networks whose last output is the logit of δ, and the others those of the classes."""

    alpha: float
    rule = Never()
    keep = "read"

    def row_losses(self, result: Run, labels: Tensor, progress: float = 0.0) -> Tensor:
        classes, stop = every_step(result)
        lengths, steps = result.lengths[:, None], torch.arange(1, classes.shape[1] + 1)
        answering = (stopping(stop, result.lengths) + SMOOTHING / lengths) * (steps <= lengths)
        likelihood = classes.log_softmax(-1).gather(2, labels[:, None, None].expand(*stop.shape, 1))[..., 0]
        weight = 1 / (1 + self.alpha)
        reward = likelihood.exp() * (1 - steps / lengths)
        return (answering * (-weight * likelihood - (1 - weight) * reward)).sum(1)


def every_step(result: Run) -> tuple[Tensor, Tensor]:
    """Logits of the classes [rows, steps, classes] and of stopping [rows, steps]."""
    shape = len(result.lengths), int(result.lengths.max()), result.logits.shape[1]
    logits = result.logits.new_zeros(shape).index_put((result.row, result.step - 1), result.logits)
    return logits[..., :-1], logits[..., -1]


def stopping(stop: Tensor, lengths: Tensor) -> Tensor:
    """P(t) [rows, steps] from the logits of δ."""
    reached = F.logsigmoid(-stop).cumsum(1).roll(1, 1)  # log Π_{τ<t} (1 − δ_τ)
    reached = torch.cat([torch.zeros_like(reached[:, :1]), reached[:, 1:]], 1)
    step = torch.arange(1, stop.shape[1] + 1)
    answer = torch.where(step == lengths[:, None], 0.0, F.logsigmoid(stop))
    return (answer + reached).exp() * (step <= lengths[:, None])


class Elects(Method):
    """The GRU of the default recipe with a stopping output, trained for each α. As in the paper, the weights with the
    best result on validation rows are kept; a test row is answered at the first step by which the probability of having
    stopped exceeds one half."""

    def fit(self) -> None:
        self.task = task_of(self.train, self.test, self.seed)

    def tune(self, alpha: float) -> None:
        self.network = trained(self.task, alpha, self.seed)

    def predict(self) -> tuple[Any, Any]:
        label, steps, _ = decided(self.network, whole(self.task.test))
        return np.array(self.task.label_names)[label.numpy()], steps.numpy()


def trained(task: OwnData, alpha: float, seed: int) -> Network:
    """A network with the settings of `Training` for small data: the default selection does not handle a stopping
    output."""
    rows, held_out = whole(task.train), whole(task.validation)
    config = Training().for_data(len(rows.labels), task.front_end)
    objective, best, kept = EarlinessReward(alpha), math.inf, {}
    batches = max(MIN_BATCHES, MIN_EPOCHS * math.ceil(len(rows.labels) / config.batch_size))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        size = recipe("default", len(rows.labels)).hidden_size
        network = Network(cells.GRU(task.input_shape[0], size), task.num_classes + 1)
        with torch.no_grad():  # begins with answers at the last step, as in the paper
            network.readout.bias[-1] = -math.log(10 * rows.inputs.shape[1])  # type: ignore[index]
        optimizer = torch.optim.Adam(network.parameters(), config.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, batches)
        order = torch.empty(0, dtype=torch.long)
        for batch in range(1, batches + 1):
            order = torch.randperm(len(rows.labels)) if len(order) == 0 else order
            index, order = order[: config.batch_size], order[config.batch_size :]
            inputs = rows.inputs[index]
            inputs = inputs + config.input_noise * torch.randn_like(inputs)
            lengths = None if rows.lengths is None else rows.lengths[index]
            optimizer.zero_grad()
            objective(network, inputs, rows.labels[index], lengths, check=False)[0].backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), config.max_grad_norm or math.inf)
            optimizer.step()
            schedule.step()
            if batch % VALIDATE_EVERY == 0:
                label, _, earliness = decided(network, held_out)
                error = (label != held_out.labels).double().mean()
                if (now := float(error + alpha * earliness.mean())) <= best:
                    best, kept = now, copy.deepcopy(network.state_dict())
    network.load_state_dict(kept)
    return network


@torch.no_grad()
def decided(network: Network, rows: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The label of each row, the steps read, and these ÷ length."""
    lengths = lengths_of(rows)
    classes, stop = every_step(run(network, rows.inputs, lengths, Never(), "read"))
    place = (stopping(stop, lengths).cumsum(1) >= 0.5 - 1e-6).int().argmax(1)
    return classes[torch.arange(len(place)), place].argmax(1), place + 1, (place + 1) / lengths
