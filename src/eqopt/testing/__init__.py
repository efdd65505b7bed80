"""The laws that every transformation obeys, as checks for the tests of your own ones."""

from .._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
