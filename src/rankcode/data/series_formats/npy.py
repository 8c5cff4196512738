"""NumPy's .npy format: NAME.npy holds X, and NAME_labels.npy beside it y; or X.npy and y.npy, X_train.npy and
y_train.npy, and so on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rankcode.data.open_file import open_file
from rankcode.data.series import Options, Series, series_of
from rankcode.data.series_formats.npz import check_header
from rankcode.data.sources import BadData


def read_npy(path: Path, options: Options) -> dict[str, Series]:
    """An array [rows, steps] or [rows, steps, channels]."""
    values: Any = _read(path, "X")
    if options.labelled:
        files = [path.with_name(f"{path.stem}_labels{path.suffix}")]
        if path.stem == "X" or path.stem.startswith("X_"):
            files.append(path.with_name(f"y{path.name[1:]}"))
        found = next((file for file in files if file.exists()), None)
        if found is None:
            raise BadData(f"{path}: there is no file of its labels, {' or '.join(file.name for file in files)}")
        labels = _read(found, "y")
    else:
        labels = np.zeros(len(np.atleast_1d(values)), int)
    return {"train": series_of(values, labels, options=options, path=path)}


def is_labels(path: Path) -> bool:
    """Whether a file holds the labels of another one, by its name."""
    return path.suffix.lower() == ".npy" and (path.stem.endswith("_labels") or path.stem.split("_")[0] == "y")


def _read(path: Path, what: str) -> np.ndarray:
    with open_file(path) as file:
        try:
            check_header(file, path.stat().st_size, path, what)
            file.seek(0)
            return np.lib.format.read_array(file, allow_pickle=False)
        except (BadData, OSError, MemoryError):
            raise
        except Exception:  # damage shows as any of several exceptions
            raise BadData(f"{path}: not an .npy file, or a damaged one") from None
