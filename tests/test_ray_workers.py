"""Worker processes on Ray: what goes wrong before any has started. tests/sweeps has those that work."""

import contextlib
import socket

import pytest

from rankcode.ray_workers import RayWorkers
from rankcode.sweeps.worker import Worker

ray = pytest.importorskip("ray", reason="workers need ray")


@pytest.mark.parametrize(("host", "reason"), [("127.0.0.1", "refused"), ("nowhere.invalid", "not known|resolution")])
def test_a_cluster_that_does_not_answer_is_named_at_once(host, reason, tmp_path):
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        address = f"{host}:{free.getsockname()[1]}"
    workers = RayWorkers(Worker, (), tmp_path, 1, 0, address, use_gpus=False)
    workers.ray = ray
    with pytest.raises(ConnectionError, match=f"no Ray cluster answers at {address}: .*({reason})"):
        workers._start()
