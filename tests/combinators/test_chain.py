import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import eqopt


def test_a_chain_is_a_sequence():
    parts = eqopt.Clip(1.0), eqopt.Scale(2.0), eqopt.Scale(3.0)
    opt = eqopt.Chain(*parts)
    assert len(opt) == 3
    assert opt[1] == parts[1]
    assert opt[1:] == eqopt.Chain(*parts[1:])
    assert opt[-1] == parts[-1]
    assert list(opt) == list(parts)


def test_a_named_chain_keeps_the_order_of_its_names():
    """Also through `jit`, which sorts the keys of dictionaries."""
    opt = eqopt.NamedChain(z=eqopt.Scale(2.0), a=eqopt.Clip(1.0))
    assert opt["z"] == eqopt.Scale(2.0)
    assert len(opt) == 2
    grads = jnp.full(2, 0.75)
    updates, state = eqx.filter_jit(lambda o, g, s: o.update(g, s))(
        opt, grads, opt.init(grads)
    )
    np.testing.assert_allclose(updates, 1.0)
    assert set(state) == {"z", "a"}


def test_every_transformation_gets_all_extra_arguments():
    """Each transformation ignores extra arguments that it does not use."""
    seen = []

    class Spy(eqopt.AbstractTransformation):
        def init(self, params):
            return None

        def update(self, updates, state, params=None, **extra):
            seen.append(extra)
            return updates, state

    masked = eqopt.Masked(Spy(), lambda params: jax.tree.map(lambda _: True, params))
    opt = eqopt.Chain(
        eqopt.Adam(0.1),
        Spy(),
        masked,
        eqopt.MultiSteps(eqopt.ApplyIfFinite(eqopt.Flatten(Spy()), 1), 1),
        eqopt.Lookahead(Spy(), 2, 0.5),
    )
    params = jnp.ones(2)
    opt.update(params, opt.init(params), params, value=3.0, surprise="yes")
    assert seen == [{"value": 3.0, "surprise": "yes"}] * 4


def test_equations_are_traced_once_per_shape():
    traced = []

    @eqopt.equation
    def halve(g):
        traced.append(g.shape)
        return g / 2

    class Halve(eqopt.AbstractLeafwise):
        def init(self, params):
            return None

        def leafwise(self, state, params=None, **extra):
            return eqopt.Leafwise(halve)

    params = [jnp.ones((2, 3))] * 20 + [jnp.ones(4)] * 20
    opt = eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), Halve(), eqopt.Scale(2.0))
    for _ in range(2):
        jax.jit(lambda g: opt.update(g, opt.init(g)))(params)
    assert sorted(traced) == [(2, 3), (4,)]
