"""Findings about a simulated step: means over ranks, rates, busy links, and changes that may help it."""
