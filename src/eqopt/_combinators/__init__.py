"""Transformations made of transformations: structure."""
