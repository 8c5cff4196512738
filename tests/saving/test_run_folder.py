import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

import rankcode as rc
from rankcode.saving.run_folder import RunFolder, free_folder
from rankcode.training.distributed import Processes
from rankcode.training.state import TrainingState

TASK = rc.tasks.TwoSequence(steps=5, validation_rows=50)
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

DAMAGED = "checkpoint.pt is damaged: it is cut short, or its content does not match its checksum"


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
    before = contents(folder) if folder.is_dir() else folder.read_bytes()
    with pytest.raises(ValueError, match=rf"^[^\n]*{message}[^\n]*$"):
        fit(folder, **arguments)
    assert (contents(folder) if folder.is_dir() else folder.read_bytes()) == before


@pytest.fixture
def run(tmp_path) -> Path:
    fit(tmp_path / "run")
    return tmp_path / "run"


def test_what_a_folder_holds(run):
    assert set(contents(run)) == {
        *("config.json", "checkpoint.pt", "metrics.jsonl"),
        *("best.safetensors", "last.safetensors", "training.png"),
    }
    config = json.loads((run / "config.json").read_text())
    assert config["format"] == 1
    assert config["versions"]["torch"] == torch.__version__
    assert set(config["versions"]) == {"rankcode", "torch", "numpy", "python"}
    assert config["task"]["kind"] == "TwoSequence" and config["task"]["steps"] == 5
    assert config["network"]["cell"]["hidden_size"] == 4
    assert config["objective"]["kind"] == "AtSpike" and config["objective"]["rule"]["threshold"] == 0.6
    assert config["training"]["batch_size"] == 8 and "folder" not in config["training"]
    assert (run / "training.png").read_bytes().startswith(b"\x89PNG")
    assert [record["batch"] for record in RunFolder(run).records()] == [3, 6, 8]


def test_the_history_is_what_the_file_says(tmp_path):
    history = fit(tmp_path / "run")
    assert history.records == RunFolder(tmp_path / "run").records()
    assert history.best in history.records


def test_a_fresh_run_into_a_run_is_refused(run):
    assert_refused(run, "holds a run already: resume it, or choose another folder")


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for resume in (False, True):
        assert_refused(tmp_path, "exists and is not a run folder", resume=resume)
    assert_refused(tmp_path / "notes.txt", "exists and is not a run folder")


def test_an_empty_folder_and_one_with_cut_off_files_are_fine(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.json.123.part").write_text("{")
    fit(tmp_path / "run")
    assert not list((tmp_path / "run").glob(".*"))


@pytest.mark.parametrize(
    ("difference", "message"),
    [
        ({"batch_size": 16}, "training.batch_size is 8 there and 16 here"),
        ({"learning_rate": 0.01}, "training.learning_rate is 0.001 there and 0.01 here"),
        ({"ema_decay": None}, "training.ema_decay is 0.5 there and None here"),
        ({"seed": 1}, "training.seed is 0 there and 1 here"),
        ({"task": replace(TASK, steps=6)}, "task.steps is 5 there and 6 here"),
        ({"task": rc.tasks.Spotting()}, "task.kind is 'TwoSequence' there and 'Spotting' here"),
        ({"objective": rc.AtSpike(0.7)}, "objective.rule.threshold is 0.6 there and 0.7 here"),
        ({"objective": rc.AtSpike(0.6, 0.1)}, "objective.beta is 0.0 there and 0.1 here"),
        ({"objective": rc.AtEnd()}, "objective.kind is 'AtSpike' there and 'AtEnd' here"),
        ({"network": make_network(5)}, "network.cell.hidden_size is 4 there and 5 here"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_resume_with_other_settings_says_which(run, difference, message):
    assert_refused(run, message, resume=True, **difference)


def test_a_resume_may_change_where_and_how_it_is_shown(run):
    before = RunFolder(run).records()
    assert fit(run, resume=True, progress=True, tensorboard=True).records == before


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 0.9, 0.999])
def test_a_checkpoint_cut_short(run, share):
    whole = (run / "checkpoint.pt").read_bytes()
    (run / "checkpoint.pt").write_bytes(whole[: int(share * len(whole))])
    assert_refused(run, DAMAGED, resume=True)


def test_a_flipped_bit_in_the_best_weights_is_refused(run):
    """And the good best.safetensors is not overwritten."""
    content = bytearray((run / "checkpoint.pt").read_bytes())
    weights = RunFolder(run).checkpoint()["best_weights"]["readout.weight"].numpy().tobytes()
    content[content.index(weights) + 3] ^= 0x40
    (run / "checkpoint.pt").write_bytes(content)
    assert_refused(run, DAMAGED, resume=True)


def test_a_checkpoint_that_is_something_else(run):
    for content in (b"hello\n" * 100, os.urandom(1000)):
        (run / "checkpoint.pt").write_bytes(content)
        assert_refused(run, DAMAGED, resume=True)
    for checkpoint in ({"batch": 3}, [1, 2], 5):
        torch.save(checkpoint, run / "checkpoint.pt")
        assert_refused(run, "checkpoint.pt is damaged", resume=True)


def test_a_checkpoint_runs_no_code(run, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/ran",)

    torch.save({"batch": Evil()}, run / "checkpoint.pt")
    assert_refused(run, DAMAGED, resume=True)
    assert not (tmp_path / "ran").exists()


def test_a_folder_of_another_version(run):
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "format": 7}))
    assert_refused(run, "config.json has format 7, and this version of rankcode reads 1", resume=True)
    assert_refused(run, "holds a run already")
    with pytest.raises(ValueError, match="format 7"):
        RunFolder(run).config()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"\xff\xfe", b"[" * 100_000, b'{"format": NaN}'])
