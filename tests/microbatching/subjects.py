"""Functions of a model and an example, for all that is said of `clipped_grad`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import lax


ROWS = 5
KEY = jr.key(0)


class Subject(NamedTuple):
    """
    **Attributes:**

    - `model`: what is differentiated; every array of `x` has `ROWS` rows.
    - `fun`: the loss of an example without its batch axis.
    - `paths`: the path that `gradient_paths` gives for each parameter.
    - `tolerance`: of one example's gradient, relative to the largest.
    """

    model: Callable[[], Any]
    fun: Callable[..., Any]
    x: Any
    paths: str = "ghost"
    tolerance: float = 2e-5


def score(y):
    """A number in which every element counts, and each differently."""
    if jnp.iscomplexobj(y):
        return score(y.real) + 2 * score(y.imag)
    y = y.astype(jnp.float64 if y.dtype == jnp.float64 else jnp.float32)
    return jnp.sum(jnp.sin(y + jnp.arange(y.size, dtype=y.dtype).reshape(y.shape)))


def numbers(shape, seed):
    """By NumPy: for each shape, JAX would compile a program."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def normal(*shape, seed=2):
    return jax.device_put(numbers(shape, seed))


def rows(*shape):
    # Of very different sizes, so that some gradients are clipped and others are not.
    sizes = np.array([0.2, 2.0, 0.6, 1.0, 0.1], np.float32)
    return jax.device_put(
        numbers((ROWS, *shape), 3) * sizes.reshape(-1, *[1] * len(shape))
    )


def indices(*shape, low=0, high=7):
    return jax.device_put(np.random.default_rng(4).integers(low, high, (ROWS, *shape)))


def assert_close(actual, expected, tol=1e-5):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        if not eqx.is_array(b):
            assert a == b
            continue
        assert a.dtype == b.dtype
        a, b = (np.asarray(x, np.float64) for x in (a, b))
        np.testing.assert_allclose(a, b, rtol=tol, atol=tol)


def call(model, x):
    return score(model(x))


def call_rows(model, x):
    return score(jax.vmap(model)(x))


def linear(*args, **kwargs):
    return lambda: eqx.nn.Linear(*args, **kwargs, key=KEY)


def mlp(width=4, depth=2):
    return lambda: eqx.nn.MLP(3, 2, width, depth, key=KEY)


def array(*shape):
    return lambda: normal(*shape)


def complex_array(*shape):
    return lambda: lax.complex(normal(*shape), normal(*shape, seed=5))


def pair(*shapes):
    return lambda: [normal(*shape, seed=i) for i, shape in enumerate(shapes)]


def conv(kind, *args, **kwargs):
    return lambda: kind(*args, **kwargs, key=KEY)


def conv_of(spec, **kwargs):
    def fun(w, x):
        # An example without a batch axis gets one where the specification has it.
        x = jnp.expand_dims(x, spec[0].index("N"))
        return score(lax.conv_general_dilated(x, w, dimension_numbers=spec, **kwargs))

    return fun


def take(axis=0, mode=None):
    return lambda w, i: score(jnp.take(w, i, axis, mode=mode))


def tied(w, i):
    return score(jnp.tanh(w[i]) @ w.T)


def twice(model, x):
    return score(jax.vmap(model)(jnp.tanh(jax.vmap(model)(x))[:2]))


def autoencoder(w, x):
    return score(jnp.tanh(x @ w) @ w.T)


def attention(model, x):
    return score(model(x, x, x))


class Recurrent(eqx.Module):
    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __init__(self):
        self.cell = eqx.nn.GRUCell(3, 4, key=KEY)
        self.head = eqx.nn.Linear(4, 2, key=KEY)

    def __call__(self, xs):
        step = lambda h, x: (self.cell(x, h), None)
        return self.head(lax.scan(step, jnp.zeros(4), xs)[0])


