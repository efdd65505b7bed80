"""The bridge to Optax: optimizers in both directions, and states of training runs."""

from ..._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
