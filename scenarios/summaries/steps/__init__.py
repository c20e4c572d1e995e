"""Simulated steps: the summary of one, of a long run of them, and the names and means that texts take from it."""
