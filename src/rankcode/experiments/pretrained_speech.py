"""How the pretrained network "speech-commands" is trained.

`python -m rankcode.experiments.pretrained_speech FOLDER OUT.safetensors --seeds 3`, where FOLDER is Speech Commands as
published.

Two trainings: a large bidirectional network, the teacher, learns to name the word in a whole second; the network that
ships learns the labels and the teacher's answers at every step until it is sure. Recordings are augmented as samples,
on the training device, before they become log-mel frames. A GPU is needed: on an H200 a training takes about four
minutes. Of several networks, the validation split chooses one and its threshold; the test split is not read.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankcode.cells import GRU, CausalConv, Stack
from rankcode.data.sound_files import sound_blocks
from rankcode.front_ends.audio import HIGHEST, LOWEST, Audio, LogMel
from rankcode.network import Network
from rankcode.progress import Progress
from rankcode.rules import Threshold
from rankcode.saving.model_file import save
from rankcode.tasks.sound_collection import NOISE
from rankcode.tasks.speech_commands import KEYWORDS, NOISE_PARTS, recordings

LABELS = (*KEYWORDS, "unknown", "silence")
UNKNOWN, SILENCE = len(KEYWORDS), len(KEYWORDS) + 1
SECOND = 16_000  # samples
LOG_MEL = LogMel(n_mels=40, hop_ms=20)
NOISE_RATIOS = (-5.0, 30.0)  # dB that noise is softer than a whole recording, the pauses in it included
MAX_MILLISECONDS = 540  # of sound heard on average: the threshold is chosen among those that keep it
THRESHOLDS = (0.9, 0.93, 0.95, 0.96, 0.97, 0.975, 0.98, 0.985, 0.99, 0.995, 0.999)
BIASES = (0.0, 0.25, 0.5, 0.75, 1.0)  # that may be subtracted from the logit of "unknown"
SURE = 0.999  # probability from which a row is not trained further
UNKNOWN_WEIGHT = 0.2  # 62 % of the recordings are unknown words
TEACHER_WEIGHT = 0.3  # of its answers in the target
TEACHER_EPOCHS = 0.4  # for each epoch of a network that ships
DECAY = 0.999  # of the averaged weights


class Sounds(NamedTuple):
    """Recordings of at most a second, and background noise."""

    samples: Tensor  # [recordings, SECOND], int16, zeros after the end
    lengths: Tensor  # [recordings]
    labels: Tensor  # [recordings]
    noise: Tensor  # [samples], float32

    @classmethod
    def read(cls, folder: Path, split: str = "train") -> Sounds:
        samples, lengths, labels, noise = [], [], [], []
        for name, word, own_split in recordings(folder):
            if own_split not in (split, NOISE):
                continue
            sound = np.concatenate(list(sound_blocks(folder / name, SECOND)))
            if own_split == NOISE:
                begin, end = (int(part * len(sound)) for part in NOISE_PARTS[split])
                noise.append(torch.from_numpy(sound[begin:end]))
                continue
            sound = (sound[:SECOND] * 32767).astype(np.int16)
            samples.append(torch.from_numpy(np.pad(sound, (0, SECOND - len(sound)))))
            lengths.append(len(sound))
            labels.append(KEYWORDS.index(word) if word in KEYWORDS else UNKNOWN)
        return cls(torch.stack(samples), torch.tensor(lengths), torch.tensor(labels), torch.cat(noise))

    def to(self, device: torch.device) -> Sounds:
        return Sounds(*(part.to(device) for part in self))


def log_mel(samples: Tensor) -> Tensor:
    """Samples [rows, samples] to ln of power [rows, frames, bands], as `LogMel` in float32 and without rounding."""
    window, filters = (table.to(samples) for table in LOG_MEL.tables())
    half = LOG_MEL.window // 2
    spectrum = torch.fft.rfft(F.pad(samples, (half, half)).unfold(1, LOG_MEL.window, LOG_MEL.hop) * window)
    return ((spectrum.real**2 + spectrum.imag**2) @ filters + 1e-6).log().clamp(LOWEST, HIGHEST)


def augmented(sounds: Sounds, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """New variants of recordings as ln of power, and their labels; some of them are silence instead."""
    device, count = rows.device, len(rows)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(shape or (count,), generator=generator, device=device)

    def some(share: float) -> Tensor:
        return uniform(0, 1) < share

    silent, follows = some(0.08), some(0.3)  # the second: on the end of another recording
    time = torch.arange(SECOND, device=device)
    labels = sounds.labels[rows].where(~silent, SILENCE)
    samples = (sounds.samples[rows].float() / 32768).where(~silent[:, None], 0.0)
    speed, shift = uniform(0.87, 1.15).where(some(0.6), 1.0), uniform(-1600, 1600)
    shift = shift.where(~follows, -uniform(0, 4000))
    place = (time - SECOND / 2) * speed[:, None] + SECOND / 2 + shift[:, None]
    left = place.floor().clamp(0, SECOND - 2).long()
    moved = torch.lerp(samples.gather(1, left), samples.gather(1, left + 1), place - left)
    samples = moved.where((place >= 0) & (place < sounds.lengths[rows, None] - 1), 0.0)
    others = sounds.samples[rows[torch.randperm(count, generator=generator, device=device)]].float() / 32768
    end = (uniform(1600, 6400) * (follows & ~silent)).long()[:, None]
    samples = samples + others.gather(1, (time + SECOND - end).clamp(max=SECOND - 1)).where(time < end, 0.0)
    samples = samples * 10 ** (uniform(-10, 6, count, 1) / 20)

    begin = uniform(0, len(sounds.noise) - SECOND).long()
    noise = sounds.noise[begin[:, None] + time]
    loudness, noisiness = (part.square().mean(1).sqrt().clamp(min=1e-4) for part in (samples, noise))
    ratio = 10 ** (-uniform(*NOISE_RATIOS) / 20)  # of noise to speech
    volume = (loudness / noisiness * ratio).where(some(0.7), 0.0)
    volume = torch.where(silent, uniform(0, 1) ** 2 * some(0.9), volume)
    values = log_mel((samples + noise * volume[:, None]).clamp(-1, 1))

    bands = torch.randn(2, count, values.shape[2], generator=generator, device=device) * 0.12
    tilt = bands[0].cumsum(1)
    tilt = (tilt - tilt.mean(1, keepdim=True)).where(some(0.7)[:, None], 0.0)
    return (values + (tilt + bands[1])[:, None]).clamp(min=LOWEST), labels


def masked(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Inputs [rows, frames, bands] with a stretch of bands and two stretches of frames set to the mean, 0."""
    rows, frames, bands = inputs.shape
    for dim, size, longest in ((2, bands, bands // 6), (1, frames, frames // 12), (1, frames, frames // 12)):
        random = torch.rand(2, rows, 1, generator=generator, device=inputs.device)
        length = (random[0] * (longest + 1)).long()
        begin = (random[1] * (size - length + 1)).long()
        place = torch.arange(size, device=inputs.device)
        stretch = (place >= begin) & (place < begin + length)
        inputs = inputs.masked_fill(stretch.unsqueeze(3 - dim), 0.0)
    return inputs


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


def loss_until_sure(logits: Tensor, labels: Tensor, answers: Tensor) -> Tensor:
    """Cross-entropy at every step up to the first at which a class reaches SURE. `answers` are those of the teacher."""
    logs = logits.log_softmax(-1)
    with torch.no_grad():
        sure = logs.amax(-1) >= math.log(SURE)
        read = sure.cumsum(1) - sure.long() == 0
        target = torch.lerp(F.one_hot(labels, len(LABELS)).float(), answers, TEACHER_WEIGHT)
        weights = read * torch.where(labels == UNKNOWN, UNKNOWN_WEIGHT, 1.0)[:, None]
    return -((logs * target[:, None]).sum(-1) * weights).sum() / weights.sum()


def train(
    module: nn.Module, sounds: Sounds, front_end: Audio, loss: Callable[[Tensor, Tensor], Tensor], rate: float,
    epochs: float, batch_size: int = 512, seed: int = 0,
) -> None:  # fmt: skip
    """Train a module with AdamW and a cosine schedule, and leave its averaged weights in it."""
    device = sounds.samples.device
    generator = torch.Generator(device).manual_seed(seed)
    optimizer = torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=0.05)
    average = torch.optim.swa_utils.AveragedModel(
        module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(DECAY), use_buffers=True
    )
    updates = max(1, int(epochs * len(sounds.labels) / batch_size))
    warmup = min(500, updates)
    module.train()
    with Progress(updates, True) as bar:
        for update in range(updates):
            share = 0.5 + 0.5 * math.cos(math.pi * update / updates)
            for group in optimizer.param_groups:
                group["lr"] = rate * share * min(1.0, (update + 1) / warmup)
            rows = torch.randint(len(sounds.labels), (batch_size,), generator=generator, device=device)
            with torch.no_grad():
                values, labels = augmented(sounds, rows, generator)
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


def pretrain(sounds: Sounds, epochs: float = 150, batch_size: int = 512, seeds: int = 1) -> Iterator[Network]:
    """Networks trained on these recordings, with one teacher."""
    device = sounds.samples.device
    frames = (
        LOG_MEL.frames(each.cpu().float() / 32768) for each in sounds.samples[:: max(1, len(sounds.samples) // 4000)]
    )
    front_end = Audio.of(frames, LOG_MEL, context=0)
    torch.manual_seed(0)
    teacher = Teacher().to(device)

    def naming(inputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(teacher(inputs).float(), labels, label_smoothing=0.05)

    train(teacher, sounds, front_end, naming, 2e-3, TEACHER_EPOCHS * epochs, batch_size)
    for seed in range(seeds):
        torch.manual_seed(seed)
        network = student().to(device)

        def following(inputs: Tensor, labels: Tensor, network: Network = network) -> Tensor:
            with torch.no_grad():
                answers = teacher(inputs).float().softmax(-1)
            return loss_until_sure(logits_at_every_step(network, inputs).float(), labels, answers)

        train(network, sounds, front_end, following, 4e-3, epochs, batch_size, seed)
        network.front_end, network.label_names, network.rule = front_end, LABELS, Threshold(0.98)
        yield network


class Score(NamedTuple):
    """How good a network is on recordings, with its best threshold and bias."""

    accuracy: float  # "silence" counted as "unknown"
    twelve: float  # accuracy with twelve classes, of which unknown and silence are a tenth of the rows each
    recall: float  # of the ten words
    milliseconds: float  # of sound heard, on average
    threshold: float
    bias: float  # subtracted from the logit of "unknown"


@torch.no_grad()
def score(network: Network, sounds: Sounds, seed: int = 0) -> Score:
    """With the threshold and bias of those that keep MAX_MILLISECONDS that have the highest mean of both accuracies."""
    generator, front_end = torch.Generator().manual_seed(seed), cast("Audio", network.front_end)
    begins = torch.randint(len(sounds.noise) - SECOND, (300,), generator=generator)
    volumes = torch.rand(300, generator=generator) ** 2
    silence = [
        sounds.noise[begin : begin + SECOND].cpu() * volume for begin, volume in zip(begins, volumes, strict=True)
    ]
    waveforms = [row[:size].cpu().float() / 32768 for row, size in zip(sounds.samples, sounds.lengths, strict=True)]
    frames = [LOG_MEL.frames(waveform) for waveform in (*waveforms, *silence)]
    sizes = torch.tensor([len(waveform) for waveform in (*waveforms, *silence)])
    labels = torch.cat([sounds.labels.cpu(), torch.full((300,), SILENCE)])
    found, longest = [], max(map(len, frames))
    for rows in torch.arange(len(frames)).split(1024):
        padded = nn.utils.rnn.pad_sequence([frames[row] for row in rows], batch_first=True)
        inputs, _ = front_end(padded.to(sounds.samples.device))
        found.append(F.pad(logits_at_every_step(network, inputs).cpu(), (0, 0, 0, longest - padded.shape[1])))
    logits, steps = torch.cat(found), torch.tensor([len(each) for each in frames])
    scores = _scores(front_end, logits, steps, labels, sizes)
    in_time = [each for each in scores if each.milliseconds <= MAX_MILLISECONDS]
    return max(in_time or scores[:1], key=lambda each: each.accuracy + each.twelve)


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
    parser.add_argument("--seeds", type=int, default=1, help="networks to choose from")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    validation, best = Sounds.read(given.folder, "validation").to(device), None
    for network in pretrain(Sounds.read(given.folder).to(device), given.epochs, seeds=given.seeds):
        scored = score(network, validation)
        print(*(f"{name} {value:.4f}" for name, value in scored._asdict().items()), sep=", ", flush=True)
        if best is None or scored.accuracy + scored.twelve > best:
            best, network.rule = scored.accuracy + scored.twelve, Threshold(scored.threshold)
            with torch.no_grad():
                cast("nn.Linear", network.readout).bias[UNKNOWN] -= scored.bias
            save(network.cpu(), given.target)


if __name__ == "__main__":
    main()
