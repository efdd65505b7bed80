"""Gradient descent, with momentum, noise or optimism."""
