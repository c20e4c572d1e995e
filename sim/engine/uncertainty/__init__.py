"""The uncertainty of a predicted step time."""
