"""Small tensors: one thread each is fastest, and results do not depend on the machine's cores."""

import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

torch.set_num_threads(1)

if not torch.cuda.is_available():  # then Triton's kernels run in its interpreter
    os.environ.setdefault("TRITON_INTERPRET", "1")
    with suppress(ImportError):
        from rankcode.engines.triton import kernels

        kernels.WEIGHT_LINES = 64  # programs run one after the other: fewer and larger ones are faster
        from triton.runtime import interpreter

        patched = set()

        def call_device_function(function, *arguments):
            """As Triton does it, but the language is patched once, not again at each call: a quarter of the time."""
            if function.fn.__module__.startswith("triton") and function.fn not in patched:  # ours: the launch did it
                interpreter._patch_lang(function.fn)
                patched.add(function.fn)
            return function.rewrite()(*arguments)

        interpreter.InterpretedFunction.__call__ = call_device_function


@pytest.fixture
def set_threads():
    """Call it to set the number of PyTorch's threads until the end of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def few_updates(monkeypatch):
    """Training without epochs or examples takes 150 updates instead of 1,000: enough for two classes far apart."""
    from rankcode.training import plan

    monkeypatch.setattr(plan, "MIN_UPDATES", 150)
    monkeypatch.setattr(plan, "DEFAULT_EPOCHS", 1)


@pytest.fixture(scope="session")
def operators_are_read_once():
    """PyTorch's exporter makes its table of ONNX operators anew for every export, which takes a quarter of the time."""
    pytest.importorskip("onnxscript")
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        yield


@pytest.fixture(scope="session")
def ray_on_this_machine():
    """Ray with two CPUs, which is used because it has been started: starting it takes seconds."""
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    folder = tempfile.mkdtemp(prefix="rankcode-ray-")
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
    ray.init(address="local", num_cpus=2, object_store_memory=100 * 2**20, _temp_dir=folder, **quiet)
    yield ray
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def rubbish_in_fresh_memory():
    """What is not yet written to is NaN, or the largest whole number."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[assignment]
    assert torch.empty(3, device="cuda" if torch.cuda.is_available() else "cpu").isnan().all()
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.utils.deterministic.fill_uninitialized_memory = before[1]  # type: ignore[assignment]
