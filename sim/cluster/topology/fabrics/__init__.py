"""Fabrics: networks between islands as levels of switches, as a torus, or as a dragonfly."""
