"""Tables in Parquet files, in wide or long form. They need pyarrow."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rankcode.data.open_file import open_file
from rankcode.data.series import Options, Series, short
from rankcode.data.sources import BadData
from rankcode.data.tables import Table, splits_of, table_of_columns


def read_parquet(path: Path, options: Options) -> dict[str, Series]:
    """Columns of values may have any type of numbers, the others any type."""
    return splits_of(_table(path, options), options)  # pyarrow's own copy of the values is released by now


def _table(path: Path, options: Options) -> Table:
    try:
        from pyarrow import ArrowException, parquet, types
    except ImportError:
        raise ImportError(f"reading {path} needs pyarrow: pip install 'rankcode[parquet]'") from None
    with open_file(path) as file:
        try:
            table = parquet.read_table(file, page_checksum_verification=True)
        except (ArrowException, OSError, UnicodeDecodeError):
            raise BadData(f"{path}: not a Parquet file, or a damaged one") from None
    if not table.column_names:
        raise BadData(f"{path}: it has no columns")

    def column(number: int) -> np.ndarray:
        found = table.column(number)
        try:
            return (found.cast(found.type.value_type) if types.is_dictionary(found.type) else found).to_numpy()
        except ArrowException:
            name = short(repr(table.column_names[number]))
            raise BadData(f"{path}: column {name} is damaged, or holds text that is not UTF-8") from None

    return table_of_columns(path, table.column_names, table.num_rows, column, options)
