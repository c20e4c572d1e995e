"""How long kernels take: per family, its parameters and the function from shapes to times."""
