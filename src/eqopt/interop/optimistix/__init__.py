"""The bridge to Optimistix: optimizers as minimisers."""

from ..._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
