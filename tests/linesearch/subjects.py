"""Losses to minimise, and the loops that do it in both libraries."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

import eqopt


def rosenbrock(p):
    return jnp.sum(100 * (p[1:] - p[:-1] ** 2) ** 2 + (1 - p[:-1]) ** 2)


def quadratic(p):
    scales = 10.0 ** jnp.linspace(0, 3, p.size, dtype=p.dtype)
    return jnp.sum(scales * (p - 1) ** 2) / 2


def logistic():
    """Logistic regression on random data, with a tree of parameters."""
    # In no program: these take longer to compile than all of a search.
    x = np.asarray(jr.normal(jr.key(0), (40, 3)))
    y = np.sign(x[:, 0] - 0.5 * x[:, 1] + 0.1)

    def loss(p):
        margins = y * (x @ p["w"] + p["b"])
        return jnp.mean(jax.nn.softplus(-margins)) + 0.01 * jnp.sum(p["w"] ** 2)

    return loss


def problem(name):
    """A loss, and where to start."""
    return {
        "rosenbrock": (rosenbrock, jnp.array([-1.2, 1.0, 0.5, -0.3])),
        "quadratic": (quadratic, jnp.zeros(6)),
        "logistic": (logistic(), {"w": jnp.ones(3), "b": jnp.zeros(())}),
    }[name]


SEARCHES = "ScaleByZoomLinesearchState", "ScaleByBacktrackingLinesearchState"


def found(state):
    """What the line search in an optimizer's state has found."""
    states = [eqopt.tree.get(state, name, None) for name in SEARCHES]
    return next(x for x in states if x is not None)


def stepper(opt, loss, jit=eqx.filter_jit):
    value_and_grad = eqopt.value_and_grad_from_state(loss)

    @jit
    def step(params, state):
        value, grads = value_and_grad(params, state=state)
        return opt.step(grads, state, params, value=value, grad=grads, value_fn=loss)

    return step


def minimise(opt, loss, params, steps, jit=eqx.filter_jit):
    """All parameters and states on the way."""
    step, state, path = stepper(opt, loss, jit), opt.init(params), []
    for _ in range(steps):
        params, state = step(params, state)
        path.append((params, state))
    return path


def minimise_by_optax(tx, loss, params, steps, jit=eqx.filter_jit):
    value_and_grad = optax.value_and_grad_from_state(loss)

    @jit
    def step(params, state):
        value, grads = value_and_grad(params, state=state)
        updates, state = tx.update(
            grads, state, params, value=value, grad=grads, value_fn=loss
        )
        return optax.apply_updates(params, updates), state

    state, path = tx.init(params), []
    for _ in range(steps):
        params, state = step(params, state)
        path.append((params, state))
    return path
