"""Worker processes on Ray: embedded on this machine, on a cluster, or in the Ray that the caller has started.

Workers are actors that stay for the whole sweep. Ray Tune is not used: the folder of the sweep is the only state, and
Tune would keep a second one beside it.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from rankcode.sweeps.sweep_folder import SweepFolder
from rankcode.sweeps.worker import Worker

TEMPORARY = "rankcode-ray-"  # how the folder for Ray's sockets and logs begins, in the system's temporary folder
OBJECT_STORE = 100 * 2**20  # bytes; almost nothing passes through it, and Ray takes at least 75 MiB
MAX_FAILED_STARTS = 5  # of workers: then something is wrong with all of them


class RayWorkers:
    """`with RayWorkers(…) as workers`: gives runs to worker processes, and notices when one of them dies."""

    def __init__(
        self, folder: SweepFolder, cpus_per_run: float, gpus_per_run: float | None, address: str | None, use_gpus: bool
    ):
        self.folder, self.address, self.use_gpus = folder, address, use_gpus
        self.cpus_per_run, self.gpus_per_run = cpus_per_run, gpus_per_run
        self._calls: dict[Any, tuple[Any, int | None]] = {}  # what a call returns: its worker, the run it trains
        self._idle: list[Any] = []
        self._failed_starts = 0
        self._open = ExitStack()

    def __enter__(self) -> RayWorkers:
        import ray

        self.ray: Any = ray
        if not ray.is_initialized():
            self._start()
        resources = ray.cluster_resources()
        if self.gpus_per_run is None:
            self.gpus_per_run = 1.0 if self.use_gpus and resources.get("GPU", 0) >= 1 else 0.0
        if self._slots() < 1:
            self._open.close()
            found = f"{resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"
            needed = f"cpus_per_run={self.cpus_per_run:g} and gpus_per_run={self.gpus_per_run:g}"
            raise ValueError(f"no run fits: Ray has {found}, with {needed}")
        return self

    def __exit__(self, *_: object) -> None:
        for worker in [*self._idle, *(worker for worker, _ in self._calls.values())]:
            self.ray.kill(worker)
        self._open.close()

    def _start(self) -> None:
        """Start Ray, or connect to a cluster, without a word on the terminal."""
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns that it will be the default
        if self.address is not None:
            try:
                self.ray.init(address=self.address, **quiet)
            except (ConnectionError, RuntimeError, ValueError) as error:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                token = "if it asks for a token, set RAY_AUTH_TOKEN"
                raise ConnectionError(f"no Ray cluster answers at {self.address}: {reason}; {token}") from None
        else:
            note = self.folder.path / ".ray"  # names the temporary folder, which a killed sweep leaves behind
            with suppress(OSError):
                _remove(Path(note.read_text()))
            # Not in the folder of the sweep: the paths of sockets must be shorter than 108 characters.
            temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY))
            note.write_text(str(temporary))
            self._open.callback(note.unlink, missing_ok=True)
            self._open.callback(_remove, temporary)
            self.ray.init(
                address="local",
                include_dashboard=False,
                object_store_memory=OBJECT_STORE,
                _temp_dir=str(temporary),
                **quiet,
            )
        self._open.callback(self.ray.shutdown)

    def _slots(self) -> int:
        """How many runs fit at the same time."""
        resources, needed = self.ray.cluster_resources(), {"CPU": self.cpus_per_run, "GPU": self.gpus_per_run or 0}
        fits = [math.floor(resources.get(name, 0) / share + 1e-9) for name, share in needed.items() if share > 0]
        return min(fits, default=1)

    @property
    def running(self) -> list[int]:
        """The runs that are being trained."""
        return [number for _, number in self._calls.values() if number is not None]

    def has_room(self, wanted: int) -> bool:
        """Whether a worker waits for a run. Starts workers, at most `wanted`, as many as fit."""
        for _ in range(min(self._slots(), wanted) - len(self._idle) - len(self._calls)):
            actor = self.ray.remote(Worker).options(num_cpus=self.cpus_per_run, num_gpus=self.gpus_per_run)
            worker = actor.remote(max(1, math.floor(self.cpus_per_run)))
            self._calls[worker.ready.remote()] = worker, None
        return bool(self._idle)

    def train(self, number: int, deadline: float | None, where: dict[str, Any]) -> None:
        """Give a run to a worker that waits."""
        worker = self._idle.pop()
        if not self.gpus_per_run and where.get("device", "auto") == "auto":
            where = where | {"device": "cpu"}
        call = worker.train.remote(str(self.folder.path), number, deadline, where)
        self._calls[call] = worker, number

    def wait(self, seconds: float) -> list[tuple[int, str | None]]:
        """The runs that ended meanwhile: their number, and why their worker died, if it did."""
        ended: list[tuple[int, str | None]] = []
        done, _ = self.ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)
        if not done:
            done, _ = self.ray.wait(list(self._calls), timeout=seconds)
        for call in done:
            worker, number = self._calls.pop(call)
            reason = None
            try:
                self.ray.get(call)
                self._idle.append(worker)
            except self.ray.exceptions.RayError as error:
                self.ray.kill(worker)
                died = isinstance(error, self.ray.exceptions.RayActorError) and number is not None
                reason = "its worker process died" if died else str(error).strip().splitlines()[-1]
                self._failed_starts += number is None
                if self._failed_starts == MAX_FAILED_STARTS:
                    raise RuntimeError(f"the workers of Ray cannot start: {reason}") from None
            if number is not None:
                ended.append((number, reason))
        return ended


def _remove(temporary: Path) -> None:
    if temporary.name.startswith(TEMPORARY):
        shutil.rmtree(temporary, ignore_errors=True)
