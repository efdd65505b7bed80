"""Hyperparameters for long, wide and deep runs, from a small run that was tuned."""

from .._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
