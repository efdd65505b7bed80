"""Chains, masks and groups: transformations of parts, or one after the other."""
