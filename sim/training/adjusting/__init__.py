"""Moves of state between the plans of a session: layers change their rank, replicas leave and join."""
