"""How many replicas a load needs: the fewest at which enough of the requests meet an objective."""

from collections.abc import Callable


def fewest_replicas(most: int, meets: Callable[[int], bool]) -> int | None:
    """Return the fewest replicas, at most ``most``, for which ``meets`` is true; None where none are enough.

    Numbers are doubled until they are enough, and halved between the last two. The answer is enough, and one replica
    fewer is not; where more replicas can be worse, a smaller number that is enough may have been passed over.
    """
    low, high = 0, 1
    while not meets(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high
