"""Per-example gradients of a microbatch in factors: norms and clipped sums."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float, Shaped

from .._trees.leaves import is_label, label_dict, listed
from .._trees.masks import resolve
from .._types import PyTree
from ..numerics._numerics import safe_sqrt, wide_dtype
from ._accumulator import AccumulationType
from ._arguments import Arguments, find_arguments
from ._clip_factors import clip_factors, limits_of
from ._ghost.factors import AbstractFactor, squared_norm, weighted_sum
from ._ghost.gradient import Method, Path, Traced, gradient, trace
from ._loss import Loss
from ._microbatch import accumulate
from ._weights import make_weights


# A tree of labels like the differentiated arguments, a prefix of it, or a function that
# returns one of them, such as the result of `eqopt.groups.label`.
Groups: TypeAlias = PyTree | Callable[[PyTree], PyTree]

_SUM, _CONCAT = AccumulationType.SUM, AccumulationType.CONCAT


class PerExampleNorms(NamedTuple):
    """The results for each example; axis 0 is the batch axis.

    **Attributes:**

    - `values`: the losses.
    - `norms`: the norms of the gradients before clipping, in at least float32: an
        array, or with `groups` a dictionary with an array for each label.
    - `aux`: the second result of the function with `has_aux`.
    """

    values: Any
    norms: Any
    aux: Any


class _Examples(eqx.Module):
    """Per-example gradients of a microbatch, in factors, and their norms by group."""

    factors: list[list[AbstractFactor]]
    norms: dict[Any, Float[Array, "*examples"]]
    bounds: dict[Any, Float[Array, "*examples"]]  # which the norms do not exceed
    values: Float[Array, "*examples"]
    aux: PyTree
    weights: Shaped[Array, "*examples"] | None

    @property
    def visible(self) -> PerExampleNorms:
        # Without `groups`, there is one group with the label `None`.
        norms = self.norms.get(None, self.norms)
        return PerExampleNorms(self.values, norms, self.aux)


class Paths(eqx.Module):
    """What `gradient_paths` returns."""

    loss: Loss

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.loss.fun

    def __call__(self, /, *args: Any, **kwargs: Any) -> PyTree[Path]:
        call = Norms(self.loss, None, None, "auto").call(args, kwargs)
        found: list[Path] = []
        batch = call.arguments.batch
        state = call.arguments.state and call.arguments.state.value

        def trace_it() -> None:
            leaves = batch.full(0)
            pairs = zip(leaves, batch.axes, strict=True)
            row = [x[0] for x, axis in pairs if axis is not None]
            traced, _ = call.trace(leaves, state, 0, row)
            found.extend(traced.paths)

        jax.eval_shape(trace_it)
        return call.treedef.unflatten(found)


class Norms(eqx.Module):
    """What `per_example_grad_norms` returns."""

    loss: Loss
    microbatch_size: int | None
    groups: Groups | None
    method: Method

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.loss.fun

    def __call__(self, /, *args: Any, **kwargs: Any) -> PerExampleNorms:
        call = self.call(args, kwargs)
        return accumulate(
            lambda *rows: call.examples(*rows).visible,
            call.arguments,
            _CONCAT,
            None,
            None,
            has_rows=False,
        )

    def call(self, args: Any, kwargs: Any, weights: Any = None) -> "_Call":
        """The subject of a call with these arguments."""
        loss = self.loss.at(args, kwargs)
        both = [place for place in loss.wrt_places if place in loss.batch_places]
        if both:
            raise ValueError(
                f"`argnums` and `batch_argnums` both contain argument {both[0]!r}, "
                "but parameters must be shared by all examples. For gradients with "
                "respect to the batch, use `micro_grad`."
            )
        axes, size = loss.axes(args, kwargs), self.microbatch_size
        arguments = find_arguments((*args, None), kwargs, axes, size, loss.key)
        if weights is not None:
            make_weights(
                weights, arguments.batch.split, True
            )  # raises if they are wrong
            args_and_weights = (*args, jnp.asarray(weights))
            axes = {**axes, len(args): 0}
            arguments = find_arguments(args_and_weights, kwargs, axes, size, loss.key)
        wrt = loss.wrt(args, kwargs)
        params, static = eqx.partition(wrt, eqx.is_inexact_array)
        leaves, treedef = jtu.tree_flatten_with_path(params)
        labels: list[Any] = [None] * len(leaves)
        if self.groups is not None:
            given = resolve("groups", self.groups, params, params)
            flat = jtu.tree_leaves(params, is_leaf=lambda x: x is None)
            labels = [x for x, p in zip(given, flat, strict=True) if p is not None]
            for label, (path, _) in zip(labels, leaves, strict=True):
                if not is_label(label):
                    raise ValueError(
                        f"`groups` has {label!r} at `{jtu.keystr(path)}`. Expected the "
                        "label of the parameter: a string, or another hashable value."
                    )
        return _Call(
            loss,
            arguments,
            [jnp.asarray(x) for _, x in leaves],
            [jtu.keystr(path) or "(the root)" for path, _ in leaves],
            labels,
            treedef,
            static,
            self.method,
            [None] if self.groups is None else list(dict.fromkeys(labels)),
        )


class ClippedSum(eqx.Module):
    """What `clipped_grad` returns."""

    norms: Norms
    l2_norm_clip: Any
    accumulator: AccumulationType
    weights: Any
    num_real_microbatches: Any

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.norms.loss.fun

    def __call__(self, /, *args: Any, **kwargs: Any) -> tuple[PyTree, PerExampleNorms]:
        call = self.norms.call(args, kwargs, self.weights)
        limits = limits_of(self.l2_norm_clip, call.all_labels)
        # Noise is added before any rounding: the rounding of a large sum may exceed the
        # contribution of an example.
        dtypes = [wide_dtype(p.dtype) for p in call.params]

        def clipped(*rows: Any) -> tuple[list[Array], PerExampleNorms]:
            examples = call.examples(*rows)
            bounds = examples.bounds
            by_label = {k: clip_factors(bounds[k], limits[k]) for k in bounds}
            factors = examples.factors
            if examples.weights is not None:
                weights = examples.weights.astype(jnp.float32)
                by_label = {k: weights.astype(f.dtype) * f for k, f in by_label.items()}
                factors = jtu.tree_map(lambda x: _without_zeros(x, weights), factors)
            sums = [
                weighted_sum(f, by_label[label]) if f else jnp.zeros(p.shape, dtype)
                for f, label, p, dtype in zip(
                    factors, call.labels, call.params, dtypes, strict=True
                )
            ]
            return sums, examples.visible

        num_real = self.num_real_microbatches
        kinds = (_SUM, _CONCAT)
        sums, visible = accumulate(
            clipped, call.arguments, kinds, num_real, None, has_rows=False
        )
        divisor = self._divisor(call.arguments)
        means = [
            (x / jnp.asarray(divisor, x.dtype)).astype(dtype)
            for x, dtype in zip(sums, dtypes, strict=True)
        ]
        return call.treedef.unflatten(means), visible

    def _divisor(self, arguments: Arguments) -> Any:
        split = arguments.batch.split
        weights = make_weights(self.weights, split, True)
        if self.accumulator is AccumulationType.MEAN:
            return weights.of_all()
        if self.accumulator is AccumulationType.RUNNING_MEAN:
            return weights.of_first(split.executed(self.num_real_microbatches))
        return 1


class _Call(NamedTuple):
    """The subject of a call: `paths` and `labels` belong to `params`."""

    loss: Any
    arguments: Arguments
    params: list[Array]
    names: list[str]
    labels: list[Any]
    treedef: Any
    static: PyTree
    method: Method
    all_labels: list[Any]  # without repetitions

    def examples(self, leaves: Any, state: Any, index: Any) -> _Examples:
        """The gradients of the examples of a microbatch."""

        def one(*mapped: Array) -> tuple[_Examples, Any]:
            traced, weight = self.trace(leaves, state, index, mapped)
            value, aux, factors = gradient(traced, self.params, [*mapped])
            dynamic, static = eqx.partition(aux, eqx.is_array)
            squares: dict[Any, list[Any]] = {k: [] for k in self.all_labels}
            for label, x in zip(self.labels, factors, strict=True):
                squares[label].append(squared_norm(x))
            found = {label: _norm_and_bound(x) for label, x in squares.items()}
            norms, bounds = (
                label_dict({k: x[i] for k, x in found.items()}) for i in range(2)
            )
            examples = _Examples(factors, norms, bounds, value, dynamic, weight)
            return examples, eqxi.Static(static)

        pairs = zip(leaves, self.arguments.batch.axes, strict=True)
        mapped = [x for x, axis in pairs if axis is not None]
        examples, static = jax.vmap(one)(*mapped)
        aux = eqx.combine(examples.aux, static.value)
        return eqx.tree_at(lambda x: x.aux, examples, aux, is_leaf=lambda x: x is None)

    def trace(
        self, leaves: Any, state: Any, index: Any, mapped: Sequence[Array]
    ) -> tuple[Traced, Any]:
        """The loss of one example, and its weight."""

        def rebuild(mapped: Sequence[Array]) -> Any:
            rows = iter(mapped)
            pairs = zip(leaves, self.arguments.batch.axes, strict=True)
            row = [x if axis is None else next(rows) for x, axis in pairs]
            (*args, weight), kwargs = self.arguments.rebuild(row, state, index)
            return *self.loss.expand(tuple(args), kwargs), weight

        def loss(params: list[Array], mapped: list[Array]) -> tuple[Any, Any]:
            args, kwargs, _ = rebuild(mapped)
            wrt = eqx.combine(self.treedef.unflatten(params), self.static)
            return self.loss.value_and_aux(wrt, args, kwargs)

        ghost = self.method != "per_example"
        traced = trace(loss, self.params, [*mapped], ghost)
        if self.method == "ghost" and "per_example" in traced.paths:
            paths = zip(self.names, traced.paths, strict=True)
            large = [name for name, path in paths if path == "per_example"]
            raise ValueError(
                "`method` is 'ghost', but the per-example gradients with respect to "
                f"{listed(large)} do not factor: there is a loop, a custom "
                "derivative, a penalty or another operation between the parameter and "
                "the product that uses it. Use 'auto', which computes these "
                "gradients, with a microbatch size that fits into memory."
            )
        return traced, rebuild(mapped)[2]


def _norm_and_bound(
    squares: Sequence[tuple[Array, Array]],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The norm with these squared norms and errors, one for each of its parts."""
    dtype = wide_dtype(*(x.dtype for pair in squares for x in pair))
    value, error = (
        sum((pair[i].astype(dtype) for pair in squares), start=jnp.zeros((), dtype))
        for i in range(2)
    )
    value = jnp.maximum(value, 0)  # rounding can make it negative
    # An error that is too small to matter is ignored.
    bound = jnp.maximum(value, (1 - _NO_MATTER) * value + error)
    return safe_sqrt(value), safe_sqrt(bound)


_NO_MATTER = 1e-3  # of the square of a norm


def _without_zeros(x: Array, weights: Float[Array, " examples"]) -> Array:
    # Zero times a value that is not finite is not zero.
    return jnp.where(jnp.expand_dims(weights, range(1, x.ndim)) == 0, 0, x)
