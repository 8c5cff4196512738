"""Worker processes on Ray: embedded on this machine, on a cluster, or in the Ray that the caller has started.

Workers are actors that stay until the end, and each of them does one job at a time. Neither Ray Tune nor Ray Data is
used: both keep a state of their own, and here the files that are written are the only one, so that the same command
goes on after a kill.
"""

from __future__ import annotations

import math
import os
import shutil
import socket
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

TEMPORARY = "rankcode-ray-"  # how the folder for Ray's sockets and logs begins, in the system's temporary folder
OBJECT_STORE = 100 * 2**20  # bytes; little passes through it, and Ray takes at least 75 MiB
CONNECT_SECONDS = 10  # to reach a cluster
MAX_FAILED_STARTS = 5  # of workers: then something is wrong with all of them


class RayWorker:
    """What a worker has besides a method `work(*job)`."""

    def node(self) -> str:
        """The node of the cluster that it runs on. Returns as soon as the worker is ready."""
        import ray

        return ray.get_runtime_context().get_node_id()


class RayWorkers:
    """`with RayWorkers(…) as workers`: gives jobs to worker processes, and notices when one of them dies.

    `worker` is a subclass of RayWorker; it is made with the number of threads that a worker may use and with
    `arguments`. `notes` is the folder that this process writes to.
    """

    def __init__(
        self,
        worker: type,
        arguments: tuple[Any, ...],
        notes: Path,
        cpus_per_run: float,
        gpus_per_run: float | None,
        address: str | None,
        use_gpus: bool,
        sharing: int = 1,
    ):
        """`gpus_per_run`: None gives each worker a GPU if there are any; `sharing` workers share those there are."""
        self.worker, self.arguments, self.notes = worker, arguments, notes
        self.address, self.use_gpus, self.sharing = address, use_gpus, sharing
        self.cpus_per_run, self.gpus_per_run = cpus_per_run, gpus_per_run
        self._calls: dict[Any, tuple[Any, int | None]] = {}  # what a call returns: its worker, the number of its job
        self._idle: list[Any] = []
        self.nodes: list[str] = []  # of the workers that have started
        self._failed_starts = 0
        self._open = ExitStack()

    def __enter__(self) -> RayWorkers:
        import ray

        self.ray: Any = ray
        if not ray.is_initialized():
            self._start()
        resources = ray.cluster_resources()
        if self.gpus_per_run is None:
            share = math.floor(1e4 * resources.get("GPU", 0) / self.sharing) / 1e4  # Ray counts to 4 digits
            self.gpus_per_run = min(1.0, share) if self.use_gpus and resources.get("GPU", 0) >= 1 else 0.0
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
                host, _, port = self.address.rpartition(":")
                if port.isdigit() and "/" not in host:  # Ray would try for minutes
                    socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
                self.ray.init(address=self.address, **quiet)
            except (OSError, OverflowError, RuntimeError, ValueError) as error:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                token = "if it asks for a token, set RAY_AUTH_TOKEN"
                raise ConnectionError(f"no Ray cluster answers at {self.address}: {reason}; {token}") from None
        else:
            note = self.notes / ".ray"  # names the temporary folder, which a killed process leaves behind
            with suppress(OSError):
                _remove(Path(note.read_text()))
            # Not in the folder of the note: the paths of sockets must be shorter than 108 characters.
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
        """How many workers fit at the same time."""
        resources, needed = self.ray.cluster_resources(), {"CPU": self.cpus_per_run, "GPU": self.gpus_per_run or 0}
        fits = [math.floor(resources.get(name, 0) / share + 1e-9) for name, share in needed.items() if share > 0]
        return min(fits, default=1)

    @property
    def running(self) -> list[int]:
        """The numbers of the jobs that are being done."""
        return [number for _, number in self._calls.values() if number is not None]

    def has_room(self, wanted: int) -> bool:
        """Whether a worker waits for a job. Starts workers, at most `wanted`, as many as fit."""
        for _ in range(min(self._slots(), wanted) - len(self._idle) - len(self._calls)):
            actor = self.ray.remote(self.worker).options(num_cpus=self.cpus_per_run, num_gpus=self.gpus_per_run)
            worker = actor.remote(max(1, math.floor(self.cpus_per_run)), *self.arguments)
            self._calls[worker.node.remote()] = worker, None
        return bool(self._idle)

    def give(self, number: int, *job: Any) -> None:
        """Give a job to a worker that waits."""
        worker = self._idle.pop()
        self._calls[worker.work.remote(*job)] = worker, number

    def wait(self, seconds: float) -> list[tuple[int, Any, str | None]]:
        """The jobs that ended meanwhile: their number, what they returned, and why they failed, if they did: then the
        exception that was raised takes the place of the result, None if the worker died."""
        ended: list[tuple[int, Any, str | None]] = []
        done, _ = self.ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)
        if not done:
            done, _ = self.ray.wait(list(self._calls), timeout=seconds)
        for call in done:
            worker, number = self._calls.pop(call)
            result = reason = None
            try:
                result = self.ray.get(call)
                self._idle.append(worker)
            except self.ray.exceptions.RayError as error:
                self.ray.kill(worker)
                result = getattr(error, "cause", None)
                died = isinstance(error, self.ray.exceptions.RayActorError) and number is not None
                reason = "its worker process died" if died else str(error).strip().splitlines()[-1]
                self._failed_starts += number is None
                if self._failed_starts == MAX_FAILED_STARTS:
                    raise RuntimeError(f"the workers of Ray cannot start: {reason}") from None
            if number is not None:
                ended.append((number, result, reason))
            elif reason is None:
                self.nodes.append(str(result))
        return ended


def _remove(temporary: Path) -> None:
    if temporary.name.startswith(TEMPORARY):
        shutil.rmtree(temporary, ignore_errors=True)
