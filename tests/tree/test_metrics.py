"""The numbers to log that a state holds."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt.tree import metrics


PARAMS = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
GRADS = {"w": jnp.full((2, 2), 2.0), "b": jnp.zeros(2)}  # of norm 4
LABELS = {"w": "matrices", "b": "rest"}
FALLING = eqopt.schedules.Linear(0.9, 0.5, 4)

OPT = eqopt.DynamicLossScale(
    eqopt.RecordGradNorm(
        eqopt.SkipStep(
            eqopt.Scheduled(
                eqopt.Chain(
                    eqopt.ClipByGlobalNorm(1.0),
                    eqopt.Partition(
                        {"matrices": eqopt.SGD(0.5), "rest": eqopt.Adam(0.1, FALLING)},
                        LABELS,
                    ),
                    eqopt.Snapshot("update_norm", eqopt.tree.norm),
                )
            ),
            lambda value, norm: norm > 5.0,
        )
    ),
    init_scale=2.0,
)


@eqx.filter_jit
def step(grads, state):
    _, state = OPT.step(grads, state, PARAMS)
    return metrics(state), state


def test_by_hand():
    """Clipped from 4 to 1, with a rate of 0.5, and gradients of a doubled loss."""
    grads = eqopt.tree.scale(2.0, GRADS)
    logged, state = step(grads, OPT.init(PARAMS))
    expected = {
        "step": 1,
        "learning_rate/matrices": 0.5,
        "learning_rate/rest": 0.1,
        "b1": 0.9,
        "grad_norm": 4,
        "update_norm": 0.5,
        "skipped": 0,
        "loss_scale": 2,
    }
    assert logged.keys() == expected.keys()
    for name, value in logged.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, err_msg=name)
    # A large gradient and one that is not finite are skipped by different wrappers.
    logged, state = step(eqopt.tree.scale(2.0, grads), state)
    assert (logged["grad_norm"], logged["skipped"], logged["step"]) == (8, 1, 1)
    logged, state = step(eqopt.tree.scale(jnp.inf, grads), state)
    assert (logged["skipped"], logged["loss_scale"], logged["grad_norm"]) == (2, 1, 8)
    assert metrics(state, "skipped", "step").keys() == {"skipped", "step"}


def test_labels():
    """Names of parts and key paths, but only where numbers would have the same name."""
    twice = eqopt.NamedChain(
        first=eqopt.Chain(eqopt.ScaleByLearningRate(0.1)),
        last=eqopt.Chain(eqopt.Clip(1.0), eqopt.ScaleByLearningRate(0.2)),
    )
    logged = metrics(twice.init(PARAMS), "learning_rate")
    assert logged.keys() == {"learning_rate/first", "learning_rate/last"}
    one = eqopt.NamedChain(clip=eqopt.Clip(1.0), sgd=eqopt.SGD(0.1))
    assert metrics(one.init(PARAMS)).keys() == {"learning_rate", "step"}
    plain = eqopt.Chain(*twice.transformations)
    assert metrics(plain.init(PARAMS), "learning_rate").keys() == {
        "learning_rate/[0][0].learning_rate",
        "learning_rate/[1][1].learning_rate",
    }
    nested = eqopt.Partition({"a": eqopt.Partition({1: eqopt.SGD(0.1)}, 1)}, "a")
    assert metrics(nested.init(PARAMS), "learning_rate") == {"learning_rate/a/1": 0.1}


def test_only_numbers_of_the_optimizer():
    """Not parameters with such a name, which a state may also hold."""
    params = {"learning_rate": jnp.ones(()), "skipped": jnp.ones(())}
    opt = eqopt.ApplyIfFinite(eqopt.ParamEMA(eqopt.Adam(0.1), 0.9), 3)
    state = opt.init(params)
    assert metrics(state).keys() == {"learning_rate", "not_finite", "step"}
    assert metrics(eqopt.Clip(1.0).init(params)) == {}


def test_measurements_with_known_names():
    """They hide no other number, and no other number hides them."""
    measured = [
        eqopt.Snapshot(name, lambda updates: jnp.asarray(7.0))
        for name in ("step", "b1", "learning_rate", "skipped")
    ]
    optimizer = eqopt.Chain(*measured, eqopt.Adam(0.1, FALLING))
    rule = lambda value, norm: norm > 5.0
    opt = eqopt.Scheduled(eqopt.SkipStep(eqopt.SkipStep(optimizer, rule), rule))
    logged = metrics(opt.init(PARAMS))
    for name in ("step", "b1", "learning_rate", "skipped"):
        labels = [x for x in logged if x.partition("/")[0] == name]
        assert len(labels) == (3 if name == "skipped" else 2)
        assert sum("measurement" in label for label in labels) == 1
    assert logged["step"] == 0


def test_populations_and_numpy():
    """A count may have an axis for the members, and an array may be NumPy's."""
    rates = jnp.array([0.1, 0.2, 0.3])
    state = eqx.filter_vmap(lambda rate: eqopt.AdamW(rate).init(PARAMS))(rates)
    for found in (state, jax.device_get(state)):
        logged = metrics(found)
        np.testing.assert_array_equal(logged["learning_rate"], rates)
        np.testing.assert_array_equal(logged["step"], [0, 0, 0])
    assert metrics(jax.device_get(eqopt.AdamW(0.1).init(PARAMS)), "step") == {"step": 0}
    state = eqx.filter_vmap(lambda b1: eqopt.ScaleByAdam(b1).init(PARAMS))(rates)
    with pytest.raises(KeyError, match=r"`.count` has shape \(3,\).*eqx.filter_vmap"):
        eqopt.tree.step_count(state)


@pytest.mark.parametrize(
    ("name", "advice"),
    [("grad_norm", r"eqopt.RecordGradNorm\(opt\)"), ("accuracy", "eqopt.Monitor")],
)
def test_what_is_not_known(name, advice):
    found = rf"no number '{name}', only \['learning_rate', 'step'\].*{advice}"
    with pytest.raises(KeyError, match=f"metrics: this tuple holds {found}"):
        metrics(eqopt.SGD(0.1).init(PARAMS), "step", name)


def test_nothing_is_computed():
    """The program with the numbers of a state only returns them.

    Except for the number of steps: the largest of the groups, and two nested counts.
    """
    state = OPT.init(PARAMS)
    computed = jax.make_jaxpr(metrics)(state).eqns
    assert [str(equation.primitive) for equation in computed] == ["add", "max"]
