"""Gradients of expectations, estimated from samples, and how to reduce their variance."""

from .._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
