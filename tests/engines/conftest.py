"""Fixtures of the tests of the engine `triton`."""

import pytest
import torch


@pytest.fixture
def every_launch_keeps_its_promises(monkeypatch):
    """Compiled kernels are launched without inspecting their arguments, see `Kernel`: every test checks them."""
    from rankcode.engines.triton import kernels

    launch = kernels.Kernel.__call__

    def checked(self, grid, *arguments):
        name = self.function.__name__ if hasattr(self.function, "__name__") else self.function.fn.__name__
        for number, part in enumerate(arguments):
            what = f"argument {number} of {name}"
            if isinstance(part, torch.Tensor):
                assert part.data_ptr() % 16 == 0, f"{what} is not aligned"
                assert part.is_contiguous(), f"{what} is not contiguous"
            else:
                assert isinstance(part, int) and abs(part) < 2**31, f"{what} is {part}"
        types = [part.dtype if isinstance(part, torch.Tensor) else int for part in arguments]
        assert self.__dict__.setdefault("types", types) == types, f"{name} was compiled for other types"
        launch(self, grid, *arguments)

    monkeypatch.setattr(kernels.Kernel, "__call__", checked)
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
