"""A run that is killed at any moment and resumed, again and again, ends as if nothing had happened."""

import json
import multiprocessing
import os
import random
import signal
import time
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rankcode as rc
from rankcode.engines import cpu
from rankcode.saving.checkpoint import read_checkpoint
from rankcode.saving.run_folder import RunFolder
from rankcode.training import records
from rankcode.training.state import TrainingState

PROCESSES = multiprocessing.get_context("forkserver")  # a fork of a process that has only imported: fast and clean
PROCESSES.set_forkserver_preload(["rankcode", "rankcode.plots", "pytest", "torch.utils.data", "torch._dynamo"])

KINDS = ("generated", "arrays", "loader")


def sequences(rows: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (rows,), generator=generator)
    inputs = torch.randn(rows, 9, 2, generator=generator) + 0.4 * labels[:, None, None]
    return inputs, labels, torch.randint(1, 10, (rows,), generator=generator)


def train(kind: str, folder: str, resume: bool):
    """Everything that could be forgotten is on: dropout, moving average, schedules, clipping, a partial batch."""
    torch.manual_seed(5)
    cpu.NATIVE_BLOCK_COST = 1  # blocks of steps end where rows of the batch before answered
    inputs, outputs = (1, 1) if kind == "generated" else (2, 3)
    readout = nn.Sequential(nn.Dropout(0.3), nn.Linear(8, outputs))
    network = rc.Network(rc.cells.GRU(inputs, 8), outputs, readout)
    data = sequences(50, 1)  # 4 batches of 16, 16, 16 and 2 rows
    settings = {"batch_size": 16, "validate_every": 5, "examples": 960 if kind == "generated" else 750}  # 60 batches
    if kind == "generated":
        task = rc.tasks.TwoSequence(steps=9, mean=0.2, validation_rows=200)
    elif kind == "arrays":
        task = SimpleNamespace(train=data, validation=sequences(100, 2))
    else:
        task = SimpleNamespace(train=DataLoader(TensorDataset(*data), 16, shuffle=True), validation=sequences(100, 2))
        settings = {"epochs": 15, "validate_every": 5}
    config = rc.Training(
        learning_rate=0.02,
        optimizer="adamw",
        weight_decay=0.1,
        schedule="cosine",
        warmup_ratio=0.1,
        max_grad_norm=0.5,
        ema_decay=0.9,
        seed=3,
        device="cpu",
        engine="cpu",
        progress=False,
        folder=folder,
        resume=resume,
        **settings,
    )
    history = rc.fit(network, task, rc.AtSpike(0.6, rc.Switch((0, 0.2), (0.5, 0.1))), config)
    return network, history


def process(kind: str, folder: str, resume: bool, death: tuple[str, int] | None) -> None:
    torch.set_num_threads(1)
    if death is not None:
        plant(*death)
    network, history = train(kind, folder, resume)
    torch.save((network.state_dict(), history.records, history.best), f"{folder}.written")
    os.rename(f"{folder}.written", f"{folder}.result")  # whole, or not there


def plant(where: str, calls: int) -> None:
    """Kill this process at a call of a function: before it, after it or in the middle of what it does."""

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def half_a_line(folder, record):
        with open(folder.path / "metrics.jsonl", "a") as file:
            file.write(json.dumps(record)[:40])
        die()

    owner, name, before, after = {
        "before a batch": (TrainingState, "backward", die, None),
        "while writing a file": (os, "fsync", die, None),
        "after writing a file": (os, "replace", None, die),
        "while writing a record": (RunFolder, "write_record", half_a_line, None),
        "before a checkpoint": (RunFolder, "write_checkpoint", die, None),
        "while validating": (records, "evaluate", None, die),
        "at the end": (RunFolder, "finish", die, None),
    }[where]
    original, left = getattr(owner, name), iter(range(calls - 1, -1, -1))

    def deadly(*arguments, **named):
        now = next(left) == 0
        if now and before is not None:
            before(*arguments)
        result = original(*arguments, **named)
        if now and after is not None:
            after()
        return result

    setattr(owner, name, deadly)


def start(kind: str, folder, resume: bool, death=None):
    child = PROCESSES.Process(target=process, args=(kind, str(folder), resume, death))
    child.start()
    return child


def exit_code(kind: str, folder, resume: bool, death=None) -> int:
    child = start(kind, folder, resume, death)
    child.join(100)
    return child.exitcode


def outcome(folder):
    """Everything a run leaves, but for the time it took."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    weights, history, best = torch.load(f"{folder}.result", weights_only=True)
    assert [{**r, "seconds": 0, "training_seconds": 0} for r in history] == [
        {**r, "seconds": 0, "training_seconds": 0} for r in lines
    ]
    for record in (*lines, best):
        del record["seconds"], record["training_seconds"]
    files = [(folder / f"{name}.safetensors").read_bytes() for name in ("best", "last")]
    return lines, best, files, {name: tensor.numpy().tobytes() for name, tensor in weights.items()}


def assert_nothing_broken(folder) -> None:
    """What has a name in the folder is whole."""
    for file in folder.glob("*.safetensors"):
        load_file(file)
    if (folder / "checkpoint.pt").exists():
        read_checkpoint(folder / "checkpoint.pt")
    if (folder / "config.json").exists():
        json.loads((folder / "config.json").read_text())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What each kind of run gives when it is not killed."""
    place = tmp_path_factory.mktemp("undisturbed")
    outcomes = {}
    for kind in KINDS:
        assert exit_code(kind, place / kind, False) == 0
        outcomes[kind] = outcome(place / kind)
    return outcomes


