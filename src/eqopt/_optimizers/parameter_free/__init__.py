"""Optimizers without a learning rate to tune."""
