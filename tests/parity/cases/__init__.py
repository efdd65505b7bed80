"""Pairs of one optimizer in two libraries, one module for each family."""
