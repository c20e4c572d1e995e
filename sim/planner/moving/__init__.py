"""Steps whose experts move, as sums of calls: what changes from step to step is priced in arrays, the rest once."""
