"""Advice on a simulated step: what would make it faster or fit, tried within a predicted cost, and what slows it."""
