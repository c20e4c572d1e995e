"""Collectives: their cost on a network (closed forms), and their messages (step lists)."""
