"""Comparisons of two timelines or steps: their differences, and why one step takes longer."""
