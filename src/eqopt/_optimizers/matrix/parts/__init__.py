"""Building blocks of the optimizers for matrices."""
