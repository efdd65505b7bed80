"""Adaptive gradients: sums and means of squares."""
