"""A model that torch has, too."""

import equinox as eqx
import jax
import pytest


torch = pytest.importorskip("torch")


class Network(torch.nn.Module):
    """What the model below is in torch, with its parts in another order."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(5, 2)
        self.conv = torch.nn.Conv1d(2, 4, 3)
        self.body = torch.nn.Linear(7, 5)


class Model(eqx.Module):
    conv: eqx.nn.Conv1d
    body: eqx.nn.Linear
    head: eqx.nn.Linear
    activation: object = jax.nn.relu

    def __init__(self, key):
        self.conv = eqx.nn.Conv1d(2, 4, 3, key=key, dtype=float)
        self.body = eqx.nn.Linear(7, 5, key=key, dtype=float)
        self.head = eqx.nn.Linear(5, 2, key=key, dtype=float)


def model():
    return Model(jax.random.key(0))
