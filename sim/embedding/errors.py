"""Errors of embedding tables and their caches."""


class CacheTooSmallError(ValueError):
    """A batch needs more rows at once than the cache holds; all of them must be on the device together."""

    def __init__(self, num_unique: int, num_slots: int, num_rows: int, batch: int) -> None:
        super().__init__(f"batch {batch} reads {num_unique:,} different rows, and the cache holds {num_slots:,}")
        self.num_unique, self.num_rows = num_unique, num_rows
