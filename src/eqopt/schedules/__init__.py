"""Hyperparameters that change from step to step: functions of the number of steps."""

from .._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
