"""Optimizers as plain data, and back: for JSON, YAML and the configuration of a run."""

from .._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
