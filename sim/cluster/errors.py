"""Errors of the cluster room.

PlacementError (ValueError)    more ranks than devices
"""


class PlacementError(ValueError):
    """Ranks that do not fit on a cluster."""
