"""Optimizers of eqopt in Flax."""

import jax
import jax.numpy as jnp
import optax
import pytest

import eqopt
from eqopt.interop.optax import to_optax

from ..laws.subjects import assert_close


pytestmark = [
    pytest.mark.slow,  # flax comes with the extra `dev` alone
    pytest.mark.usefixtures("standard_promotion"),
    # Deprecations between versions of JAX, Flax and Orbax are not ours to mend.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

X = jnp.linspace(-1, 1, 6).reshape(3, 2)
Y = jnp.sum(X, axis=1, keepdims=True)
OURS = eqopt.Chain(eqopt.ClipByGlobalNorm(0.1), eqopt.AdamW(0.1, weight_decay=0.1))
THEIRS = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(0.1, weight_decay=0.1))


def test_nnx_optimizer():
    nnx = pytest.importorskip("flax.nnx")

    @nnx.jit
    def step(model, optimizer):
        grads = nnx.grad(lambda model: jnp.mean((model(X) - Y) ** 2))(model)
        optimizer.update(model, grads)

    trained = []
    for tx in (to_optax(OURS), THEIRS):
        model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
        for _ in range(4):
            step(model, optimizer)
        trained.append(nnx.to_pure_dict(nnx.state(model)))
    assert_close(*trained)


@pytest.mark.parametrize(
    "opt",
    [
        eqopt.SOAP(0.1),  # tuples of arrays for a parameter
        eqopt.SM3(0.1),
        # Modules, with fields in another order than their names
        eqopt.StoreState(
            eqopt.Adam(0.1), eqopt.storage.BlockwiseQuantized(), where=lambda x: True
        ),
    ],
    ids=lambda opt: type(opt).__name__,
)
def test_several_arrays_for_a_parameter_in_nnx(opt):
    nnx = pytest.importorskip("flax.nnx")
    loss = lambda model: jnp.mean((model(X) - Y) ** 2)
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    params = {"kernel": model.kernel[...], "bias": model.bias[...]}
    state = opt.init(params)
    optimizer = nnx.Optimizer(model, to_optax(opt), wrt=nnx.Param)
    for _ in range(3):
        optimizer.update(model, nnx.grad(loss)(model))
        apply = lambda p: jnp.mean((X @ p["kernel"] + p["bias"] - Y) ** 2)
        params, state = opt.step(jax.grad(apply)(params), state, params)
    assert_close(nnx.to_pure_dict(nnx.state(model)), params)
