"""Averages of the parameters instead of a schedule."""
