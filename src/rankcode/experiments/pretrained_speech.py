"""How the pretrained network "speech-commands" is trained.

`python -m rankcode.experiments.pretrained_speech FOLDER OUT.safetensors`, where FOLDER is Speech Commands as published.

A large bidirectional network, the teacher, learns to recognise the word from the whole second. Small networks learn
from the labels and the teacher's answers at every step until they are sure. The best of them on the validation split is
refined in two rounds: two copies of it are trained further with different mixes of noise and silence, and their weights
are averaged. In the first round the network itself is the teacher, in the second, all networks trained so far together.

Recordings are augmented as samples, on the training device, before they become log-mel frames. A GPU is needed: on an
H200 the first training of a network takes about four minutes. The validation split chooses the threshold; the test
split is not read.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankcode.cells import GRU, CausalConv, Stack
from rankcode.experiments.speech_sounds import LABELS, LOG_MEL, SECOND, SILENCE, UNKNOWN, Mix, Sounds, augmented, masked
from rankcode.front_ends.audio import Audio
from rankcode.network import Network
from rankcode.progress import Progress
from rankcode.rules import Threshold
from rankcode.saving.model_file import save

MAX_MILLISECONDS = 538  # of sound heard on average: the limit for the threshold
THRESHOLDS = (0.9, 0.93, 0.95, 0.96, 0.97, 0.975, 0.9775, 0.98, 0.9825, 0.985, 0.99, 0.995, 0.999)
SILENCES = 900  # seconds of noise that a network is scored on
BIASES = (0.0, 0.25, 0.5, 0.75, 1.0)  # that may be subtracted from the logit of "unknown"
SURE = 0.999  # probability from which a row is not trained further
DECAY = 0.999  # of the averaged weights


class Recipe(NamedTuple):
    """How a network is trained."""

    rate: float = 4e-3  # of learning
    epochs: float = 1.0  # relative to the first training of a network
    mix: Mix = Mix()
    unknown_weight: float = 0.2  # in the loss: 62 % of the recordings are unknown words
    teacher_weight: float = 0.3  # of the teacher's answers in the target


FIRST, TEACHER = Recipe(), Recipe(rate=2e-3, epochs=0.4)
ROUNDS = (  # of refinement
    (
        Recipe(1e-3, 1 / 3, Mix(0.12, 0.2, (0.0, 30.0), hard_silence=True), 0.25),
        Recipe(2e-3, 1 / 3, Mix(0.12, 0.15, (3.0, 35.0), hard_silence=True)),
    ),
    (
        Recipe(1e-3, 0.24, Mix(0.12, 0.2, (0.0, 30.0), hard_silence=True), 0.25, 0.5),
        Recipe(1e-3, 0.24, Mix(0.12, 0.1, (3.0, 35.0), hard_silence=True), 0.25, 0.5),
    ),
)


class Teacher(nn.Module):
    """Hears the whole recording: dilated convolutions, bidirectional GRUs, attention."""

    def __init__(self, channels: int = 256):
        super().__init__()
        self.first = nn.Conv1d(LOG_MEL.n_mels, channels, 5, padding=2)
        self.blocks = nn.ModuleList(self._block(channels, dilation) for dilation in (1, 2, 4, 8))
        self.gru = nn.GRU(channels, 192, 2, batch_first=True, bidirectional=True, dropout=0.2)
        self.attention = nn.Linear(384, 1)
        self.last = nn.Sequential(nn.Dropout(0.3), nn.Linear(768, len(LABELS)))

    @staticmethod
    def _block(channels: int, dilation: int) -> nn.Module:
        parts: list[nn.Module] = []
        for _ in range(2):
            convolution = nn.Conv1d(channels, channels, 3, padding=dilation, dilation=dilation)
            parts += [nn.BatchNorm1d(channels), nn.SiLU(), convolution]
        return nn.Sequential(*parts, nn.Dropout(0.1))

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs [rows, frames, bands] to logits [rows, classes]."""
        hidden = self.first(inputs.mT)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        hidden = self.gru(hidden.mT)[0]
        weights = self.attention(hidden).softmax(1)
        return self.last(torch.cat([(weights * hidden).sum(1), hidden.mean(1)], 1))


def student() -> Network:
    """The network that ships."""
    convolutions = CausalConv(LOG_MEL.n_mels, 128, 5), *(CausalConv(128, 128, 9, depthwise=True) for _ in range(2))
    return Network(Stack(*convolutions, GRU(128, 192, num_layers=2)), len(LABELS))


def logits_at_every_step(network: Network, inputs: Tensor) -> Tensor:
    """Logits [rows, steps, classes], with PyTorch's kernels."""
    hidden = inputs
    for cell in network.cell.cells:
        rate = 0.1 if isinstance(cell, GRU) else 0.0
        dropped = F.dropout(hidden, rate, network.training)
        hidden, _ = cell.forward_sequence(dropped, cell.initial_state(len(dropped)))
    return network.readout(F.dropout(hidden, 0.2, network.training))


