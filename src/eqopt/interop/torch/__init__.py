"""The bridge from torch: its optimizers, their states and the parameters of a model.

It imports torch when one of its functions needs it.
"""

from ..._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
