"""Step sizes found by looking at the loss along the direction of the updates."""
