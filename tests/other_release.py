"""Takes steps with a JAX whose internals eqopt does not know.

`python -m tests.other_release NAME` prints the resulting numbers, whether a known value
counts as traced, and whether norms of examples are computed from factors.
"""

import sys
import types
import warnings

import equinox as eqx  # which has its own uses of these modules
import jax
import jax.experimental.layout
import jax.extend.core
import jax.numpy as jnp
import numpy as np


class _Deprecated(types.ModuleType):
    def __getattr__(self, name):
        warnings.warn(f"{name} is deprecated", DeprecationWarning, stacklevel=2)
        return getattr(vars(self)["real"], name)


USED = ("jax.extend.core", "jax.core", "jax.experimental.layout")


def change(release):
    if release == "gone":
        sys.modules.update(dict.fromkeys(USED))
    elif release == "deprecated":
        for name in USED:
            new = _Deprecated(name)
            new.real, sys.modules[name] = sys.modules[name], new
    elif release == "changed":
        # Programs have other literals, so reading one fails half-way.
        jax.extend.core.Literal = type("Literal", (), {})
    else:
        assert release == "as it is"


change(*sys.argv[1:])

import eqopt  # noqa: E402
from eqopt import _jax_internals, microbatching  # noqa: E402


warnings.simplefilter("error")
_jax_internals.raises = sys.argv[1:] == ["as it is"]

OPTIMIZERS = [
    eqopt.Chain(eqopt.ClipByGlobalNorm(0.1), eqopt.Lion(0.1)),
    eqopt.ApplyIfFinite(eqopt.Muon(0.1), 3),
    eqopt.StoreState(eqopt.AdamW(0.1), eqopt.storage.Float8()),
]


def loss(model, x, y):
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


def trained(opt, model, *batch):
    state, step = opt.init(model), eqx.filter_jit(opt.step)
    for _ in range(3):
        model, state = step(eqx.filter_grad(loss)(model, *batch), state, model)
    return model


def main():
    x, y = jax.random.normal(jax.random.key(1), (2, 8, 3))
    model = eqx.nn.MLP(3, 3, 8, 2, key=jax.random.key(0))
    example = {"batch_argnums": (1, 2)}
    clipped = microbatching.clipped_grad(loss, l2_norm_clip=0.1, **example)
    micro = microbatching.micro_value_and_grad(loss, microbatch_size=4, **example)
    found = [trained(opt, model, x, y) for opt in OPTIMIZERS]
    found += [clipped(model, x, y), micro(model, x, y)]
    found += [jax.jit(eqopt.schedules.Linear(1.0, 0.0, 10))(3)]
    numbers = [np.ravel(a) for a in jax.tree.leaves(found) if eqx.is_array(a)]
    paths = microbatching.gradient_paths(loss, **example)(model, x, y)
    has_factors = "ghost" in jax.tree.leaves(paths)
    print(*np.concatenate(numbers), _jax_internals.is_traced(x), has_factors)


if __name__ == "__main__":
    main()
