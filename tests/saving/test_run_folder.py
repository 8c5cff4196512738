"""What a run folder holds, which runs may be resumed in it, and that nothing else in it is touched."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

import rankcode as rc
from rankcode.saving.description import describe
from rankcode.saving.run_folder import RunFolder, free_folder
from rankcode.tasks import OwnData, TemporalMNIST, TwoSequence

TASK = TwoSequence(steps=5, validation_rows=50)
CONFIG = rc.Training(
    examples=64,
    batch_size=8,
    learning_rate=0.001,
    schedule="constant",
    validate_every=3,
    ema_decay=0.5,
    input_noise=0.0,
    device="cpu",
    progress=False,
)


def make_network(units: int = 4) -> rc.Network:
    torch.manual_seed(0)
    return rc.Network(rc.cells.GRU(1, units), 1)


def fit(folder: Path, resume: bool = False, task=TASK, objective=None, network=None, **settings) -> rc.History:
    config = replace(CONFIG, folder=str(folder), resume=resume, **settings)
    return rc.fit(network or make_network(), task, objective or rc.AtSpike(0.6), config)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def assert_refused(folder: Path, message: str, **arguments) -> None:
    """One line, and no file is written, changed or removed."""
    before = contents(folder)
    with pytest.raises(ValueError, match=rf"^[^\n]*{message}[^\n]*$"):
        fit(folder, **arguments)
    assert contents(folder) == before


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    fit(folder)
    return folder


@pytest.fixture
def run(finished, tmp_path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def test_what_a_folder_holds(tmp_path):
    run = tmp_path / "run"
    history = fit(run)
    models = {"best.safetensors", "last.safetensors"}
    assert set(contents(run)) == {"config.json", "checkpoint.pt", "metrics.jsonl", "training.png", *models}
    config = json.loads((run / "config.json").read_text())
    assert config["format"] == 1 and config["versions"]["torch"] == torch.__version__
    assert config["task"]["kind"] == "TwoSequence" and config["task"]["steps"] == 5
    assert config["network"]["cell"]["hidden_size"] == 4
    assert config["objective"]["kind"] == "AtSpike" and config["objective"]["rule"]["threshold"] == 0.6
    assert config["training"]["batch_size"] == 8 and "folder" not in config["training"]
    assert (run / "training.png").read_bytes().startswith(b"\x89PNG")
    assert history.records == RunFolder(run).records() and history.best in history.records
    assert [record["batch"] for record in history.records] == [3, 6, 8]


def test_folders_that_are_not_free_are_refused(run, tmp_path):
    assert_refused(run, "holds a run already: resume it, or choose another folder")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "checkpoint.pt").write_text("mine")
    for resume in (False, True):
        assert_refused(tmp_path / "notes", "exists and is not a run folder", resume=resume)
    assert_refused(tmp_path / "notes" / "checkpoint.pt", "exists and is not a run folder")


def test_an_empty_folder_and_one_with_unfinished_files_are_free(run):
    """A process that is killed at once leaves a checkpoint without config.json."""
    for name in contents(run).keys() - {"checkpoint.pt"}:
        (run / name).unlink()
    (run / ".config.json.123.part").write_text("{")
    fit(run, resume=True)
    assert not list(run.glob(".*")) and [record["batch"] for record in RunFolder(run).records()] == [3, 6, 8]


@pytest.mark.parametrize(
    ("difference", "message"),
    [
        ({"batch_size": 16}, "training.batch_size is 8 there and 16 here"),
        ({"examples": 200, "seed": 1}, "training.seed is 0 there and 1 here"),
        ({"examples": 56}, "holds a longer run than examples=56: epochs and examples may only grow"),
        ({"task": replace(TASK, steps=6)}, "task.steps is 5 there and 6 here"),
        ({"objective": rc.AtSpike(0.6, 0.1)}, "objective.beta is 0.0 there and 0.1 here"),
        ({"network": make_network(5)}, "network.cell.hidden_size is 4 there and 5 here"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_resume_with_other_settings_says_which(run, difference, message):
    assert_refused(run, message, resume=True, **difference)


def test_a_resume_may_change_where_and_how_it_is_shown(run):
    before = RunFolder(run).records()
    assert fit(run, resume=True, progress=True, tensorboard=True).records == before


def test_a_flipped_bit_in_the_best_weights_does_not_reach_the_best_model(run):
    content = bytearray((run / "checkpoint.pt").read_bytes())
    weights = RunFolder(run).checkpoint()["best_weights"]["readout.weight"].numpy().tobytes()
    content[content.index(weights) + 3] ^= 0x40
    (run / "checkpoint.pt").write_bytes(content)
    assert_refused(run, "checkpoint.pt is damaged: it is cut short, or its content does not match", resume=True)


def test_a_run_without_its_checkpoint_is_not_begun_again(run):
    (run / "checkpoint.pt").unlink()
    assert_refused(run, "has no checkpoint.pt to continue from", resume=True)


def test_a_damaged_config_is_refused_and_not_overwritten(run):
    (run / "config.json").write_text('{"format": 7}')
    assert_refused(run, "config.json has format 7, and this version of rankcode reads 1", resume=True)
    assert_refused(run, "holds a run already")


def test_damaged_metrics_are_named_and_a_resume_restores_them(run):
    whole = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(whole + whole[:30])
    assert len(RunFolder(run).records()) == 3  # a last line that was cut short is left out
    for damage in (b"garbage\n", b"\xff\n", b"3\n", b"[" * 10**5 + b"\n"):
        (run / "metrics.jsonl").write_bytes(damage + whole)
        said = "it is not JSON [^\n]*|line 1 must be an object, not 3|its content is nested too deeply"
        with pytest.raises(ValueError, match=rf"metrics\.jsonl is damaged: ({said}); restore it from a copy"):
            RunFolder(run).records()
    fit(run, resume=True)
    assert (run / "metrics.jsonl").read_bytes() == whole


@pytest.mark.parametrize("kind", ["examples", "epochs"])
def test_a_finished_run_goes_on_with_more(kind, tmp_path):
    """To the same weights as a run that was as long from the beginning."""
    data = torch.randn(16, 5, 1), torch.arange(16) % 2
    settings = {"task": TASK if kind == "examples" else data, "validate_every": 4, "examples": None}
    short, long = ({"examples": 64}, {"examples": 128}) if kind == "examples" else ({"epochs": 2}, {"epochs": 4.0})
    fit(tmp_path / "long", **settings | long)
    first = fit(tmp_path / "run", **settings | short)
    assert (tmp_path / "run" / "last.safetensors").read_bytes() != (tmp_path / "long" / "last.safetensors").read_bytes()
    history = fit(tmp_path / "run", resume=True, **settings | long)
    assert history.records[: len(first.records)] == first.records
    assert RunFolder(tmp_path / "run").config() == RunFolder(tmp_path / "long").config()
    for name in ("best", "last"):
        files = [(tmp_path / run / f"{name}.safetensors").read_bytes() for run in ("run", "long")]
        assert files[0] == files[1]


def test_the_schedules_of_a_longer_run_follow_its_new_length(tmp_path):
    settings = {"schedule": "cosine", "learning_rate": 0.5, "validate_every": 4}
    fit(tmp_path / "run", **settings)
    history = fit(tmp_path / "run", resume=True, examples=128, **settings)
    rates = [rc.Training(**settings).learning_rate_at(share) for share in (3 / 8, 7 / 8, 11 / 16)]
    assert [record["learning_rate"] for record in history.records[:3]] == pytest.approx(rates)


def test_the_settings_of_a_task_can_be_changed_where_it_has_them(run):
    folder = RunFolder(run)
    assert folder.task(test_rows=7, data=None) == replace(TASK, test_rows=7)
    with pytest.raises(ValueError, match=r"^the task of .*run has no setting data$"):
        folder.task("elsewhere")
    config = folder.config()
    for task, where in ((TemporalMNIST("x"), "data"), (OwnData("x"), "path")):
        (run / "config.json").write_text(json.dumps(config | {"task": describe(task)}))
        assert folder.task("elsewhere") == replace(task, **{where: "elsewhere"})


# Custom tasks, networks and objectives


@dataclass
class Mine:
    train: tuple
    validation: tuple


def test_arrays_are_recognised_by_their_shape_and_values(tmp_path):
    inputs, labels = torch.randn(10, 5, 1), torch.arange(10) % 2
    fit(tmp_path / "run", task=Mine((inputs, labels), (inputs, labels)))
    written = RunFolder(tmp_path / "run").config()["task"]
    described = {"inputs": [10, 5, 1], "fingerprint": written["fingerprint"]}
    assert written == {"custom": "Mine", **described, "validation": described}

    fit(tmp_path / "arrays", task=(inputs, labels))
    fit(tmp_path / "arrays", resume=True, task=(inputs.clone().numpy(), labels))
    for other in ((inputs + 1, labels), (inputs, 1 - labels), (inputs, labels, torch.full((10,), 4))):
        assert_refused(tmp_path / "arrays", "task.fingerprint is ", resume=True, task=other)
    more = torch.randn(12, 5, 1), torch.arange(12) % 2
    assert_refused(tmp_path / "arrays", r"task.inputs is \[10, 5, 1\] there", resume=True, task=more)


class Cell(nn.Module):
    def __init__(self, units):
        super().__init__()
        self.layer, self.output_shape = nn.Linear(1 + units, units), (units,)

    def initial_state(self, rows):
        return torch.zeros(rows, self.output_shape[0])

    def forward(self, x_t, state):
        state = self.layer(torch.cat([x_t, state], 1)).tanh()
        return state, state


class Readout(nn.LazyLinear):
    cls_to_become = None


def test_a_checkpoint_of_another_custom_network_is_refused(tmp_path):
    """config.json knows no more of custom parts than their names."""
    fit(tmp_path / "run", network=rc.Network(Cell(3), 1, Readout(1)))
    said = r"checkpoint\.pt does not fit the network: cell\.layer\.weight is \[3, 4\] float32 in the file"
    assert_refused(tmp_path / "run", said, resume=True, network=rc.Network(Cell(4), 1, Readout(1)))


class Own(rc.Objective):
    keep = "answer"

    def __init__(self, threshold: float, power: int):
        self.rule, self.power, self.seen, self._calls = rc.Threshold(threshold), power, [], 0

    def row_losses(self, result, labels, progress=0.0):
        self._calls += 1
        self.seen.append(progress)
        return result.at_answer().square().sum(1) ** self.power


class End(rc.AtEnd):
    """Its rule is an attribute of the class."""


def test_a_resume_with_another_custom_objective_says_what_differs(tmp_path):
    run, objective = tmp_path / "run", Own(0.8, 1)
    for resume in (False, True):
        fit(run, resume, objective=objective)
    rule = {"kind": "Threshold", "threshold": 0.8, "classes": None}
    assert RunFolder(run).config()["objective"] == {"custom": "Own", "rule": rule, "power": 1}
    assert RunFolder(run).rule() == rc.Threshold(0.8)
    for other, message in ((Own(0.9, 1), "objective.rule.threshold is 0.8"), (Own(0.8, 2), "objective.power is 1")):
        assert_refused(run, message, resume=True, objective=other)
    fit(tmp_path / "end", objective=End())
    assert RunFolder(tmp_path / "end").rule() == rc.Never()


# Runs that cannot begin


def test_what_cannot_be_trained_leaves_no_folder(tmp_path):
    readout = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
    with pytest.raises(ValueError, match="BatchNorm1d takes means over rows"):
        fit(tmp_path / "run", network=rc.Network(rc.cells.GRU(1, 4), 1, readout))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("tensorboard", [False, True])
def test_a_run_that_fails_in_its_first_batch_leaves_no_folder(tensorboard, tmp_path):
    inputs, labels = torch.full((10, 5, 1), torch.nan), torch.arange(10) % 2
    for _ in range(2):
        with pytest.raises(ValueError, match="inputs hold NaN or infinity"):
            fit(tmp_path / "run", task=(inputs, labels), tensorboard=tensorboard)
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["write_model", "write_checkpoint", "finish"])
def test_a_run_that_fails_after_its_first_record_keeps_its_folder(method, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(RunFolder, method, fail)
        fit(tmp_path / "run")
    assert_refused(tmp_path / "run", "holds a run already")
    assert [record["batch"] for record in fit(tmp_path / "run", resume=True).records] == [3, 6, 8]


def test_tensorboard_events(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    history = fit(tmp_path / "run", tensorboard=True)
    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    for part in ("training", "validation", "first_spike"):
        for name in ("loss", "accuracy", "mean_steps"):
            written = [(event.step, event.value) for event in events.Scalars(f"{part}/{name}")]
            expected = [(record["examples"], pytest.approx(record[part][name])) for record in history.records]
            assert written == expected


def test_without_tensorboard_nothing_is_begun(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"^tensorboard needs a folder: name it with folder=…$"):
        rc.fit(make_network(), TASK, rc.AtEnd(), replace(CONFIG, tensorboard=True))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"^TensorBoard is not installed: pip install 'rankcode\[tensorboard\]'$"):
        fit(tmp_path / "run", tensorboard=True)
    assert not (tmp_path / "run").exists()


def test_free_folder(tmp_path):
    path = tmp_path / "run"
    for expected in ("run", "run-2", "run-3"):
        assert free_folder(path).name == expected
        free_folder(path).mkdir()


# Locks


def test_only_one_process_trains_in_a_folder(run):
    program = f"""
