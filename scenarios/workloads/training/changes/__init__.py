"""Changes of a training step that advice knows: against lost time, against too much memory; and causes of lost time."""
