"""Bridges to other libraries, each of which is imported when its bridge is used."""

from .._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
