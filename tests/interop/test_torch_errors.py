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


class Custom(torch.optim.SGD):
    pass


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


@pytest.mark.parametrize(
    ("call", "error", "messages"),
    [
        (
            lambda: from_torch(ADAM),
            TypeError,
            ["must be one of ASGD, Adadelta", "Adam."],
        ),
        (
            lambda: from_torch(Custom(tensors((2,)))),
            TypeError,
            ["RMSprop, Rprop, SGD of torch.optim, but is a", "Custom."],
        ),
        (
            lambda: from_torch(torch.optim.LBFGS(tensors((2,)))),
            TypeError,
            ["LBFGS. `eqopt.LBFGS` takes one step"],
        ),
        (
            lambda: from_torch(torch.optim.SparseAdam(tensors((2,)))),
            TypeError,
            ["SparseAdam. Gradients in JAX are dense"],
        ),
        (
            lambda: from_torch(torch.optim.Adafactor(tensors((2,)), eps=(0.1, 1e-3))),
            ValueError,
            ["the first number of `eps` of Adafactor is 0.1", "must be `None` or at"],
        ),
        (
            lambda: from_torch(torch.optim.ASGD(tensors((2,)), t0=1.5)),
            ValueError,
            ["`t0` of ASGD must be an integer of at least 0, but is 1.5"],
        ),
        (
            lambda: from_torch(with_groups(lr=0.3)),
            ValueError,
            ["has 2 groups with different hyperparameters", "(optimizer, model)`"],
        ),
        (
            lambda: from_torch(trained("Adam"), paths=["['a']", "['b']"]),
            ValueError,
            ["`paths` and `transpose` need the model."],
        ),
        (
            lambda: from_torch(trained("Adam"), {"a": jnp.ones((3, 2))}),
            ValueError,
            [
                "from_torch: torch has 2 parameters, but the model has 1.",
                "Pass `paths`, the key path of each parameter",
                "The model has `['a']`.",
            ],
        ),
        (
            lambda: params_from_torch([torch.ones(2).double()], [jnp.ones(2)]),
            ValueError,
            [
                "The parameter `[0]` has dtype float64 in torch, but float32 is expected",
                "which would lose digits",
            ],
        ),
        (
            lambda: converted(trained("Adam"), model={**MODEL, "a": jnp.ones((4, 2))}),
            ValueError,
            ["parameter 0 of torch has shape (3, 2)", "`['a']`, has shape (4, 2)"],
        ),
        (
            lambda: converted(trained("Adam"), eqopt.Adam(0.1, mu_dtype=jnp.float16)),
            ValueError,
            [
                "The state at `[0].mu['a']`, `exp_avg` of torch, has dtype float32",
                "but float16 is expected",
                "`mu_dtype=...`",
            ],
        ),
        (
            lambda: converted(trained("Adafactor"), eqopt.Adafactor(0.1)),
            ValueError,
            [
                "torch factors the last two axes of `['a']`, but `opt` does not",
                "weight_dimension_numbers=eqopt.MatrixDimensionNumbers(-2, -1)`",
            ],
        ),
        (
            lambda: converted(
                trained("Adafactor", (2, 3, 5)),
                eqopt.Adafactor(0.1, 1, weight_dimension_numbers=BY_HAND),
                [jnp.ones((2, 3, 5))],
            ),
            ValueError,
            ["torch factors the last two axes of `[0]`, but `opt` does not"],
        ),
        (
            lambda: converted(trained("Adam"), eqopt.Adafactor(0.1, 1)),
            ValueError,
            ["the ScaleByFactoredRMSState of `opt` needs `variance` for `['a']`"],
        ),
        (
            lambda: converted(trained("Adam"), eqopt.Adagrad(0.1)),
            ValueError,
            ["the ScaleByRSSState of `opt` needs `sum` for `['a']`", "`exp_avg`"],
        ),
        (
            lambda: converted(trained("Adam", amsgrad=True)),
            ValueError,
            [
                "torch's state has `max_exp_avg_sq` for `['a']`, which has no counterpart"
            ],
        ),
        (
            lambda: converted(trained("Adam"), eqopt.Lion(0.1)),
            ValueError,
            ["has a part at `[0].count` that has no counterpart in torch"],
        ),
        (
            lambda: converted(without_gradient()),
            ValueError,
            ["torch has no state for `['b']`", "with `None` for it"],
        ),
        (
            lambda: converted(trained("Adam"), paths=["['a']", None]),
            ValueError,
            ["torch has no state for `['b']`"],
        ),
        (
            lambda: converted(with_counts()),
            ValueError,
            ["different numbers of steps: 2 for `['a']`, 1 for `['b']`", "`count=...`"],
        ),
        (
            lambda: converted(
                trained("SGD", momentum=0.9), eqopt.SGD(lambda count: 0.1, 0.9)
            ),
            ValueError,
            ["torch's state has no step count", "`opt` has a schedule", "`count=...`"],
        ),
        (
            lambda: converted(
                trained("SGD", momentum=0.9),
                from_torch(trained("SGD", momentum=0.9, dampening=0.5)),
            ),
            ValueError,
            ["torch's state has no step count"],
        ),
        (
            lambda: converted(
                trained("SGD"),
                eqopt.Chain(eqopt.AddDecayedWeights(lambda count: 0.1), eqopt.SGD(0.1)),
            ),
            ValueError,
            ["torch's state has no step count"],
        ),
        (
            lambda: converted(trained("Adam"), count=-1),
            ValueError,
            ["`count` must be in [0, inf), but is -1"],
        ),
        (
            lambda: state_from_torch(ADAM, trained("Adam"), MODEL),
            TypeError,
            ["the result of `optimizer.state_dict()` of torch", "of type Adam."],
        ),
        (
            lambda: state_from_torch(ADAM, {"weight": 1}, MODEL),
            TypeError,
            ["with `state` and `param_groups`, but is of type dict."],
        ),
    ],
)
def test_messages(call, error, messages):
    with pytest.raises(error) as raised:
        call()
    for message in messages:
        assert message in str(raised.value)


BY_HAND = eqopt.MatrixDimensionNumbers(0, 1)


def test_stateful_schedules_have_no_counterpart():
    rate = eqopt.schedules.ReduceOnPlateau(0.1)
    with pytest.raises(ValueError, match=re.escape("has no counterpart in torch")):
        converted(trained("Adam"), eqopt.Scheduled(eqopt.Adam(rate)))


def test_without_torch(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"needs torch, .* `pip install torch`"):
        from_torch(None)


def test_what_was_not_trained_is_new():
    """Without a state of torch, `init` makes it."""
    state = converted(torch.optim.Adam(tensors(*SHAPES)))
    jax.tree.map(np.testing.assert_array_equal, state, ADAM.init(MODEL))
    plain = converted(trained("SGD"), eqopt.SGD(0.1), count=3)
    assert eqopt.tree.step_count(plain) == 3