def loss_until_sure(logits: Tensor, labels: Tensor, answers: Tensor, recipe: Recipe = FIRST) -> Tensor:
    """Cross-entropy at every step up to the first at which a class reaches SURE. `answers` are those of the teacher."""
    logs = logits.log_softmax(-1)
    with torch.no_grad():
        sure = logs.amax(-1) >= math.log(SURE)
        read = sure.cumsum(1) - sure.long() == 0
        target = torch.lerp(F.one_hot(labels, len(LABELS)).float(), answers, recipe.teacher_weight)
        weights = read * torch.where(labels == UNKNOWN, recipe.unknown_weight, 1.0)[:, None]
    return -((logs * target[:, None]).sum(-1) * weights).sum() / weights.sum()


def train(
    module: nn.Module, sounds: Sounds, front_end: Audio, loss: Callable[[Tensor, Tensor], Tensor], recipe: Recipe,
    epochs: float, batch_size: int, seed: int = 0,
) -> None:  # fmt: skip
    """Train a module with AdamW and a cosine schedule, and leave its averaged weights in it."""
    device = sounds.samples.device
    generator = torch.Generator(device).manual_seed(seed)
    optimizer = torch.optim.AdamW(module.parameters(), lr=recipe.rate, weight_decay=0.05)
    average = torch.optim.swa_utils.AveragedModel(
        module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(DECAY), use_buffers=True
    )
    updates = max(1, int(recipe.epochs * epochs * len(sounds.labels) / batch_size))
    warmup = min(500, updates)
    module.train()
    with Progress(updates, True) as bar:
        for update in range(updates):
            share = 0.5 + 0.5 * math.cos(math.pi * update / updates)
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate * share * min(1.0, (update + 1) / warmup)
            rows = torch.randint(len(sounds.labels), (batch_size,), generator=generator, device=device)
            with torch.no_grad():
                values, labels = augmented(sounds, rows, generator, recipe.mix)
                inputs = masked(front_end(values)[0], generator)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                value = loss(inputs, labels)
            optimizer.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            average.update_parameters(module)
            if bar.due(update):
                bar.show(update, f"loss {float(value.detach()):.3f}")
    module.load_state_dict(average.module.state_dict())
    module.eval()


Answers = Callable[[Tensor, Tensor], Tensor]  # inputs and labels to the teacher's probabilities [rows, classes]


