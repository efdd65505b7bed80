"""Averages of the parameters, and steps that extrapolate from them."""
