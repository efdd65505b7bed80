"""Building blocks of the optimizers of this room."""
