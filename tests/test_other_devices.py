"""States and gradients on other devices than the parameters: what the errors say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import eqopt


@pytest.mark.parametrize("make", [eqopt.ScaleByAdam, eqopt.ScaleByLBFGS])
def test_remedies(make):
    """Outside `jit`, where JAX names only arguments of internal functions."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    opt, (device, *_) = make(), jax.devices()
    given = {"w": jnp.arange(8.0)}, {"w": jnp.linspace(1, 2, 8)}
    params, grads = jax.device_put(given, NamedSharding(mesh, P("x")))
    state, others = jax.device_put((opt.init(given[0]), given[1]), device)
    with pytest.raises(ValueError) as error:
        opt.step(grads, state, params)
    assert str(error.value).startswith(
        f"{make.__name__}: `state.count` is on {device.platform}:0, but the parameters "
        f"are on {device.platform}:0, {device.platform}:1, "
    )
    assert "`eqopt.tree.migrate(opt, state, model)`" in str(error.value)
    state = eqopt.tree.migrate(opt, state, params)
    with pytest.raises(ValueError, match=r"`updates\['w'\]` is on .* p\.sharding\)"):
        opt.step(others, state, params)
    like = lambda g, p: jax.device_put(g, p.sharding)
    new, _ = opt.step(jax.tree.map(like, others, params), state, params)
    expected, _ = opt.step(given[1], opt.init(given[0]), given[0])
    np.testing.assert_allclose(new["w"], expected["w"], 1e-6)