import sys
from rankcode.saving.run_folder import RunFolder
folder = RunFolder({str(run)!r})
folder._hold()
print("held", flush=True)
sys.stdin.read()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout.readline() == "held\n"
        for _ in range(2):  # a lock that was not got is not held
            assert_refused(run, "is being trained by another process", resume=True)
        other.stdin.close()
    fit(run, resume=True)  # the lock went with the process
    fit(run, resume=True)


def test_workers_that_live_on_do_not_hold_the_folder(tmp_path):
    data = torch.utils.data.TensorDataset(torch.randn(16, 5, 1), torch.arange(16) % 2)
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=1, persistent_workers=True)
    fit(tmp_path / "run", task=loader)
    fit(tmp_path / "run", resume=True, task=loader)


def test_a_run_begun_meanwhile_is_not_overwritten(run, monkeypatch):
    """Another process may begin one between the look for it and the lock."""
    before, folder, exists, seen = contents(run), RunFolder(run), Path.exists, []

    def not_yet(path):
        seen.append(path)
        return exists(path) if len(seen) > 1 else False

    monkeypatch.setattr(Path, "exists", not_yet)
    monkeypatch.setattr(RunFolder, "_leftovers", lambda self: list(self.path.iterdir()))
    with pytest.raises(ValueError, match="holds a run already"):
        folder.begin({"task": {"name": "other"}}, resume=False)
    folder.close()
    assert contents(run) == before


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(38, os.strerror(38))

    monkeypatch.setattr("rankcode.saving.files.fcntl.flock", refuse)
    fit(tmp_path / "run")
    fit(tmp_path / "run", resume=True)
