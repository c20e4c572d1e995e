"""Sections of scenario files: their keys, the limits of values, how data are read into them, and their JSON Schema."""