def test_a_damaged_config(run, content):
    (run / "config.json").write_bytes(content)
    assert_refused(run, "config.json is damaged", resume=True)


def test_a_config_that_lacks_a_part(run):
    (run / "config.json").write_text('{"format": 1}')
    assert_refused(run, "config.json is damaged: task must be an object, not None", resume=True)


def test_damaged_metrics_are_named_and_a_resume_restores_them(run):
    whole = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(whole + whole[:30])
    assert len(RunFolder(run).records()) == 3  # a last line that was cut short is left out
    for damage in (b"garbage\n", b"\xff\n", b"3\n", b"[" * 10**5 + b"\n"):
        (run / "metrics.jsonl").write_bytes(damage + whole)
        said = "one of its lines is not JSON|line 1 must be an object, not 3|its content is nested too deeply"
        with pytest.raises(ValueError, match=rf"metrics\.jsonl is damaged: ({said}); restore it from a copy"):
            RunFolder(run).records()
    fit(run, resume=True)
    assert (run / "metrics.jsonl").read_bytes() == whole


def test_a_place_that_is_no_run(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is not a run folder: it has no config.json$"):
        RunFolder(tmp_path).config()


def test_a_checkpoint_of_another_network_of_ones_own(tmp_path):
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

    def network(units):
        return rc.Network(Cell(units), 1, Readout(1))

    fit(tmp_path / "run", network=network(3))
    assert_refused(
        tmp_path / "run",
        r"checkpoint\.pt does not fit the network: network\.cell\.layer\.weight is \[3, 4\] float32 in the file",
        resume=True,
        network=network(4),
    )


def test_a_task_of_ones_own_that_holds_arrays(tmp_path):
    @dataclass
    class Mine:
        train: tuple
        validation: tuple

    data = torch.randn(10, 5, 1), torch.arange(10) % 2
    fit(tmp_path / "run", task=Mine(data, data))
    written = RunFolder(tmp_path / "run").config()["task"]
    described = {"inputs": [10, 5, 1], "fingerprint": written["fingerprint"]}
    assert written == {"custom": "Mine", **described, "validation": described}


def test_other_data_of_ones_own(tmp_path):
    fit(tmp_path / "run", task=(torch.randn(10, 5, 1), torch.arange(10) % 2))
    other = torch.randn(12, 5, 1), torch.arange(12) % 2
    assert_refused(tmp_path / "run", r"task.inputs is \[10, 5, 1\] there", resume=True, task=other)


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
    assert rc.Training.of_run(RunFolder(tmp_path / "run"), epochs=None, examples=None) == replace(
        CONFIG, validate_every=4, folder=str(tmp_path / "run"), resume=True, device="auto", progress=True,
        **{"examples": None} | long,
    )  # fmt: skip


def test_only_the_length_of_a_run_may_grow(tmp_path):
    fit(tmp_path / "run")
    fit(tmp_path / "run", resume=True, examples=65)  # 9 batches where there were 8
    said = "holds a run of 9 batches, and these settings give 8: epochs and examples may only grow"
    assert_refused(tmp_path / "run", said, resume=True)
    assert_refused(tmp_path / "run", "training.seed is 0 there and 1 here", resume=True, examples=200, seed=1)
    config = RunFolder(tmp_path / "run").config()
    del config["batches"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    assert_refused(tmp_path / "run", "config.json is damaged: it does not say how many batches", resume=True)


def test_the_schedules_of_a_longer_run_follow_its_new_length(tmp_path):
    fit(tmp_path / "run", schedule="cosine", learning_rate=0.5, validate_every=4)
    history = fit(tmp_path / "run", resume=True, schedule="cosine", learning_rate=0.5, validate_every=4, examples=128)
    rates = [
        rc.Training(schedule="cosine", learning_rate=0.5).learning_rate_at(share) for share in (3 / 8, 7 / 8, 11 / 16)
    ]
    assert [record["learning_rate"] for record in history.records[:3]] == pytest.approx(rates)


def test_the_settings_of_a_run_can_be_read_with_another_length(run):
    folder = RunFolder(run)
    assert rc.Training.of_run(folder).examples == 64
    longer = rc.Training.of_run(folder, epochs=7, device="cpu")
    assert (longer.epochs, longer.examples, longer.device) == (7, None, "cpu")


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


def test_without_tensorboard_nothing_is_begun(tmp_path):
    program = f"""
import sys
sys.modules["tensorboard"] = None
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_run_folder import fit, Path
try:
    fit(Path({str(tmp_path)!r}) / "run", tensorboard=True)
except ImportError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "TensorBoard is not installed: pip install 'rankcode[tensorboard]'\n"
    assert not (tmp_path / "run").exists()


def test_free_folder(tmp_path):
    path = tmp_path / "run"
    for expected in ("run", "run-2", "run-3"):
        assert free_folder(path).name == expected
        free_folder(path).mkdir()


def test_a_run_without_its_checkpoint_is_not_begun_again(run):
    (run / "checkpoint.pt").unlink()
    assert_refused(run, "has no checkpoint.pt to continue from", resume=True)


def test_only_one_process_trains_in_a_folder(run):
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_run_folder
folder = test_run_folder.RunFolder({str(run)!r})
folder._hold()
print("held", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        assert_refused(run, "is being trained by another process", resume=True)
        other.stdin.close()
    fit(run, resume=True)  # the lock went with the process
    fit(run, resume=True)


def test_tensorboard_without_a_folder(tmp_path):
    with pytest.raises(ValueError, match=r"^tensorboard needs a folder: name it with folder=…$"):
        rc.fit(make_network(), TASK, rc.AtEnd(), replace(CONFIG, tensorboard=True))


def test_the_time_of_training_goes_on_with_the_run(tmp_path, monkeypatch):
    """What was spent between the last record and the checkpoint counts in the next record."""
    state = TrainingState(make_network(), CONFIG, Processes(), torch.device("cpu"))
    state._validated -= 100
    again = TrainingState(make_network(), CONFIG, Processes(), torch.device("cpu"))
    again.restore(state.checkpoint())
    assert 100 <= again.training_seconds < 110


class Own(rc.Objective):
    keep = "answer"

    def __init__(self, threshold: float, power: int):
        self.rule, self.power, self.seen = rc.Threshold(threshold), power, []

    def row_losses(self, result, labels, progress=0.0):
        self.seen.append(progress)
        return result.at_answer().square().sum(1) ** self.power


def test_a_resume_with_another_objective_of_ones_own_says_what_differs(tmp_path):
    fit(tmp_path / "run", objective=Own(0.8, 1))
    fit(tmp_path / "run", resume=True, objective=Own(0.8, 1))
    for other, message in ((Own(0.9, 1), "objective.rule.threshold is 0.8"), (Own(0.8, 2), "objective.power is 1")):
        assert_refused(tmp_path / "run", message, resume=True, objective=other)


def test_a_resume_on_arrays_with_other_values_is_refused(tmp_path):
    inputs, labels = torch.randn(10, 5, 1), torch.arange(10) % 2
    fit(tmp_path / "run", task=(inputs, labels))
    fit(tmp_path / "run", resume=True, task=(inputs.clone().numpy(), labels))
    for other in ((inputs + 1, labels), (inputs, 1 - labels), (inputs, labels, torch.full((10,), 4))):
        assert_refused(tmp_path / "run", "task.fingerprint is ", resume=True, task=other)


def test_workers_that_live_on_do_not_hold_the_folder(tmp_path):
    data = torch.utils.data.TensorDataset(torch.randn(16, 5, 1), torch.arange(16) % 2)
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=1, persistent_workers=True)
    fit(tmp_path / "run", task=loader)
    fit(tmp_path / "run", resume=True, task=loader)


def test_a_run_begun_meanwhile_is_not_written_over(run, monkeypatch):
    """Another process may begin one between the look for it and the lock."""
    before, seen = contents(run), []
    exists = Path.exists

    def not_yet(path):
        seen.append(path)
        return exists(path) if len(seen) > 1 else False

    folder = RunFolder(run)
    monkeypatch.setattr(Path, "exists", not_yet)
    monkeypatch.setattr(RunFolder, "_only_leftovers", lambda self: True)
    with pytest.raises(ValueError, match="holds a run already"):
        folder.begin({"task": {"name": "other"}}, resume=False)
    folder.close()
    assert contents(run) == before


def test_the_last_digits_of_what_was_computed_may_differ(run):
    settings = json.loads((run / "config.json").read_text())
    for rate, same in ((settings["training"]["learning_rate"] * (1 + 1e-15), True), (0.0010001, False)):
        other = {"training": settings["training"] | {"learning_rate": rate}}
        if same:
            RunFolder(run).check(other)
        else:
            with pytest.raises(ValueError, match=r"training\.learning_rate is 0\.001 there and 0\.0010001 here"):
                RunFolder(run).check(other)


def test_what_cannot_be_trained_leaves_no_folder(tmp_path):
    readout = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
    with pytest.raises(ValueError, match="BatchNorm1d takes means over rows"):
        fit(tmp_path / "run", network=rc.Network(rc.cells.GRU(1, 4), 1, readout))
    assert not (tmp_path / "run").exists()


class Fixed(rc.Objective):
    keep = "answer"
    rule = rc.Threshold(0.7)

    def __init__(self):
        self._calls = 0

    def row_losses(self, result, labels, progress=0.0):
        self._calls += 1
        return result.at_answer().square().sum(1)


def test_the_rule_of_an_objective_is_written_wherever_it_is_kept(tmp_path):
    objective = Fixed()
    fit(tmp_path / "run", objective=objective)
    fit(tmp_path / "run", resume=True, objective=objective)  # what counts calls is nobody else's business
    written = RunFolder(tmp_path / "run").config()["objective"]
    assert written == {"custom": "Fixed", "rule": {"kind": "Threshold", "threshold": 0.7, "classes": None}}
    assert RunFolder(tmp_path / "run").rule() == rc.Threshold(0.7)


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("rankcode.saving.files.fcntl.flock", refuse)
    fit(tmp_path / "run")
    fit(tmp_path / "run", resume=True)


def test_a_lock_that_was_not_got_is_not_held(run):
    one, other = RunFolder(run), RunFolder(run)
    one._hold()
    for _ in range(2):
        with pytest.raises(ValueError, match="is being trained by another process"):
            other._hold()
    one.close()
    other._hold()
    other.close()


class End(rc.AtEnd):
    """The same by another name."""


def test_the_rule_of_an_objective_made_from_another_is_written(tmp_path):
    fit(tmp_path / "run", objective=End())
    assert RunFolder(tmp_path / "run").rule() == rc.Never()
