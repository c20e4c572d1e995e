"""Times of kernels: per family, its parameters and the function from shapes to times."""
