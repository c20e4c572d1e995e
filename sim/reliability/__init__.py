"""Long training runs on hardware that fails: checkpoints, restarts, and goodput."""
