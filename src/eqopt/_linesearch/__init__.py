"""Step sizes found by evaluating the loss along the direction of the updates."""
