"""Bridges to other libraries, which are imported only when a bridge is used."""

from .._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
