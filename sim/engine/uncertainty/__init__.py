"""How sure a predicted step time is."""