def stacked(model, x):
    arrays, static = eqx.partition(model, eqx.is_array)

    def step(x, arrays):
        return jnp.tanh(eqx.combine(arrays, static)(x)), None

    return score(lax.scan(step, x, arrays)[0])


def ensemble(model, x):
    return score(eqx.filter_vmap(lambda m, x: m(x), in_axes=(0, None))(model, x))


def make_stack():
    return eqx.filter_vmap(lambda key: eqx.nn.Linear(3, 3, key=key))(jr.split(KEY, 4))


@jax.custom_jvp
def scaled(w, x):
    return x @ w


@scaled.defjvp
def scaled_jvp(primals, tangents):
    (w, x), (dw, dx) = primals, tangents
    return x @ w, 2 * (x @ dw) + dx @ w


@jax.custom_vjp
def straight(w, x):
    return x @ jnp.round(w)


straight.defvjp(
    lambda w, x: (straight(w, x), (w, x)),
    lambda saved, g: (3 * jnp.outer(saved[1], g), g @ saved[0].T),
)


def branches(w, x):
    return score(lax.cond(jnp.sum(x) > 0, lambda: x @ w, lambda: x @ w.T))


def branches_on_parameters(w, x):
    a, b = w
    return score(x @ lax.cond(jnp.sum(b) > 0, lambda: a, lambda: 2 * a)) + score(x @ b)


def power_iteration(w, x):
    """A loop over parameters alone, of which no derivative is taken."""
    fixed = lax.stop_gradient(w)
    state = 0, jnp.ones(3) / 2
    _, u = lax.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.tanh(fixed @ s[1])), state
    )
    return score(x @ w / jnp.sum(u**2))


def decayed(w, x):
    return score(x @ w) + 0.1 * jnp.sum(w**2)


class Odd(eqx.Module):
    """A model with leaves of all kinds, one parameter without use."""

    weight: jax.Array
    unused: jax.Array
    index: jax.Array
    activation: Any
    rate: float
    nothing: None
    count: int

    def __init__(self):
        self.weight, self.unused = normal(3, 3), normal(7)
        self.index = jnp.array([2, 0, 1])
        self.activation, self.rate, self.nothing, self.count = jnp.tanh, 0.5, None, 2

    def __call__(self, x):
        return self.rate * self.activation(x[self.index] @ self.weight) * self.count


def cast(dtype, make):
    return lambda: jax.tree.map(
        lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, make()
    )


def half_precision(model, x):
    return call(cast(jnp.bfloat16, lambda: model)(), x.astype(jnp.bfloat16))


def phase(w, x):
    y = x.astype(jnp.complex64) @ w.astype(jnp.complex64) * jnp.complex64(1 + 2j)
    return score(y.real) + score(y.imag)


def complex_parameter(w, x):
    y = lax.complex(x, 0.3 * x**2) @ w
    return score(y.real) + score(y.imag)


def spectrum(w, x):
    """Complex rows times real parameters, without a cast."""
    rows = jnp.fft.rfft(x)
    numbers = (((rows.ndim - 1,), (0,)), ((), ()))
    return score(lax.dot_general(rows, w, numbers, preferred_element_type=rows.dtype))


def mixed(w, x):
    """A product of two dtypes, as `jnp.matmul` makes it where promotion is implicit."""
    with jax.numpy_dtype_promotion("standard"):
        return score(x @ w)


def complex_conv(w, x):
    x = lax.complex(x, 0.3 * x**2)[None]
    return score(lax.conv_general_dilated(x, w.astype(x.dtype), (1,), "VALID"))


def parts(w, x):
    return score(x @ w.real) + score(x @ jnp.conj(w).imag)


def noisy(w, batch):
    x, key = batch
    return score((x + jr.normal(key, x.shape)) @ w)


def remat(model, x):
    layer = jax.checkpoint(lambda m, x: jnp.tanh(m(x)))
    return score(layer(model.layers[1], layer(model.layers[0], x)))


checkpointed_layer = jax.checkpoint(lambda w, x: jnp.tanh(x @ w))
jitted_mlp = eqx.filter_jit(lambda m, x: m(x))


