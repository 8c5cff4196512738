"""Arrays as users have them: byte orders, strides, masks, read-only memory, complex numbers."""

import numpy as np
import pytest
import torch

from rankcode.data.arrays import as_array, as_tensor

VALUES = np.arange(12.0).reshape(3, 4)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("convert", [as_array, as_tensor])
@pytest.mark.parametrize(
    "given",
    [
        VALUES[::-1],
        VALUES[:, ::-2],
        VALUES.astype(">f8"),
        VALUES.astype(">i2"),
        VALUES.astype("<f4")[::-1].astype(">f4"),
        np.ma.masked_array(VALUES),
        torch.from_numpy(VALUES).bfloat16(),
        torch.nn.Parameter(torch.from_numpy(VALUES)),
        VALUES.tolist(),
    ],
    ids=["rows", "columns", ">f8", ">i2", "both", "no mask", "bfloat16", "parameter", "list"],
)
def test_numbers_are_what_they_were(convert, given):
    expected = given if isinstance(given, list) else given.tolist()
    assert convert(given).tolist() == expected


@pytest.mark.filterwarnings("error")
def test_memory_that_is_read_only_is_shared_and_does_not_warn():
    given = VALUES.copy()
    given.flags.writeable = False
    assert as_tensor(given).data_ptr() == given.ctypes.data
    assert as_array(given) is given


@pytest.mark.parametrize("convert", [as_array, as_tensor])
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int16, np.int64])
def test_masked_values_are_missing(convert, kind):
    found = convert(np.ma.masked_array(VALUES.astype(kind), mask=VALUES == 5))
    assert np.isnan(np.asarray(found)).nonzero() == (np.array([1]), np.array([1]))
    assert np.nansum(np.asarray(found)) == VALUES.sum() - 5


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("convert", [as_array, as_tensor])
@pytest.mark.parametrize("given", [VALUES * 1j, torch.zeros(3, dtype=torch.complex64), [1j, 2.0]])
def test_complex_numbers_are_refused(convert, given):
    with pytest.raises(ValueError, match="complex: give the real and the imaginary part"):
        convert(given)


@pytest.mark.parametrize("given", [None, "abc", ["a"], np.array(["a"]), np.array([None]), [[1], [1, 2]], object()])
def test_what_holds_no_numbers(given):
    with pytest.raises(ValueError, match="cannot read numbers from a ") as error:
        as_tensor(given)
    assert "\n" not in str(error.value)
