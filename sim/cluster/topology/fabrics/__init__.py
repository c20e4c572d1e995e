"""Fabrics: networks between islands, as levels of switches, as a torus, as a dragonfly."""
