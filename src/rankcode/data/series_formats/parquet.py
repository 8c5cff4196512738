"""Tables in Parquet files, in wide or long form. They need pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rankcode.data.columns import roles_of
from rankcode.data.open_file import open_file
from rankcode.data.series import BLOCK_BYTES, Options, Series, short
from rankcode.data.sources import BadData
from rankcode.data.tables import splits_of, table_of_columns


def read_parquet(path: Path, options: Options) -> dict[str, Series]:
    """Columns of values may have any numeric type, the others any type."""
    with opened(path) as file:
        table = _Records(path, file.read())
    return table.splits(options)


def parquet_blocks(path: Path, options: Options) -> Iterator[Callable[[], Series]]:
    """The same without labels, in blocks of records, if every block can be understood without the others."""
    import pyarrow as pa

    with opened(path) as file:
        cuts = _cuts(path, file, options)
        if cuts is None:
            yield lambda: read_parquet(path, options)["train"]
            return
        batches, pending = file.iter_batches(max(1, cuts[1])), pa.table([], schema=pa.schema([]))
        for first, last in pairwise(cuts):
            while len(pending) < last - first:
                batch = pa.Table.from_batches([next(batches)])
                pending = pa.concat_tables([pending, batch]) if len(pending) else batch
            block = _Records(path, pending.slice(0, last - first), first)
            pending = pending.slice(last - first)
            yield partial(lambda block: block.splits(options)["train"], block)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A file with at least one column, as pyarrow's ParquetFile."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ImportError(f"reading {path} needs pyarrow: pip install 'rankcode[parquet]'") from None
    with open_file(path) as content:
        try:
            file = parquet.ParquetFile(content, page_checksum_verification=True)
            if not file.schema_arrow.names:
                raise BadData(f"{path}: it has no columns")
            yield file
        except (ArrowException, OSError, UnicodeDecodeError):
            raise BadData(f"{path}: not a Parquet file, or a damaged one") from None


class _Records:
    """Some records of a file, from number `first` on, as pyarrow reads them."""

    def __init__(self, path: Path, table: Any, first: int = 0):
        self.path, self.names, self.size, self.first = path, table.column_names, len(table), first
        self._table = table

    def splits(self, options: Options) -> dict[str, Series]:
        """The series. Can be called once: pyarrow's own copy of the values is released before they are sorted."""
        table = table_of_columns(self.path, self.names, self.size, self._column, options, self.first)
        del self._table
        return splits_of(table, options)

    def _column(self, number: int) -> np.ndarray:
        from pyarrow import ArrowException

        try:
            return _plain(self._table.column(number)).to_numpy()
        except ArrowException:
            name = short(repr(self.names[number]))
            raise BadData(f"{self.path}: column {name} is damaged, or holds text that is not UTF-8") from None


def _plain(column: Any) -> Any:
    """A column without its dictionary, if it has one."""
    from pyarrow import types

    return column.cast(column.type.value_type) if types.is_dictionary(column.type) else column


def _cuts(path: Path, file: Any, options: Options) -> list[int] | None:
    """The numbers of the records at which blocks begin, and the total number; None: the file has to be read at once.

    That is so if the file is small, if the text of a column decides what it is, and in long form if the records of a
    series are not consecutive.
    """
    from pyarrow import types

    names, count = file.schema_arrow.names, file.metadata.num_rows
    roles = roles_of(path, names, options)
    rows = max(1, BLOCK_BYTES // (8 * len(roles.values)))
    read_first = [*roles.candidates, *([] if roles.time is None else [roles.time])]
    is_clear = all(types.is_primitive(file.schema_arrow.field(column).type) for column in read_first)
    if count <= rows or not is_clear or (roles.id is not None and roles.time is None):
        return None
    if roles.id is None:
        return [*range(0, count, rows), count]
    cuts, seen, last, at = [0], set[int](), None, 0
    for batch in file.iter_batches(columns=[names[roles.id]]):
        ids = _plain(batch.column(0)).to_numpy(zero_copy_only=False)
        for start in (0, *(1 + np.flatnonzero(ids[1:] != ids[:-1]))):
            name = str(ids[start]).strip()
            if name != last:
                if hash(name) in seen:
                    return None
                seen.add(hash(name))
                last = name
                if at + start - cuts[-1] >= rows:
                    cuts.append(int(at + start))
        at += len(ids)
    return [*cuts, count]
