"""Nearest points of convex sets and spheres: for arrays, trees and whole models."""

from .._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
