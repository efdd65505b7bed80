"""Every optimizer that is for batches, in both libraries."""

from tests.methods import METHODS


OPTIMIZERS = {name: method for name, method in METHODS.items() if method.rates}
