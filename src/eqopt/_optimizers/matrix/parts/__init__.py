"""What the optimizers of this room are made of."""
