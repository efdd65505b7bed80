"""Pictures, by matplotlib, which is imported when the first is drawn."""

from .._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