def train_student(
    network: Network, sounds: Sounds, teacher: Answers, recipe: Recipe, epochs: float, batch_size: int, seed: int = 0
) -> None:
    def loss(inputs: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            answers = teacher(inputs, labels)
        return loss_until_sure(logits_at_every_step(network, inputs).float(), labels, answers, recipe)

    train(network, sounds, cast("Audio", network.front_end), loss, recipe, epochs, batch_size, seed)


def pretrain(sounds: Sounds, epochs: float = 150, batch_size: int = 512, seeds: int = 4) -> Iterator[Network]:
    """Networks trained on these recordings, with one teacher."""
    device = sounds.samples.device
    some = sounds.samples[:: max(1, len(sounds.samples) // 4000)]
    front_end = Audio.of((LOG_MEL.frames(each.cpu().float() / 32768) for each in some), LOG_MEL, context=0)
    torch.manual_seed(0)
    teacher = Teacher().to(device)

    def naming(inputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(teacher(inputs).float(), labels, label_smoothing=0.05)

    def answers(inputs: Tensor, labels: Tensor) -> Tensor:
        return teacher(inputs).float().softmax(-1)

    train(teacher, sounds, front_end, naming, TEACHER, epochs, batch_size)
    for seed in range(seeds):
        torch.manual_seed(seed)
        network = student().to(device)
        network.front_end, network.label_names, network.rule = front_end, LABELS, Threshold(0.98)
        train_student(network, sounds, answers, FIRST, epochs, batch_size, seed)
        yield network


def mean_answers(networks: Sequence[Network], inputs: Tensor, labels: Tensor) -> Tensor:
    """The mean answer of networks at their last step; for silence, the label."""
    ends = torch.stack([logits_at_every_step(each, inputs)[:, -1].float().softmax(-1) for each in networks])
    return torch.where((labels == SILENCE)[:, None], F.one_hot(labels, len(LABELS)).float(), ends.mean(0))


def refined(
    network: Network, others: Sequence[Network], sounds: Sounds, epochs: float = 150, batch_size: int = 512
) -> Network:
    """The network after ROUNDS. The others, which `pretrain` made too, are teachers from the second round on."""
    teachers, trained = [network], [network, *others]
    for recipes in ROUNDS:
        copies = [copy.deepcopy(network) for _ in recipes]
        for seed, (each, recipe) in enumerate(zip(copies, recipes, strict=True)):
            train_student(each, sounds, partial(mean_answers, teachers), recipe, epochs, batch_size, seed)
        network, trained = mean_of(copies), [*trained, *copies]
        teachers = trained
    return network


def mean_of(networks: Sequence[Network]) -> Network:
    """A network with the mean of the weights of these."""
    found = copy.deepcopy(networks[0])
    weights = [each.state_dict() for each in networks]
    found.load_state_dict({name: torch.stack([each[name] for each in weights]).mean(0) for name in weights[0]})
    return found


class Score(NamedTuple):
    """How good a network is on recordings, with its best threshold and bias."""

    accuracy: float  # "silence" counted as "unknown"
    twelve: float  # accuracy with twelve classes, of which unknown and silence are a tenth of the rows each
    recall: float  # of the ten words
    milliseconds: float  # of sound heard, on average
    threshold: float
    bias: float  # subtracted from the logit of "unknown"

    @property
    def total(self) -> float:
        return self.accuracy + self.twelve


@torch.no_grad()
def score(network: Network, sounds: Sounds) -> Score:
    """With the threshold and bias that have the highest mean of both accuracies within MAX_MILLISECONDS."""
    generator, front_end = torch.Generator().manual_seed(0), cast("Audio", network.front_end)
    begins = torch.randint(len(sounds.noise) - SECOND, (SILENCES,), generator=generator)
    volumes = torch.rand(SILENCES, generator=generator)
    waveforms = [row[:size].cpu().float() / 32768 for row, size in zip(sounds.samples, sounds.lengths, strict=True)]
    for begin, volume in zip(begins, volumes, strict=True):
        waveforms.append(sounds.noise[begin : begin + SECOND].cpu() * volume)
    frames = [LOG_MEL.frames(waveform) for waveform in waveforms]
    sizes = torch.tensor([len(waveform) for waveform in waveforms])
    labels = torch.cat([sounds.labels.cpu(), torch.full((SILENCES,), SILENCE)])
    found, longest = [], max(map(len, frames))
    for rows in torch.arange(len(frames)).split(1024):
        padded = nn.utils.rnn.pad_sequence([frames[row] for row in rows], batch_first=True)
        inputs, _ = front_end(padded.to(sounds.samples.device))
        found.append(F.pad(logits_at_every_step(network, inputs).cpu(), (0, 0, 0, longest - padded.shape[1])))
    logits, steps = torch.cat(found), torch.tensor([len(each) for each in frames])
    scores = _scores(front_end, logits, steps, labels, sizes)
    in_time = [each for each in scores if each.milliseconds <= MAX_MILLISECONDS]
    return max(in_time or scores[:1], key=lambda each: each.total)


def _scores(front_end: Audio, logits: Tensor, lengths: Tensor, labels: Tensor, sizes: Tensor) -> list[Score]:
    """The scores of all thresholds and biases."""
    words, rows, found = labels != SILENCE, torch.arange(len(labels)), []
    known = labels < UNKNOWN
    for bias in BIASES:
        probabilities = (logits - bias * F.one_hot(torch.tensor(UNKNOWN), len(LABELS))).softmax(-1)
        for threshold in THRESHOLDS:
            spikes = probabilities.amax(-1) >= threshold
            steps = torch.where(spikes.any(1), spikes.int().argmax(1) + 1, lengths).minimum(lengths)
            named = probabilities[rows, steps - 1].argmax(1)
            right = named == labels
            shares = [right[part].double().mean().item() for part in (known, labels == UNKNOWN, ~words)]
            accuracy = (named.clamp(max=UNKNOWN) == labels)[words].double().mean().item()
            twelve = 0.8 * shares[0] + 0.1 * shares[1] + 0.1 * shares[2]
            heard = front_end.heard(steps, sizes)[words].mean().item()
            found.append(Score(accuracy, twelve, shares[0], heard, threshold, bias))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--epochs", type=float, default=150)
    parser.add_argument("--seeds", type=int, default=4, help="networks to choose from, and to teach the last one")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sounds, validation = (Sounds.read(given.folder, split).to(device) for split in ("train", "validation"))

    def scored(network: Network) -> Score:
        found = score(network, validation)
        print(*(f"{name} {value:.4f}" for name, value in found._asdict().items()), sep=", ", flush=True)
        return found

    networks = list(pretrain(sounds, given.epochs, seeds=given.seeds))
    scores = [scored(network).total for network in networks]
    best = networks.pop(scores.index(max(scores)))
    network = refined(best, networks, sounds, given.epochs)
    last = scored(network)
    network.rule = Threshold(last.threshold)
    with torch.no_grad():
        cast("nn.Linear", network.readout).bias[UNKNOWN] -= last.bias
    save(network.cpu(), given.target)


if __name__ == "__main__":
    main()
