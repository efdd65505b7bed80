"""Hyperparameters for longer, wider and deeper runs, from those of a small one."""

from .._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
