"""Transformations that combine other transformations."""
