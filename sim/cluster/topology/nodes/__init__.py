"""Nodes: the links inside one, and islands of devices that need no network."""
