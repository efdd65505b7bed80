"""Aggregates the gradients of single examples, or of small batches, into one update."""

from .._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