NCH = ("NCH", "OIH", "NCH")
BOTH = "ghost direct"

SUBJECTS = {
    "linear": Subject(linear(3, 5), call, rows(3), BOTH),
    "linear of scalars": Subject(linear("scalar", 4), call, rows(), BOTH),
    "linear, few rows": Subject(linear(6, 5), call_rows, rows(2, 6), BOTH),
    "linear, many rows": Subject(linear(2, 3), call_rows, rows(9, 2), BOTH),
    "mlp": Subject(mlp(), call, rows(3), BOTH),
    "matmul": Subject(array(3, 4), lambda w, x: score(x @ w), rows(3)),
    "matmul from the left": Subject(array(3, 4), lambda w, x: score(w @ x), rows(4, 2)),
    "transposed": Subject(array(4, 3), lambda w, x: score(x @ w.T), rows(3)),
    "axes of size one": Subject(
        array(1, 4, 1, 6), lambda w, x: score(x @ w[0, :, 0]), rows(2, 4)
    ),
    "vector": Subject(array(6), lambda w, x: score(x @ w), rows(6)),
    "heads": Subject(
        array(2, 6, 5), lambda w, x: score(jnp.einsum("hdk,td->thk", w, x)), rows(2, 6)
    ),
    "batch axes, other order": Subject(
        array(6, 2, 5, 3),
        lambda w, x: score(jnp.einsum("dhkj,tjhd->kth", w, x)),
        rows(2, 3, 2, 6),
    ),
    "conv1d": Subject(conv(eqx.nn.Conv1d, 2, 3, 3), call, rows(2, 6), BOTH),
    "conv2d": Subject(
        conv(eqx.nn.Conv2d, 2, 4, (3, 2), (2, 1), ((1, 2), (0, 1)), 2, 2),
        call,
        rows(2, 6, 5),
        BOTH,
    ),
    "depthwise": Subject(
        conv(eqx.nn.Conv1d, 3, 6, 2, groups=3, use_bias=False), call, rows(3, 5)
    ),
    "transposed conv": Subject(
        conv(eqx.nn.ConvTranspose2d, 2, 3, 3, 2, 1, 1), call, rows(2, 3, 2), BOTH
    ),
    "HWIO": Subject(
        array(2, 3, 2, 4),
        conv_of(
            ("NHWC", "HWIO", "NHWC"),
            window_strides=(2, 1),
            padding=((-1, 2), (3, -2)),
            feature_group_count=2,
            rhs_dilation=(1, 2),
        ),
        rows(5, 6, 4),
    ),
    "negative padding of a dilated input": Subject(
        array(3, 2, 3),
        conv_of(NCH, window_strides=(2,), padding=((-2, 3),), lhs_dilation=(3,)),
        rows(2, 4),
    ),
    "batch axis elsewhere": Subject(
        array(3, 2, 3),
        conv_of(("HNC", "HIO", "CHN"), window_strides=(1,), padding="SAME"),
        rows(4, 2),
    ),
    "batch groups": Subject(
        array(4, 2, 2),
        lambda w, x: score(
            lax.conv_general_dilated(x, w, (1,), "VALID", batch_group_count=2)
        ),
        rows(2, 2, 4),
        "per_example",
    ),
    "kernel as input": Subject(
        array(3, 2, 8),
        lambda w, x: score(lax.conv_general_dilated(w, x, (1,), "VALID")),
        rows(4, 2, 3),
        "direct",
    ),
    "kernel moved": Subject(
        array(3, 2, 4),
        lambda w, x: conv_of(NCH, window_strides=(1,), padding="VALID")(w.T, x),
        rows(2, 4),
        "per_example",
    ),
    "embedding": Subject(
        lambda: eqx.nn.Embedding(7, 4, key=KEY), call_rows, indices(6)
    ),
    "fill": Subject(array(5, 3), take(mode="fill"), indices(6, low=-7)),
    "clip": Subject(array(5, 3), take(mode="clip"), indices(6, low=-7)),
    "columns of heads": Subject(array(2, 7, 3), take(1), indices(2, 4)),
    "rows and columns": Subject(
        array(7, 7),
        lambda w, i: score(w[i]) + score(w[:, i]),
        indices(3),
        "per_example",
    ),
    "elements": Subject(
        array(7, 7), lambda w, i: score(w[i, i]), indices(3), "per_example"
    ),
    "one row of a table": Subject(array(1, 4), take(), indices(2), "direct"),
    "dynamic slice": Subject(
        array(5, 3), lambda w, i: score(lax.dynamic_index_in_dim(w, i)), indices(low=-7)
    ),
    "slice of several": Subject(
        array(8, 3),
        lambda w, i: score(lax.dynamic_slice_in_dim(w, i, 2)),
        indices(),
        "per_example",
    ),
    "ensemble of tables": Subject(
        array(3, 7, 2),
        lambda w, i: score(jax.vmap(lambda w, i: w[i])(w, i)),
        indices(3, 2),
        "per_example",
    ),
    "tied head": Subject(array(7, 4), tied, indices(5)),
    "tied head, invalid indices": Subject(array(5, 4), tied, indices(5, low=-7)),
    "tied head of a transpose": Subject(
        array(4, 7),
        lambda w, i: score(jnp.tanh(w[:, i]).T @ w) + score(w.T[i]),
        indices(5),
    ),
    "used twice": Subject(linear(6, 6), twice, rows(3, 6), BOTH),
    "autoencoder": Subject(array(6, 4), autoencoder, rows(2, 6)),
    "used in two shapes": Subject(
        array(3, 3, 2),
        lambda w, x: (
            score(jnp.einsum("hdk,td->thk", w, x))
            + score(jnp.einsum("hdk,thd->tk", w, jnp.stack([x, x, x], 1)))
        ),
        rows(2, 3),
        "per_example",
    ),
    "layer norm": Subject(lambda: eqx.nn.LayerNorm(4), call, rows(4), "direct"),
    "attention": Subject(
        lambda: eqx.nn.MultiheadAttention(2, 6, use_output_bias=True, key=KEY),
        attention,
        rows(3, 6),
        BOTH,
    ),
    "recurrent": Subject(Recurrent, call, rows(3, 3), f"{BOTH} per_example"),
    "scan over layers": Subject(make_stack, stacked, rows(3), "per_example"),
    "checkpoint": Subject(mlp(depth=1), remat, rows(3), BOTH),
    "jit": Subject(mlp(), lambda m, x: score(jitted_mlp(m, x)), rows(3), BOTH),
    "ensemble": Subject(make_stack, ensemble, rows(3), BOTH),
    "custom_jvp": Subject(
        array(3, 4), lambda w, x: score(scaled(w, x)), rows(3), "per_example"
    ),
    "custom_vjp": Subject(
        array(3, 4), lambda w, x: score(straight(w, x)), rows(3), "per_example"
    ),
    "cond": Subject(array(3, 3), branches, rows(3), "per_example"),
    "cond on parameters": Subject(
        pair((3, 3), (3, 4)), branches_on_parameters, rows(3), "per_example"
    ),
    "while": Subject(array(3, 3), power_iteration, rows(3), "per_example"),
    "stopped parameter": Subject(
        pair((3, 4), (4, 2)),
        lambda w, x: score(jnp.tanh(x @ lax.stop_gradient(w[0])) @ w[1]),
        rows(3),
        "ghost per_example",
    ),
    "stopped activation": Subject(
        pair((3, 4), (4, 2)),
        lambda w, x: score(lax.stop_gradient(x @ w[0]) @ w[1]),
        rows(3),
    ),
    "weight decay": Subject(array(3, 4), decayed, rows(3), "per_example"),
    "odd": Subject(Odd, call, rows(3), "ghost unused"),
    "constant": Subject(array(3), lambda w, x: score(x), rows(3), "unused"),
    "parameters alone": Subject(
        array(3), lambda w, x: score(w), rows(3), "per_example"
    ),
    "bfloat16": Subject(
        cast(jnp.bfloat16, mlp()),
        lambda m, x: call(m, x.astype(jnp.bfloat16)),
        rows(3),
        BOTH,
        5e-2,
    ),
    "mixed precision": Subject(mlp(), half_precision, rows(3), BOTH, 5e-2),
    "mixed dtypes, tied": Subject(
        array(7, 4),
        lambda w, i: score(
            jnp.tanh(w.astype(jnp.bfloat16)[i].astype(jnp.float32)) @ w.T
        ),
        indices(5),
        tolerance=5e-2,
    ),
    "cast to complex": Subject(array(3, 4), phase, rows(3)),
    "complex": Subject(
        lambda: lax.complex(normal(3, 4), normal(3, 4, seed=5)),
        complex_parameter,
        rows(3),
    ),
    "real parameter, complex rows": Subject(array(4, 3), spectrum, rows(6)),
    "real parameter, few complex rows": Subject(array(16, 17), spectrum, rows(2, 30)),
    "complex parameter, real rows": Subject(complex_array(3, 4), mixed, rows(3)),
    "complex parameter, few real rows": Subject(
        complex_array(12, 14), mixed, rows(2, 12)
    ),
    "real and complex uses": Subject(
        array(8, 8),
        lambda w, x: score(x @ w) + phase(w, x) + score(x @ w.T),
        rows(2, 8),
    ),
    "complex parameter, its parts": Subject(
        complex_array(3, 4), parts, rows(3), "per_example"
    ),
    "complex look-ups of a real table": Subject(
        array(7, 4),
        lambda w, i: score(w.astype(jnp.complex64)[i] * jnp.complex64(1 + 2j)),
        indices(5),
    ),
    "complex table": Subject(complex_array(7, 4), take(), indices(5)),
    "tied, look-ups complex": Subject(
        array(7, 4),
        lambda w, i: tied(w, i) + score(w.astype(jnp.complex64)[i] * 2j),
        indices(5),
    ),
    "complex convolution": Subject(complex_array(3, 2, 2), complex_conv, rows(2, 6)),
    "integers": Subject(array(3, 4), mixed, indices(2, 3, low=-7)),
    "integers, complex parameter": Subject(complex_array(3, 4), mixed, indices(2, 3)),
    "integers, elementwise": Subject(
        array(6), lambda w, x: score(x.astype(w.dtype) * w), indices(6), "direct"
    ),
    "bfloat16 parameter, float32 rows": Subject(
        cast(jnp.bfloat16, array(3, 4)), mixed, rows(3), tolerance=5e-2
    ),
    "labels": Subject(
        array(3, 4),
        lambda w, batch: -jax.nn.log_softmax(batch[0] @ w)[batch[1]],
        (rows(3), indices(high=4)),
    ),
    "keys": Subject(array(3, 4), noisy, (rows(3), jr.split(jr.key(7), ROWS))),
    "nested checkpoints": Subject(
        pair((3, 4), (4, 2)),
        jax.checkpoint(
            lambda w, x: score(
                jax.checkpoint(lambda w, x: jnp.tanh(x @ w))(w[0], x) @ w[1]
            )
        ),
        rows(3),
    ),
    "one layer under checkpoint twice": Subject(
        array(4, 4),
        lambda w, x: score(checkpointed_layer(w, checkpointed_layer(w, x))),
        rows(4),
    ),
    "tree": Subject(
        lambda: {"a": [normal(3, 4), "name"], "b": (normal(4), None, 3)},
        lambda w, x: score(x[0]["x"] @ w["a"][0] + w["b"][0]) + score(x[1]),
        ({"x": rows(3), "unit": "m", "none": None}, indices() / 3),
        BOTH,
    ),
}
