"""Losses: pure functions of predictions and targets, one value for each example."""

from .._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
