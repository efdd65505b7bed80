"""Kernels of users' functions go with these functions; other kernels stay."""

import gc
import weakref

import cloudpickle
import jax
import jax.numpy as jnp
import pytest

import eqopt
from eqopt._caches import SIZE, cached


class Scaled(eqopt.AbstractStateless):
    equation: object

    def leafwise(self, state, params=None, **extra):
        return eqopt.Leafwise(self.equation, state)


def double(g):
    return 2 * g


OPTIMIZERS = {
    "a function": lambda: eqopt.StatelessWithTreeMap(lambda g, p: 2 * g),
    "an equation": lambda: Scaled(eqopt.equation(lambda g: 2 * g)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("run", [lambda fn: fn, jax.jit], ids=["eager", "jit"])
@pytest.mark.costly
def test_a_function_that_is_dropped_is_forgotten(name, run):
    params = [jnp.ones((3, 5)), jnp.ones(7)]
    opt = eqopt.Chain(eqopt.Clip(1.0), OPTIMIZERS[name](), eqopt.Scale(-0.5))
    new, _ = run(opt.step)(params, opt.init(params), params)
    assert jnp.all(new[0] == 0)
    [part] = opt.transformations[1:2]
    fn = getattr(part, "equation", None) or getattr(part, "f", None)
    assert callable(fn)
    ref = weakref.ref(fn)
    del opt, part, fn, new
    jax.clear_caches()  # what JAX itself keeps of the last calls
    gc.collect()
    assert ref() is None


def test_results_are_found_again():
    made = []

    @cached
    def make(*key):
        made.append(key)
        return object()

    mine, local = double, lambda g: g
    assert make(1, "a") is make(1, "a")
    assert make((mine, 1), 2) is make((mine, 1), 2)
    assert make(local, mine) is make(local, mine)
    assert make(local, mine) is not make(mine, local)
    assert make(jnp.tanh) is make(jnp.tanh)
    assert make(eqopt.apply_updates) is make(eqopt.apply_updates)
    assert len(made) == 6
    for i in range(SIZE + 1):
        make(local, i)
    assert len(vars(local)["_eqopt_" + make.__qualname__]) <= SIZE


def test_a_class_of_a_notebook_can_be_sent_to_another_process():
    """cloudpickle writes it with the globals that its methods read."""

    @eqopt.equation
    def halve(g):
        return g / 2

    class Halve(eqopt.AbstractStateless):
        def leafwise(self, state, params=None, **extra):
            return eqopt.Leafwise(halve, state)

    class Negate(eqopt.AbstractTransformation):
        def init(self, params):
            return jnp.zeros(())

        def update(self, updates, state, params=None, **extra):
            return -updates, state

    opt = eqopt.Chain(Halve(), Negate())
    params = jnp.ones(3)
    sent = cloudpickle.dumps(opt)
    opt.step(params, opt.init(params), params)
    assert cloudpickle.loads(sent) == opt
    assert cloudpickle.loads(cloudpickle.dumps(opt)) == opt
    assert any(vars(halve)[name] for name in vars(halve) if "_eqopt_" in name)
    copy = vars(cloudpickle.loads(cloudpickle.dumps(halve)))
    assert not any(copy[name] for name in copy if "_eqopt_" in name)
