"""Comparison of two timelines: the alignment of their ops, and the parts of the step on both sides."""
