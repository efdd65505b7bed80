"""Ways to store parameters and states, by their names in the table."""

from typing import Any, NamedTuple

import jax.numpy as jnp

import eqopt
from eqopt import storage


class Way(NamedTuple):
    """How parameters and state are stored: keys of `PARAMS` and of `STATES`."""

    params: str
    state: str

    def opt(self, inner: Any) -> eqopt.AbstractTransformation:
        """Wraps `inner`, whose state is in float32, so that both are stored this way."""
        if (of_state := STATES[self.state]) is not None:
            inner = eqopt.StoreState(inner, of_state)
        _, of_params = PARAMS[self.params]
        return inner if of_params is None else eqopt.StoreParams(inner, of_params)

    @property
    def dtype(self) -> Any:
        """The dtype of the model."""
        return PARAMS[self.params][0]


PARAMS = {
    "float32": (jnp.float32, None),
    "bfloat16": (jnp.bfloat16, None),
    "bfloat16, Kahan": (jnp.bfloat16, storage.KahanSummation()),
    "bfloat16, at random": (jnp.bfloat16, storage.StochasticRounding()),
    "bfloat16, split": (jnp.bfloat16, storage.SplitMasterWeights()),
}
STATES = {
    "float32": None,
    "8 bits": storage.BlockwiseQuantized(),
    "4 bits": storage.BlockwiseQuantized(bits=4),
    "float8": storage.Float8(),
}
WAYS = [Way(params, state) for params in PARAMS for state in STATES]
FULL = Way("float32", "float32")
