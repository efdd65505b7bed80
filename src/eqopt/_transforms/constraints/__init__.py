"""Constraints: what keeps parameters, or what is computed with them, within bounds."""
