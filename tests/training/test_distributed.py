"""Two processes on CPU do what one does."""

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, TensorDataset

import rankcode as rc
from rankcode.cli.main import main
from rankcode.data.sources import Arrays, Batch
from rankcode.saving.run_folder import RunFolder
from rankcode.training.distributed import ProcessEnded, Processes
from rankcode.training.state import TrainingState

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["rankcode", "rankcode.plots", "pytest", "torch.utils.data", "torch._dynamo"])


def sequences(rows: int):
    generator = torch.Generator().manual_seed(rows)
    inputs = torch.randn(rows, 8, 2, generator=generator)
    labels = torch.randint(3, (rows,), generator=generator)
    return inputs + 0.5 * labels[:, None, None], labels, torch.randint(1, 9, (rows,), generator=generator)


class Task:
    def __init__(self, rows: int):
        self.train, self.validation = Arrays(*sequences(rows)), Arrays(*sequences(30))


SETTINGS = {"learning_rate": 0.01, "device": "cpu", "progress": False, "validate_every": 2, "finish_with": "last"}
RUNS = {  # objective, task, settings
    "mixed spikes": (rc.AtSpike(0.45, 0.1), Task(40), {"epochs": 2, "batch_size": 10}),
    "odd rows, and one row left over": (rc.AtSpike(0.45), Task(11), {"epochs": 3, "batch_size": 5, "ema_decay": 0.9}),
    "one row": (rc.UntilSpike(0.45), Task(4), {"epochs": 2, "batch_size": 1, "max_grad_norm": 0.1}),
    "to the end": (rc.EveryStep(), Task(12), {"epochs": 2, "batch_size": 7, "weight_decay": 0.1, "optimizer": "adamw"}),
    "noise": (rc.AtSpike(0.45), Task(20), {"epochs": 2, "batch_size": 7, "input_noise": 0.5}),
    "generated": (
        rc.AtSpike(0.52),
        rc.tasks.TwoSequence(steps=8, validation_rows=50),
        {"examples": 54, "batch_size": 9},
    ),
}


def train(name: str, **settings):
    """Weights, records and the gradient of every batch."""
    objective, task, own = RUNS[name]
    torch.manual_seed(0)
    network = rc.Network(rc.cells.LSTM(2, 5), 3) if name != "generated" else rc.Network(rc.cells.LSTM(1, 5), 1)
    gradients = []

    def watch(optimizer, *_):
        gradients.append([weight.grad.clone() for weight in optimizer.param_groups[0]["params"]])

    watching = register_optimizer_step_pre_hook(watch)
    history = rc.fit(network, task, objective, rc.Training(**SETTINGS | own | settings))
    watching.remove()
    for record in history.records:
        del record["seconds"], record["training_seconds"]
    return [weight.detach() for weight in network.parameters()], history.records, gradients


def train_all(place: Path, rank: int, names=tuple(RUNS)) -> None:
    torch.set_num_threads(1)
    for name in names:  # every process names a folder of its own: only the first may write
        torch.manual_seed(rank)
        torch.save(train(name, folder=str(place / f"run {name} {rank}")), place / f"{name} {rank}")


def compare_all(place: Path, names=tuple(RUNS)) -> None:
    for name in names:
        weights, records, gradients = train(name)
        for rank in range(2):
            theirs = torch.load(place / f"{name} {rank}", weights_only=True)
            torch.testing.assert_close(theirs[2], gradients, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(theirs[0], weights, rtol=0, atol=1e-5)
            for record, expected in zip(theirs[1], records, strict=True):
                assert record["examples"] == expected["examples"]
                assert record["training"] == pytest.approx(expected["training"], rel=1e-5)
                assert record["validation"]["steps_histogram"] == expected["validation"]["steps_histogram"]
        assert (place / f"run {name} 0" / "last.safetensors").exists()
        assert not (place / f"run {name} 1").exists()
        if name == "mixed spikes":
            assert sum(rows > 0 for rows in records[-1]["validation"]["steps_histogram"]) > 3


@contextlib.contextmanager
def started(*command, **more):
    """A process, which is ended with its children."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(rc.__file__).parents[1])}
    begin = {"env": environment, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen([sys.executable, "-m", *command], **begin | more) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)


def test_under_torchrun_on_two_machines(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        f"import os, sys\nfrom pathlib import Path\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import test_distributed\n"
        f"test_distributed.train_all(Path({str(tmp_path)!r}), int(os.environ['RANK']), ('mixed spikes',))\n"
    )
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        where = ["--master-addr", "127.0.0.1", "--master-port", str(free.getsockname()[1])]
    run = ["torch.distributed.run", "--nnodes", "2", *where, "--nproc-per-node", "1", "--node-rank"]
    with started(*run, "0", str(program)) as first, started(*run, "1", str(program)) as second:
        said = [process.communicate(timeout=100)[1] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), said
    compare_all(tmp_path, ("mixed spikes",))


def kill(rank: int, folder: Path) -> None:
    """Kill a process of the training in a folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            variables = (process / "environ").read_bytes().split(b"\0")
            if str(folder).encode() in (process / "cmdline").read_bytes() and f"RANK={rank}".encode() in variables:
                os.kill(int(process.name), signal.SIGKILL)
                return
    raise AssertionError("there is no such process")


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "restarts"), [(0, 1), (1, 0)])
def test_a_process_that_dies_stops_the_training_which_is_resumed(rank, restarts, tmp_path):
    """By torchrun itself, or by the user."""
    inputs, labels, lengths = sequences(120)
    np.savez(tmp_path / "data.npz", X=inputs, y=labels, lengths=lengths)
    flags = [str(tmp_path / "data.npz"), "--model", "recurrent", "--hidden-size", "4", "--batch-size", "8"]
    flags += ["--epochs", "30", "--device", "cpu", "--no-progress", "--finish-with", "last", "--folder"]
    main(["train", *flags, str(tmp_path / "alone")])
    folder, metrics = tmp_path / "together", tmp_path / "together" / "metrics.jsonl"
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    with started(*torchrun, "-m", "rankcode", "train", *flags, str(folder), "--resume") as group:
        while group.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 3):
            time.sleep(0.01)
        kill(rank, folder)
        _, said = group.communicate(timeout=100)
    assert [line for line in said.splitlines() if line.startswith("rankcode: ")] == [
        f"rankcode: stopped, because a process of the training has ended; continue with: torchrun … -m rankcode "
        f"resume {folder}"
    ]
    assert (group.returncode == 0) == (restarts > 0), said
    if restarts == 0:
        assert 3 <= metrics.read_bytes().count(b"\n") < 30
        with started(*torchrun, "-m", "rankcode", "resume", str(folder), "--device", "cpu") as group:
            _, said = group.communicate(timeout=100)
        assert group.returncode == 0, said
    assert [record["batch"] for record in RunFolder(folder).records()] == [10 * epoch for epoch in range(1, 31)]
    weights, expected = rc.load(folder).state_dict(), rc.load(tmp_path / "alone").state_dict()
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-5)


