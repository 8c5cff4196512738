"""Fixtures of the tests of the engine `triton`."""

import pytest
import torch


@pytest.fixture
def every_launch_keeps_its_promises(monkeypatch):
    """Compiled kernels are launched without inspecting their arguments, see `Kernel`: every test checks them."""
    from rankcode.engines.triton import kernels

    launch, launches = kernels.Kernel.__call__, kernels.Kernel.launches

    def checked_launches(self, grid, *tensors):
        launch = launches(self, grid, *tensors)

        def checked_launch(*numbers):
            check(self, tensors + numbers)
            launch(*numbers)

        return checked_launch

    def checked(self, grid, *arguments):
        check(self, arguments)
        launch(self, grid, *arguments)

    def check(kernel, arguments):
        name = kernel.function.__name__ if hasattr(kernel.function, "__name__") else kernel.function.fn.__name__
        for number, part in enumerate(arguments):
            what = f"argument {number} of {name}"
            if isinstance(part, torch.Tensor):
                assert part.data_ptr() % 16 == 0, f"{what} is not aligned"
                assert part.is_contiguous(), f"{what} is not contiguous"
            else:
                assert isinstance(part, int) and abs(part) < 2**31, f"{what} is {part}"
        types = [part.dtype if isinstance(part, torch.Tensor) else int for part in arguments]
        assert kernel.__dict__.setdefault("types", types) == types, f"{name} was compiled for other types"

    monkeypatch.setattr(kernels.Kernel, "__call__", checked)
    monkeypatch.setattr(kernels.Kernel, "launches", checked_launches)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def bfloat16_is_multiplied_as_such(monkeypatch):
    """Triton's interpreter stores bfloat16 as integers, and would multiply those."""
    import triton.language as language
    from triton.runtime.interpreter import InterpreterBuilder

    dot = InterpreterBuilder.create_dot

    def widened(self, a, b, *more):
        a, b = (self.cast_impl(x, language.float32) if x.dtype.scalar == language.bfloat16 else x for x in (a, b))
        return dot(self, a, b, *more)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", widened)


@pytest.fixture
def small_blocks(monkeypatch):
    """Batches of the size of these tests in several blocks."""
    from rankcode.engines.triton import blocks, kernels

    def clear():
        """Kernels that were compiled for other RULE_STEPS."""
        kernels.forward.cache_clear()
        kernels.answer.cache_clear()

    def use(block=3, steps=2):
        monkeypatch.setattr(blocks, "MAX_SINGLE_BLOCK", 0)
        monkeypatch.setattr(blocks, "BLOCK_STEPS", block)
        monkeypatch.setattr(kernels, "RULE_STEPS", steps)
        clear()

    yield use
    clear()