DEATHS = (
    ("while writing a file", 1),  # the folder holds nothing but a part of a file
    ("after writing a file", 1),  # checkpoint.pt is all there is
    ("after writing a file", 2),  # and config.json
    ("before a checkpoint", 1),
    ("before a batch", 3),
    ("before a batch", 9),
    ("while validating", 2),
    ("while writing a record", 1),
    ("after writing a file", 3),
    ("while writing a file", 4),
    ("before a checkpoint", 2),
    ("while validating", 5),
    ("before a batch", 17),
    ("while writing a file", 5),
    ("before a batch", 3),
    ("at the end", 1),
)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_every_kind_of_moment(kind, undisturbed, tmp_path):
    folder = tmp_path / "run"
    for death in DEATHS if kind == "arrays" else DEATHS[2::2]:
        assert exit_code(kind, folder, True, death) == -signal.SIGKILL, death
        assert_nothing_broken(folder)
    assert exit_code(kind, folder, True) == 0
    assert outcome(folder) == undisturbed[kind]
    assert not [file for file in folder.iterdir() if file.name.startswith(".")]


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_random_times(kind, undisturbed, tmp_path):
    folder, moments, kills = tmp_path / "run", random.Random(kind), 0
    while not (tmp_path / "run.result").exists():
        child = start(kind, folder, True)
        while child.is_alive() and not (folder / "config.json").exists():
            time.sleep(0.001)
        if kills < 5:
            child.join(moments.uniform(0, 0.5) if kills else 0)
            child.kill()
        child.join(100)
        kills += child.exitcode != 0
        assert child.exitcode in (0, -signal.SIGKILL)
        assert_nothing_broken(folder)
    assert kills
    assert outcome(folder) == undisturbed[kind]


def test_resuming_a_run_that_ended_changes_nothing(undisturbed, tmp_path):
    folder = tmp_path / "run"
    for resume in (False, True):
        assert exit_code("arrays", folder, resume) == 0
        assert outcome(folder) == undisturbed["arrays"]


def test_the_weights_a_resumed_run_begins_with_do_not_matter(undisturbed, tmp_path, monkeypatch):
    """They come from the checkpoint, which is there as soon as config.json is."""
    folder = tmp_path / "run"
    assert exit_code("arrays", folder, False, ("after writing a file", 2)) == -signal.SIGKILL
    assert sorted(file.name for file in folder.iterdir()) == ["checkpoint.pt", "config.json"]
    monkeypatch.setattr(torch, "manual_seed", lambda seed: None)
    network, history = train("arrays", str(folder), True)
    torch.save((network.state_dict(), history.records, history.best), f"{folder}.result")
    assert outcome(folder) == undisturbed["arrays"]


def test_a_loader_is_never_resumed_within_an_epoch(tmp_path):
    """Each row is trained on once in every epoch, whenever the run was cut off."""
    seen: list[int] = []

    class Spy:
        def __len__(self):
            return 5

        def __iter__(self):
            for i in range(5):
                seen.append(i)
                yield torch.full((2, 3, 1), float(i)), torch.tensor([0, 1])

    class StopError(Exception):
        pass

    def cut(batch):
        def backward(self, *arguments):
            if self.batch == batch:
                raise StopError
            return original(self, *arguments)

        return backward

    original = TrainingState.backward
    config = rc.Training(epochs=4, validate_every=3, folder=str(tmp_path / "run"), resume=True, progress=False)
    for cut_off, expected in (
        (8, [*range(5), *range(4)]),
        (17, [*range(5), *range(5), *range(3)]),
        (None, [*range(5)]),
    ):
        seen.clear()
        TrainingState.backward = original if cut_off is None else cut(cut_off)
        try:
            network = rc.Network(rc.cells.GRU(1, 4), 2)
            history = rc.fit(network, Spy(), rc.AtEnd(), config)
        except StopError:
            pass
        finally:
            TrainingState.backward = original
        assert seen == expected
    assert [record["batch"] for record in history.records] == [3, 6, 9, 12, 15, 18, 20]
    assert [record["examples"] for record in history.records] == [6, 12, 18, 24, 30, 36, 40]


def test_a_loader_that_does_not_know_its_length_says_that_it_starts_again(tmp_path):
    class Stream:
        def __iter__(self):
            while True:
                yield torch.ones(2, 3, 1), torch.tensor([0, 1])

    config = rc.Training(examples=40, batch_size=2, folder=str(tmp_path / "run"), resume=True, progress=False)
    rc.fit(rc.Network(rc.cells.GRU(1, 4), 2), Stream(), rc.AtEnd(), config)
    with pytest.warns(UserWarning, match="starts again from its beginning"):
        rc.fit(rc.Network(rc.cells.GRU(1, 4), 2), Stream(), rc.AtEnd(), config)
