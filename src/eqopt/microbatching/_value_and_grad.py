"""The value and the gradient of a mean loss, one microbatch at a time."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
from jaxtyping import ArrayLike

from .._types import PyTree, StaticInteger
from ._accumulator import AccumulationType, check_accumulator
from ._arguments import find_places, list_places
from ._microbatch import microbatch
from ._rows import check_size


def micro_value_and_grad(
    fun: Callable[..., Any],
    has_aux: bool = False,
    *,
    batch_argnums: int | Sequence[int] = 1,
    batch_argnames: str | Sequence[str] = (),
    microbatch_size: StaticInteger | None,
    aux_accumulator: PyTree = AccumulationType.RUNNING_MEAN,
    weights: ArrayLike | None = None,
    num_real_microbatches: ArrayLike | None = None,
) -> Callable[..., Any]:
    """The value and the gradient of a mean loss, with the memory of one microbatch.

    Like `eqx.filter_value_and_grad`, it differentiates with respect to the
    floating-point arrays of the first argument; its other leaves are `None`. It applies
    [`eqopt.microbatching.microbatch`][] with `AccumulationType.RUNNING_MEAN`. See there
    for how rows are grouped, and how a `key` and an `eqx.nn.State` are handled.

    !!! example

        ```python
        from eqopt.microbatching import micro_value_and_grad

        def loss_fn(model, x, y):
            return jnp.mean((jax.vmap(model)(x) - y) ** 2)

        @eqx.filter_jit(donate="all-except-first")
        def train_step(batch, model, state):
            value_and_grad = micro_value_and_grad(
                loss_fn, batch_argnums=(1, 2), microbatch_size=64
            )
            loss, grads = value_and_grad(model, *batch)
            model, state = opt.step(grads, state, model)
            return model, state, loss
        ```

    **Arguments:**

    - `fun`: a function that returns a scalar, the mean loss over the rows of a batch,
        or with `has_aux` a pair of this scalar and anything else.
    - `has_aux`: whether `fun` returns such a pair. Defaults to `False`.
    - `batch_argnums`: the positions in the signature of `fun` of the arguments that are
        batches: every array in them has its rows along axis 0. A call may pass them by
        name, but not the first argument, which cannot be a batch. Negative numbers
        count from the last position in use. `()` means none. Defaults to 1.
    - `batch_argnames`: the names of more arguments that are batches. Defaults to none.
    - `microbatch_size`: the number of rows per microbatch. It need not divide the
        number of rows. `None` means one microbatch of the whole batch.
    - `aux_accumulator`: how to combine the other results of `fun`, as in
        [`eqopt.microbatching.microbatch`][]. Defaults to the mean.
    - `weights`: the weight of each row, as in [`eqopt.microbatching.microbatch`][].
        `fun` must return the mean with these weights.
    - `num_real_microbatches`: as in [`eqopt.microbatching.microbatch`][]: the number of
        microbatches to evaluate. The results are means over these. Their rows are not
        the first rows of the batch, so do not put padding at its end; see there.

    **Returns:**

    A function with the arguments of `fun` that returns `(value, gradient)`, or
    `((value, aux), gradient)` with `has_aux`.

    **Raises:**

    The `ValueError`s of [`eqopt.microbatching.microbatch`][], and a `ValueError` if the
    first argument is a batch.
    """
    size = check_size(microbatch_size)
    check_accumulator(aux_accumulator, "aux_accumulator")
    argnums = (batch_argnums,) if isinstance(batch_argnums, int) else batch_argnums
    argnames = (batch_argnames,) if isinstance(batch_argnames, str) else batch_argnames
    if len(argnums) + len(argnames) == 0:
        raise ValueError(
            "`batch_argnums` and `batch_argnames` are both empty. Pass at least one "
            "argument that is a batch."
        )
    out = _MicroValueAndGrad(
        fun,
        has_aux,
        tuple(argnums),
        tuple(argnames),
        size,
        aux_accumulator,
        weights,
        num_real_microbatches,
    )
    return eqx.module_update_wrapper(out)


class _MicroValueAndGrad(eqx.Module):
    fun: Callable[..., Any]
    has_aux: bool
    batch_argnums: tuple[int, ...]
    batch_argnames: tuple[str, ...]
    microbatch_size: int | None
    aux_accumulator: PyTree
    weights: Any
    num_real_microbatches: Any

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.fun

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        places = list_places(self.fun, args, kwargs)
        batch = find_places(places, self.batch_argnums, self.batch_argnames, "batch_")
        if 0 in batch:
            raise ValueError(
                f"`batch_argnums={self.batch_argnums}` contains the first argument, "
                "but the gradient is with respect to it. Pass the model first, then "
                "the batch."
            )
        # Without the microbatches that `num_real_microbatches` omits.
        mean = AccumulationType.RUNNING_MEAN
        value_and_grad = microbatch(
            eqx.filter_value_and_grad(self.fun, has_aux=self.has_aux),
            [place for place in batch if isinstance(place, int)],
            self.microbatch_size,
            ((mean, self.aux_accumulator), mean) if self.has_aux else mean,
            argnames=[place for place in batch if isinstance(place, str)],
            weights=self.weights,
            num_real_microbatches=self.num_real_microbatches,
        )
        return value_and_grad(*args, **kwargs)
