"""Series from pandas or polars DataFrames in long form. Neither library is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rankcode.data.columns import ID_NAMES, is_named
from rankcode.data.series import SKIP_HINT, Columns, Options
from rankcode.data.sources import BadData
from rankcode.data.tables import splits_of, table_of_columns


def is_long_frame(X: Any) -> bool:  # noqa: N803
    """Whether X is a DataFrame with a column of ids, so that its rows are steps of series."""
    return any(is_named(str(name), ID_NAMES) for name in getattr(X, "columns", ()))


def rows_of_frame(frame: Any, y: Any, like: Columns | None = None) -> tuple[list[np.ndarray], Any, Columns]:
    """Each series [steps, channels] in order of first appearance, their labels, and which columns were read.

    `y` is the name of the label column, a pandas Series indexed by id, labels in order of first appearance, or None.
    `like`: the columns that a model was fitted to, which are found by name.
    """
    names = [str(name) for name in frame.columns]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"X has two columns called {twice[0]!r}")
    named = isinstance(y, str)
    known = "" if like is None or like.label is None else like.label
    channel_names = () if like is None else like.values
    options = Options(labelled=named, label=y if named else known, channel_names=channel_names)

    def column(number: int) -> np.ndarray:
        return frame[frame.columns[number]].to_numpy()

    try:
        table = table_of_columns(Path("X"), names, len(frame), column, options)
        series = splits_of(table, options)["train"]
    except BadData as error:
        raise ValueError(str(error).removesuffix(SKIP_HINT)) from None
    assert series.columns is not None and table.roles.id is not None
    first: dict[Any, int] = {}  # id → its first record
    for record, name in enumerate(column(table.roles.id).tolist()):
        first.setdefault(name, record)
    if named and table.roles.label is not None:
        y = column(table.roles.label)[list(first.values())]
    elif hasattr(y, "loc"):
        y = _by_id(y, list(first))
    return series.rows(), y, series.columns


def _by_id(y: Any, ids: list[Any]) -> np.ndarray:
    index = y.index.tolist()
    labels = dict(zip(index, y.to_numpy(), strict=True))
    if missing := [name for name in ids if name not in labels]:
        raise ValueError(f"y has no label for id {missing[0]!r}: index it by id, or give labels in order of appearance")
    if len(labels) < len(index):
        raise ValueError("y has two labels for the same id")
    return np.array([labels[name] for name in ids])
