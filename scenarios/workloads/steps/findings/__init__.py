"""Findings about a simulated step: means over ranks, rates, busy links, and losses with changes against them."""
