"""Search over strategies: a grid of candidates, small plans that are priced, and closed forms over all candidates."""
