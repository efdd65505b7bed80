"""What the bridge from torch rejects, and its error messages."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt.interop.torch import from_torch, params_from_torch, state_from_torch


torch = pytest.importorskip("torch")


def tensors(*shapes):
    return [torch.nn.Parameter(torch.ones(shape)) for shape in shapes]


def trained(kind, *shapes, steps=1, **options):
    """An optimizer after some steps."""
    parameters = tensors(*shapes or SHAPES)
    optimizer = getattr(torch.optim, kind)(parameters, **options)
    for _ in range(steps):
        for p in parameters:
            p.grad = torch.ones_like(p)
        optimizer.step()
    return optimizer


SHAPES = (3, 2), (3,)
MODEL = {"a": jnp.ones((3, 2)), "b": jnp.ones(3)}
ADAM = eqopt.Adam(0.1)


def converted(optimizer, opt=ADAM, model=MODEL, **options):
    return state_from_torch(opt, optimizer.state_dict(), model, **options)


def with_groups(**options):
    a, b = tensors(*SHAPES)
    return torch.optim.Adam([{"params": [a]}, {"params": [b], **options}])


def without_gradient():
    optimizer = torch.optim.Adam(tensors(*SHAPES))
    [first, _] = optimizer.param_groups[0]["params"]
    first.grad = torch.ones_like(first)
    optimizer.step()
    return optimizer


def with_counts():
    optimizer = trained("Adam")
    a, b = optimizer.param_groups[0]["params"]
    a.grad, b.grad = torch.ones_like(a), None
    optimizer.step()
    return optimizer


CASES = [
    (lambda: from_torch(ADAM), "must be one of ASGD, Adadelta"),
    (
        lambda: from_torch(torch.optim.LBFGS(tensors((2,)))),
        "but is a torch.optim.lbfgs.LBFGS.",
    ),
    (
        lambda: from_torch(torch.optim.Adafactor(tensors((2,)), eps=(0.1, 1e-3))),
        "`eps[0]` of Adafactor is 0.1, but eqopt has no such lower bound",
    ),
    (
        lambda: from_torch(with_groups(lr=0.3)),
        "has 2 groups with different hyperparameters, so it needs the model",
    ),
    (
        lambda: from_torch(trained("Adam"), {"a": jnp.ones((3, 2))}),
        "torch has 2 parameters, but the model has 1. Pass `paths`, the key path of each "
        "parameter of torch, or `None`. The model has `['a']`.",
    ),
    (
        lambda: params_from_torch(tensors((2,), (4,)), [jnp.ones(2)] * 2),
        "parameter 1 of torch has shape (4,), but `[1]` has shape (2,). Pass `paths`",
    ),
    (
        lambda: params_from_torch(
            tensors((2,), (2,)), [jnp.ones(2)] * 2, paths=["[0]", "[0]"]
        ),
        "`paths` has `[0]`, `[0]` more than once, or the model has no such parameter.",
    ),
    (
        lambda: params_from_torch(tensors((2,)), [jnp.ones(2, complex)]),
        "`[0]` is complex",
    ),
    (
        lambda: params_from_torch([torch.ones(2).double()], [jnp.ones(2)]),
        "The parameter `[0]` has dtype float64 in torch, expected float32, which would "
        "lose digits.",
    ),
    (
        lambda: converted(trained("Adam"), eqopt.Adam(0.1, mu_dtype=jnp.float16)),
        "The state at `[0].mu['a']`, `exp_avg` of torch, has dtype float32",
    ),
    (
        lambda: converted(trained("Adafactor"), eqopt.Adafactor(0.1)),
        "torch factors the last two axes of `['a']`, but `opt` does not. Pass "
        "`weight_dimension_numbers=eqopt.MatrixDimensionNumbers(-2, -1)`",
    ),
    (
        lambda: converted(trained("Adam"), eqopt.Adagrad(0.1)),
        "the ScaleByRSSState of `opt` needs `sum` for `['a']`, but torch's state has "
        "`exp_avg`, `exp_avg_sq`, `step` for it. Was it made by another optimizer",
    ),
    (
        lambda: converted(trained("Adam", amsgrad=True)),
        "torch's state has `max_exp_avg_sq` for `['a']`, which has no counterpart",
    ),
    (
        lambda: converted(trained("Adam"), eqopt.Scheduled(eqopt.Adam(PLATEAU))),
        "has no counterpart in torch",
    ),
    (
        lambda: converted(without_gradient()),
        "for `['b']`, but torch's state has nothing for it. If it is not trained there",
    ),
    (
        lambda: converted(with_counts()),
        "torch's counts of steps differ: 2 for `['a']`, 1 for `['b']`. Put them",
    ),
    (
        lambda: converted(
            trained("SGD", momentum=0.9), eqopt.SGD(lambda count: 0.1, 0.9)
        ),
        "torch's state has no step count, but `opt` has a schedule. Pass `count=...`",
    ),
]
PLATEAU = eqopt.schedules.ReduceOnPlateau(0.1)


@pytest.mark.parametrize(("call", "message"), CASES)
def test_messages(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_what_was_not_trained_is_new():
    """Without a state of torch, `init` makes it."""
    state = converted(torch.optim.Adam(tensors(*SHAPES)))
    jax.tree.map(np.testing.assert_array_equal, state, ADAM.init(MODEL))
    plain = converted(trained("SGD"), eqopt.SGD(0.1), count=3)
    assert eqopt.tree.step_count(plain) == 3
