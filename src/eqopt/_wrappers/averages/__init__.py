"""Averages of the parameters, and what goes ahead of them or follows them."""
