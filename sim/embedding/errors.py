"""Errors of embedding tables and their caches."""


class CacheTooSmallError(ValueError):
    """A batch needs more rows at once than the cache holds; all of them must be on the device together.

    Its arguments are those that it was made of, so that SimPy and pickle can make it again.
    """

    def __init__(self, num_unique: int, num_slots: int, num_rows: int, batch: int) -> None:
        super().__init__(num_unique, num_slots, num_rows, batch)
        self.num_unique, self.num_slots, self.num_rows, self.batch = num_unique, num_slots, num_rows, batch

    def __str__(self) -> str:
        """Return what is wrong."""
        reads = f"batch {self.batch} reads {self.num_unique:,} different rows"
        return f"{reads}, and the cache holds {self.num_slots:,}"
