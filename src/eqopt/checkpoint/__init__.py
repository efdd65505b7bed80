"""Files of models and states that survive a crash, around Equinox's serialisation."""

from .._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
