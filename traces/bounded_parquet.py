"""Reading of Parquet files with bounded memory, whatever their unpacked size."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

BATCH_ROWS: Final = 1 << 20


class TooLargeError(ValueError):
    """A file above the limit; the message states its size and the limit."""


def read_bounded(file: pq.ParquetFile, columns: Sequence[str] | None, max_rows: int, max_bytes: int) -> pa.Table:
    """Return the columns of a file; without names all columns.

    Raises TooLargeError if the rows and unpacked bytes stated at the file's end, or those really read, exceed the
    bounds. The metadata of column chunks are not read: pyarrow ends the process if their statistics are damaged.
    """
    contents = file.metadata
    size = sum(contents.row_group(number).total_byte_size for number in range(contents.num_row_groups))
    _refuse_large(contents.num_rows, size, max_rows, max_bytes)
    batches, num_rows, size = list[pa.RecordBatch](), 0, 0
    for batch in file.iter_batches(BATCH_ROWS, columns=None if columns is None else list(columns)):
        num_rows, size = num_rows + batch.num_rows, size + batch.nbytes
        _refuse_large(num_rows, size, max_rows, max_bytes)
        batches.append(batch)
    schema = file.schema_arrow
    chosen = schema if columns is None else pa.schema([schema.field(name) for name in columns], schema.metadata)
    return pa.Table.from_batches(batches, batches[0].schema if batches else chosen)


def _refuse_large(num_rows: int, size: int, max_rows: int, max_bytes: int) -> None:
    if num_rows > max_rows or size > max_bytes:
        shown = f"{num_rows:,} rows, {size / 2**20:,.0f} MiB once unpacked"
        message = f"{shown}; the limits are {max_rows:,} rows and {max_bytes / 2**20:,.0f} MiB"
        raise TooLargeError(message)
