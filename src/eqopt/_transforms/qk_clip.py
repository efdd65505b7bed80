"""QK-Clip: scales the weights of queries and keys down if attention logits are large."""

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float

from .._arguments.fields import static_choice
from .._core import AbstractLeafwise, Leafwise, equation
from .._errors import InputError
from .._trees.leaves import disagreement, is_parameter, keystr, selected, type_name
from .._trees.stored import is_leaf
from .._types import Leaf, Params, Positive, PyTree, Size
from ..numerics._numerics import at_least_float32


@equation
def scale_weights(g: Leaf, p: Leaf, factor: Float[Array, "*factor"]) -> Leaf:
    # Heads that are not clipped take the step as it is, bit by bit.
    return jnp.where(factor == 1, g, factor * g - (1 - factor) * p)


class QKClip(AbstractLeafwise):
    r"""QK-Clip: scales queries and keys down in heads with large attention logits.

    Put it last in a chain, where the update $g$ is added to $p$. For each head, let
    $S$ be the largest logit before the step. Then

    $$\gamma = \min(1, \tau / S), \qquad W_q \leftarrow \sqrt\gamma\, (W_q + g), \qquad
      W_k \leftarrow \sqrt\gamma\, (W_k + g).$$

    So logits that exceed $\tau$ are scaled to it. All other parameters, and heads
    without such logits, are updated as they would be without this. Heads whose largest
    logit is not finite are not scaled. After [`eqopt.Muon`][], this is MuonClip.

    !!! example

        ```python
        attention = lambda model: [layer.attention for layer in model.layers]
        opt = eqopt.Chain(
            eqopt.Muon(0.02),
            eqopt.QKClip(
                lambda model: [x.query_proj for x in attention(model)],
                lambda model: [x.key_proj for x in attention(model)],
            ),
        )
        # One array of shape `(heads,)` for each layer, the maxima over the batch:
        model, state = opt.step(grads, state, model, max_logits=max_logits)
        ```

    Compute the logits as the softmax sees them: with the factor $1 / \sqrt d$, and
    without masked positions. With several mini-batches per step, take the maximum over
    all of them.

    **Arguments:**

    - `query`, `key`: functions of the model that return the projections of the queries
        and of the keys: a tree of layers or arrays, such as a list with one
        `eqx.nn.Linear` for each layer of the model. All parameters in it are scaled, also
        biases. Their features are all heads, one after the other. Default to `None`:
        pass both, or `qkv`.
    - `threshold`: $\tau > 0$. Kimi K2 used 100. Defaults to 100.0.
    - `qkv`: the same for projections whose features are all queries, then all keys, then
        all values. Defaults to `None`.
    - `key_heads`: the number of heads of the keys, if the queries have more heads
        (grouped-query attention). Then $S$ is the largest logit in each group of heads
        that share a key. Defaults to `None`, for equally many.
    - `unrotated`: for multi-head latent attention, the number of features without a
        rotary encoding, which come first in each head of `query` and `key`. The other
        features of queries are multiplied by $\gamma$, because the rotary key that all
        heads share is not scaled. The other features of keys are values and stay
        unchanged. Defaults to `None`, for other kinds of attention.
    - `axis`: the axis of the features in each array, not counting the axes of a stack of
        layers. Defaults to 0, as in `eqx.nn.Linear`.

    `update` and `step` need the extra argument `max_logits`: a tree like the result of
    `query`, or a prefix of it, with an array of shape `(heads,)` for each layer, or
    `(layers, heads)` for stacked layers. With `qkv` in addition, it is for both.

    **Raises:**

    At construction, a `ValueError` if an argument is out of its range, or if there is
    nothing to scale. In `init`, a `ValueError` if a function selects no parameter. In
    `update`, a `ValueError` if `params` or `max_logits` are missing, or if the logits or
    the number of heads do not fit.

    ??? cite "Reference"

        ```bibtex
        @article{kimi2025k2,
            author = {{Kimi Team}},
            title = {Kimi {K2}: Open Agentic Intelligence},
            journal = {arXiv:2507.20534},
            year = {2025},
        }
        ```
    """

    query: Callable[[Params], PyTree] | None = None
    key: Callable[[Params], PyTree] | None = None
    threshold: Positive = 100.0
    qkv: Callable[[Params], PyTree] | None = None
    key_heads: Size | None = static_choice(static=True, default=None)
    unrotated: Size | None = static_choice(static=True, default=None)
    axis: int = static_choice(static=True, default=0)

    def __check_init__(self) -> None:
        given = [x is not None for x in (self.query, self.key, self.qkv)]
        is_split = self.qkv is None or self.unrotated is None
        if given[0] != given[1] or not any(given) or not is_split:
            raise InputError(
                "pass both `query` and `key`, functions such as `lambda model: "
                "model.attention.query_proj`, or `qkv`, which takes no `unrotated`."
            )

    def init(self, params: Params) -> None:
        leaves = jtu.tree_leaves(params, is_leaf=is_leaf)
        if not any(map(is_parameter, leaves)):
            return  # a part of a model without parameters
        for name, nodes in self._nodes(params):
            # `None` is a parameter that is not trained.
            found = [leaves[i] for i in jtu.tree_leaves(nodes)]
            if not any(x is None or is_parameter(x) for x in found):
                raise InputError(
                    f"`{name}` must return layers or arrays of the model, but selects no "
                    "parameter."
                )

    def leafwise(
        self,
        state: None,
        params: Params | None = None,
        *,
        max_logits: PyTree,
        **extra: Any,
    ) -> Leafwise:
        model = lambda updates: updates if params is None else params
        factors = lambda updates: self._factors(model(updates), max_logits)
        # Not the method itself, which Equinox makes a tree, and so no function.
        is_scaled = lambda params: self._is_scaled(params)
        return Leafwise(scale_weights, reads={"factor": factors}, mask=is_scaled)

    def _nodes(self, params: Params) -> list[tuple[str, PyTree[int]]]:
        """What each function selects, with the places of the leaves of `params`."""
        functions = {"query": self.query, "key": self.key, "qkv": self.qkv}
        return [
            (name, selected(params, f, f"`{name}`"))
            for name, f in functions.items()
            if f is not None
        ]

    def _is_scaled(self, params: Params) -> PyTree[bool]:
        chosen = {i for _, nodes in self._nodes(params) for i in jtu.tree_leaves(nodes)}
        leaves, treedef = jtu.tree_flatten(params, is_leaf=is_leaf)
        return treedef.unflatten(i in chosen for i in range(len(leaves)))

    def _factors(self, params: Params, max_logits: PyTree) -> PyTree:
        """The factors of each selected parameter, and `None` elsewhere."""
        leaves, treedef = jtu.tree_flatten(params, is_leaf=is_leaf)
        factors: list[Any] = [None] * len(leaves)
        for name, nodes in self._nodes(params):
            for place, logits in _with_logits(name, nodes, max_logits):
                if is_parameter(x := leaves[place]):
                    path = keystr(params, place)
                    factors[place] = self._factor(name, x, jnp.asarray(logits), path)
        return treedef.unflatten(factors)

    def _factor(self, name: str, x: Any, logits: Array, path: str) -> Array:
        """The factors of a parameter, which broadcast against it."""
        *stack, heads = logits.shape or (0,)
        shape = x.shape[len(stack) :]
        keys = self.key_heads or heads
        size = self._features_per_head(name, shape, heads, keys)
        if size is None or [*x.shape[: len(stack)]] != stack:
            raise InputError(
                f"`{path}`, selected by `{name}`, is {type_name(x.dtype, x.shape)}, "
                "which does not have the heads of its `max_logits`, of shape "
                f"{logits.shape}. This must be `(heads,)`, or `(layers, heads)` for "
                "stacked layers. Set `key_heads` for fewer keys, `axis` for others."
            )
        of_keys = _gammas(at_least_float32(logits), jnp.asarray(self.threshold), keys)
        of_queries = jnp.repeat(of_keys, heads // keys, -1)
        all_three = [of_queries, of_keys, jnp.ones_like(of_keys)]
        parts = {"query": [of_queries], "key": [of_keys], "qkv": all_three}[name]
        gamma = jnp.concatenate(parts, -1)[..., None]
        is_root = np.arange(size) < (size if self.unrotated is None else self.unrotated)
        factor = jnp.where(is_root, jnp.sqrt(gamma), gamma if name == "query" else 1)
        ones = [1] * len(shape)
        ones[self.axis] = shape[self.axis]
        return factor.reshape(*stack, *ones)

    def _features_per_head(self, name, shape: tuple[int, ...], heads, keys):
        """The features of each head in an array, or `None` if it has not these heads."""
        if heads == 0 or heads % keys or not -len(shape) <= self.axis < len(shape):
            return None
        count = {"query": heads, "key": keys, "qkv": heads + 2 * keys}[name]
        size, left = divmod(shape[self.axis], count)
        return None if left or size < (self.unrotated or 0) else size


def _gammas(logits: Array, threshold: Array, key_heads: int) -> Array:
    """Gamma for each head of the keys. It is 1 if the logits are not finite."""
    groups = logits.reshape(*logits.shape[:-1], key_heads, -1)
    largest, threshold = jnp.max(groups, -1), threshold.astype(logits.dtype)
    is_large = (largest > threshold) & jnp.isfinite(largest)
    return jnp.where(is_large, threshold / jnp.where(is_large, largest, 1), 1)


def _with_logits(name, nodes: PyTree[int], max_logits) -> Iterator[tuple[int, Any]]:
    """The places of leaves, each with the logits that belong to it."""
    logits, treedef = jtu.tree_flatten(max_logits)
    try:
        subtrees = treedef.flatten_up_to(nodes)
    except (ValueError, TypeError):
        raise InputError(
            f"`max_logits` must be a tree like the result of `{name}`, or a prefix of "
            f"it: {disagreement('max_logits', max_logits, name, nodes)}"
        ) from None
    for of_layer, subtree in zip(logits, subtrees, strict=True):
        for place in jtu.tree_leaves(subtree):
            yield place, of_layer
