"""Step sizes from the loss."""
