"""Averages of the parameters in the place of a schedule."""
