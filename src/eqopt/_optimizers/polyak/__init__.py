"""Step sizes computed from the loss."""