def in_group(rank: int, place: Path, work) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}/meeting", rank=rank, world_size=2)
    work(place, rank)
    assert dist.is_initialized()  # it was not ours to end
    dist.destroy_process_group()


def two_processes(place: Path, work, exit_codes=(0, 0)) -> None:
    children = [PROCESSES.Process(target=in_group, args=(rank, place, work)) for rank in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(100)
    assert tuple(child.exitcode for child in children) == exit_codes


def test_in_a_group_that_the_user_made(tmp_path):
    two_processes(tmp_path, train_all)
    compare_all(tmp_path)


def refused(place: Path, rank: int) -> None:
    with pytest.raises(ValueError, match="exists and is not a run folder"):
        train("one row", folder=str(place))


def test_an_error_of_the_first_process_is_everybodys(tmp_path):
    two_processes(tmp_path, refused)


def no_number(place: Path, rank: int) -> None:
    with pytest.raises(FloatingPointError, match="the loss is no longer a number at batch"):
        train("mixed spikes", learning_rate=3e37)


def test_a_loss_that_is_no_number_ends_every_process(tmp_path):
    two_processes(tmp_path, no_number)


def one_is_killed(place: Path, rank: int) -> None:
    def end(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    if rank == 1:
        register_optimizer_step_pre_hook(end)
    with pytest.raises(ProcessEnded, match="another process of this training has ended"):
        train("mixed spikes")
    os._exit(0)  # what is left of the group cannot be closed


def test_a_process_that_dies_ends_the_others(tmp_path):
    two_processes(tmp_path, one_is_killed, exit_codes=(0, -signal.SIGKILL))


class CutError(Exception):
    pass


def cut_off_and_resumed(place: Path, rank: int) -> None:
    """With dropout, and a loader whose epochs end between validations."""
    backward = TrainingState.backward

    def cut(state, *arguments):
        if state.batch == 9:
            raise CutError
        backward(state, *arguments)

    def run(folder: Path):
        torch.manual_seed(rank)
        network = rc.Network(rc.cells.LSTM(2, 5), 3, nn.Sequential(nn.Dropout(0.3), nn.Linear(5, 3)))
        data = TensorDataset(*sequences(10 + rank))  # four batches here, five in the other process
        config = rc.Training(**SETTINGS | {"epochs": 4, "validate_every": 3, "folder": str(folder), "resume": True})
        history = rc.fit(network, DataLoader(data, 3, shuffle=True), rc.AtSpike(0.45), config)
        return network, [{**record, "seconds": 0, "training_seconds": 0} for record in history.records]

    network, records = run(place / "undisturbed")
    TrainingState.backward = cut
    with pytest.raises(CutError):
        run(place / "cut off")
    TrainingState.backward = backward
    dist.barrier()
    resumed, records_resumed = run(place / "cut off")
    assert [record["batch"] for record in records_resumed] == [3, 6, 9, 12, 15, 16]
    if rank == 0:
        assert len(records_resumed) == len(records)
        for one, other in zip(records, records_resumed, strict=True):
            assert one["examples"] == other["examples"]
            assert one["training"] == pytest.approx(other["training"])
    for one, other in zip(network.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_cut_off_and_resumed(tmp_path):
    two_processes(tmp_path, cut_off_and_resumed)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_shares_make_up_the_batch(rows, count):
    batch = Batch(torch.arange(rows)[:, None, None], torch.arange(rows), torch.ones(rows))
    shares = [Processes(rank, count).share(batch) for rank in range(count)]
    assert sorted(row for share, weight in shares if weight for row in share.labels.tolist()) == list(range(rows))
    mean = sum(weight * share.labels.double().mean() for share, weight in shares) / count
    assert mean == pytest.approx((rows - 1) / 2)
    assert all(len(share.inputs) == len(share.labels) == len(share.lengths) > 0 for share, _ in shares)


def test_alone(monkeypatch):
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "4")  # as some clusters set it for every job
    assert train("one row")[1]
