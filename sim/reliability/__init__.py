"""Days of training on hardware that fails: checkpoints, restarts, and how much of the time is training."""
