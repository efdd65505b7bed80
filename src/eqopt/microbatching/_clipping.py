"""The gradients of the examples of a microbatch, in factors: norms and clipped sums."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PyTree, Shaped

from .._leaves import listed, resolve
from ..numerics import safe_sqrt
from ._accumulator import AccumulationType
from ._arguments import Arguments, find_arguments
from ._ghost.factors import AbstractFactor, squared_norm, weighted_sum
from ._ghost.gradient import Method, Path, Traced, gradient, trace
from ._loss import Loss
from ._microbatch import accumulate
from ._state import is_state
from ._weights import make_weights


# A tree of strings like the arguments that are differentiated, a prefix of it, or a
# function that makes one of them, such as `eqopt.groups.label` returns.
Groups: TypeAlias = PyTree[str] | Callable[[PyTree], PyTree[str]]

_SUM, _CONCAT = AccumulationType.SUM, AccumulationType.CONCAT


class PerExampleNorms(NamedTuple):
    """What there is of each example; axis 0 is that of the batch.

    **Attributes:**

    - `values`: the losses.
    - `norms`: the norms of the gradients before clipping, at least float32: an array, or
        with `groups` a dictionary of one for each label.
    - `aux`: whatever else the function returns.
    """

    values: Any
    norms: Any
    aux: Any


class _Examples(eqx.Module):
    """Gradients of the examples of a microbatch, in factors, and their norms by group."""

    factors: list[list[AbstractFactor]]
    norms: dict[Any, Float[Array, "*examples"]]
    values: Float[Array, "*examples"]
    aux: PyTree
    weights: Shaped[Array, "*examples"] | None

    @property
    def visible(self) -> PerExampleNorms:
        # Without groups, there is one, and its label is `None`.
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
        leaves, axes = call.arguments.batch.leaves, call.arguments.batch.axes
        state = call.arguments.state and call.arguments.state.value

        def trace_it(*mapped: Array) -> None:
            traced, _ = call.trace(leaves, state, 0, mapped)
            found.extend(traced.paths)

        rows = [x[0] for x, axis in zip(leaves, axes, strict=True) if axis is not None]
        jax.eval_shape(trace_it, *rows)
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
        """What a call with these arguments is about."""
        loss = self.loss.at(args)
        axes = loss.axes(args)
        kwarg_axes = {name: 0 for name, x in kwargs.items() if not is_state(x)}
        size = self.microbatch_size
        arguments = find_arguments(
            (*args, None), kwargs, [*axes, None], kwarg_axes, size
        )
        if weights is not None:
            make_weights(
                weights, arguments.batch.split, True
            )  # raises if they are wrong
            args_and_weights = (*args, jnp.asarray(weights))
            arguments = find_arguments(
                args_and_weights, kwargs, [*axes, 0], kwarg_axes, size
            )
        wrt = loss.wrt(args)
        params, static = eqx.partition(wrt, eqx.is_inexact_array)
        leaves, treedef = jtu.tree_flatten_with_path(params)
        labels: list[Any] = [None] * len(leaves)
        if self.groups is not None:
            given = resolve("groups", self.groups, params, None)
            flat = jtu.tree_leaves(params, is_leaf=lambda x: x is None)
            labels = [x for x, p in zip(given, flat, strict=True) if p is not None]
        return _Call(
            loss,
            arguments,
            [x for _, x in leaves],
            [jtu.keystr(path) for path, _ in leaves],
            labels,
            treedef,
            static,
            self.method,
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
        limits = _limits(self.l2_norm_clip, call.labels)

        def clipped(*rows: Any) -> tuple[list[Array], PerExampleNorms]:
            examples = call.examples(*rows)
            norms = examples.norms
            by_label = {k: clip_factors(norms[k], limits[k]) for k in norms}
            factors = examples.factors
            if examples.weights is not None:
                weights = examples.weights.astype(jnp.float32)
                by_label = {k: weights * f for k, f in by_label.items()}
                factors = jtu.tree_map(lambda x: _without_zeros(x, weights), factors)
            sums = [
                weighted_sum(f, by_label[label]) if f else jnp.zeros(p.shape)
                for f, label, p in zip(factors, call.labels, call.params, strict=True)
            ]
            return sums, examples.visible

        num_real = self.num_real_microbatches
        kinds = (_SUM, _CONCAT)
        sums, visible = accumulate(
            clipped, call.arguments, kinds, num_real, None, has_rows=False
        )
        divisor = self._divisor(call.arguments)
        means = [
            (x / jnp.asarray(divisor, x.dtype)).astype(p.dtype)
            for x, p in zip(sums, call.params, strict=True)
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
    """What a call is about: `paths` and `labels` are those of `params`."""

    loss: Any
    arguments: Arguments
    params: list[Array]
    names: list[str]
    labels: list[Any]
    treedef: Any
    static: PyTree
    method: Method

    def examples(self, leaves: Any, state: Any, index: Any) -> _Examples:
        """The gradients of the examples of a microbatch."""

        def one(*mapped: Array) -> tuple[_Examples, Any]:
            traced, weight = self.trace(leaves, state, index, mapped)
            value, aux, factors = gradient(traced, self.params, [*mapped])
            dynamic, static = eqx.partition(aux, eqx.is_array)
            squares: dict[Any, Any] = dict.fromkeys(self.labels, 0)
            for label, x in zip(self.labels, factors, strict=True):
                squares[label] += squared_norm(x)
            norms = {label: safe_sqrt(x) for label, x in squares.items()}
            return _Examples(factors, norms, value, dynamic, weight), eqxi.Static(
                static
            )

        axes = self.arguments.batch.axes
        mapped = [x for x, axis in zip(leaves, axes, strict=True) if axis is not None]
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
            return self.loss.expand(tuple(args)), kwargs, weight

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
                f"`method` is 'ghost', but the gradients of examples with respect to "
                f"{listed(large)} do not factor: a loop, a derivative of its own, a "
                "penalty or some other operation stands between the parameter and the "
                "product that it is used in. Use 'auto', which computes these gradients, "
                "and a microbatch size for which there is memory."
            )
        return traced, rebuild(mapped)[2]


def clip_factors(
    norms: Float[Array, " examples"], limit: Any
) -> Float[Array, " examples"]:
    """By how much to multiply what has these norms, for norms of at most `limit`.

    A zero gradient and one that is NaN count as not clipped.
    """
    limit = jnp.asarray(limit, norms.dtype)
    exceeds = norms > limit
    return jnp.where(exceeds, limit / jnp.where(exceeds, norms, 1), 1)


def check_clip(l2_norm_clip: Any, groups: Any) -> None:
    is_mapping = isinstance(l2_norm_clip, Mapping)
    if is_mapping and groups is None:
        raise ValueError(
            f"`l2_norm_clip` is for the groups {sorted(l2_norm_clip)}, but there are no "
            "`groups`. Pass the labels of the parameters, or a single number."
        )
    for label, x in (l2_norm_clip if is_mapping else {None: l2_norm_clip}).items():
        name = "l2_norm_clip" + (f"[{label!r}]" if is_mapping else "")
        if np.shape(x) != ():
            raise ValueError(
                f"`{name}` must be a number or a 0-d array, got shape {np.shape(x)}."
            )
        if not isinstance(x, Tracer) and not float(x) >= 0:
            raise ValueError(f"`{name}` must be in [0, inf), got {x}.")


def _limits(l2_norm_clip: Any, labels: list[Any]) -> dict[Any, Any]:
    found = set(labels)
    if not isinstance(l2_norm_clip, Mapping):
        return dict.fromkeys(found, l2_norm_clip)
    if found - set(l2_norm_clip):
        raise ValueError(
            f"`l2_norm_clip` has no entry for {sorted(found - set(l2_norm_clip))}: it "
            f"has {sorted(l2_norm_clip)}. Expected one for every label in `groups`."
        )
    return dict(l2_norm_clip)


def _without_zeros(x: Array, weights: Float[Array, " examples"]) -> Array:
    # Zero times what is not finite is not zero.
    return jnp.where(jnp.expand_dims(weights, range(1, x.ndim)) == 0, 0, x)
