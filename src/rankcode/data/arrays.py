"""A user's arrays as NumPy arrays and tensors of real numbers.

Any byte order, any strides and read-only memory are accepted. Masked values become NaN. Complex numbers are refused,
because a conversion would drop their imaginary part.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor


def as_array(values: Any) -> np.ndarray:
    """The values as a NumPy array in native byte order; not copied where that can be avoided."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    array: Any = values if isinstance(values, np.ma.MaskedArray) else np.asarray(values)
    if array.dtype.kind == "c":
        raise ValueError("the data is complex: give the real and the imaginary part as two channels")
    if isinstance(values, np.ma.MaskedArray):
        masked = np.ma.is_masked(values)
        as_floats: Any = values.astype(np.promote_types(values.dtype, np.float32)) if masked else values
        array = as_floats.filled(np.nan) if masked else values.data
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def as_tensor(values: Any) -> Tensor:
    """The values as a tensor of real numbers, which must not be written to."""
    tensor = values if isinstance(values, Tensor) else _read(values)
    if tensor.is_complex():
        raise ValueError("the data is complex: give the real and the imaginary part as two channels")
    return tensor


def _read(values: Any) -> Tensor:
    if hasattr(values, "__array__"):
        values = as_array(values)
        if any(stride < 0 for stride in values.strides):  # which PyTorch does not support
            values = values.copy()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # it is never written to
            return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"cannot read numbers from a {type(values).__name__}: {reason}") from None
