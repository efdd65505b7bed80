"""Behaviour round one inner transformation."""
