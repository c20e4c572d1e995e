"""Two timelines held against each other: which ops belong together, where the step's time goes on both sides."""
