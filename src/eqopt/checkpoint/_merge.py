"""The weighted mean of several checkpoints, as a decay of the learning rate after it."""

import collections
import contextlib
import itertools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import jax.tree_util as jtu
import numpy as np

from .._errors import InputError
from .._trees.leaves import is_parameter
from .._trees.stored import put_back
from .._types import PyTree
from ._file import as_saved, is_saved, opened, read_leaf


Decay: TypeAlias = Literal["linear", "cosine", "1-sqrt"]

# The learning rate of a decay from 1 to 0, at a fraction of its length.
_DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda x: 1 - x,
    "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2,
    "1-sqrt": lambda x: 1 - math.sqrt(x),
}


def merge(
    paths: Sequence[str | os.PathLike[str]],
    like: PyTree,
    where: Callable[[Any], Any],
    weights: Decay | Sequence[float | int] = "linear",
) -> Any:
    r"""Averages the models of several checkpoints, instead of decaying the learning rate.

    $$\bar\theta = \sum_{j=1}^n c_j \theta_j
      = \theta_1 + \sum_{j=2}^n w_j\, (\theta_j - \theta_{j-1}), \qquad
      w_j = \sum_{i=j}^n c_i,$$

    for the checkpoints $\theta_1, …, \theta_n$ of a run with a constant learning rate. So
    the mean multiplies the updates before checkpoint $j$ by $w_j$. This is a decay whose
    shape you choose when the run is over: `"linear"`, for example, has the weights
    $c_j = 1 / n$.

    It is not the same as a real decay, which would have seen other gradients. All steps
    between two checkpoints share a weight. According to the authors, the length of the
    window from the first checkpoint to the last one matters most.

    !!! example

        ```python
        paths = ["600.eqx", "700.eqx", "800.eqx", "900.eqx"]
        for path in paths:  # train further before each
            eqopt.checkpoint.save(path, (model, state))

        like = eqx.filter_eval_shape(lambda: (model, opt.init(model)))
        merged = eqopt.checkpoint.merge(paths, like, lambda saved: saved[0], "1-sqrt")
        ```

    The statistics of batch normalization belong to the parameters that they were
    computed with: compute them again for the result. Do not continue with the old state
    of the optimizer; make a new one. With [`eqopt.StoreParams`][], the model has rounded
    parameters: save `opt.full_params(state, model)`, too, and merge this.

    Do not use it for checkpoints of different runs, or of a run whose learning rate has
    already decayed. To average all steps, not only those with a checkpoint, train with
    [`eqopt.ParamEMA`][] or [`eqopt.SWA`][].

    **Arguments:**

    - `paths`: the files of [`eqopt.checkpoint.save`][], the oldest first. All of them
        have the same structure.
    - `like`: a tree like the saved ones, as in [`eqopt.checkpoint.load`][].
    - `where`: a function that returns the model, or another part, of a tree like
        `like`, as in `eqx.tree_at`. Only this part is merged and returned.
    - `weights`: the shape of the decay, `"linear"`, `"cosine"` or `"1-sqrt"`; or the
        weights $c$, a number for each file, with the sum 1. Then $w_j = f((j - 1) / n)$
        with $f(x) = 1 - x$, $(1 + \cos \pi x) / 2$ or $1 - \sqrt x$. Defaults to
        `"linear"`.

    **Returns:**

    The part of `like` that `where` selects, with the mean of each floating-point or
    complex array of at least 16 bits. It is computed in at least float32, and rounded
    to the dtype of the array. Integers, random keys and Python numbers are from the last
    file. The files are read together, leaf by leaf: in addition to the result, only a few
    arrays of the size of one leaf are in memory.

    **Raises:**

    The errors of [`eqopt.checkpoint.load`][] for each file. A `ValueError` if there is no
    file, or if there are not as many weights as files, or if their sum is not 1.

    ??? cite "Reference"

        ```bibtex
        @article{tian2025wsm,
            author = {Tian, Changxin and Wang, Jiapeng and Zhao, Qian and Chen, Kunlong
                      and Liu, Jia and Liu, Ziqi and Mao, Jiaxin and Zhao, Wayne Xin and
                      Zhang, Zhiqiang and Zhou, Jun},
            title = {{WSM}: Decay-Free Learning Rate Schedule via Checkpoint Merging for
                     {LLM} Pre-training},
            journal = {arXiv:2507.17634},
            year = {2025},
        }
        ```
    """
    factors = _factors(weights, len(paths))
    leaves, treedef = jtu.tree_flatten_with_path(like)
    # A tree of positions shows which leaves `where` selects.
    part = where(treedef.unflatten(range(len(leaves))))
    selected, merged = set(jtu.tree_leaves(part)), {}
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(opened(path, like)) for path in paths]
        for i, (at, x) in enumerate(leaves):
            if is_saved(x):
                arrays = (read_leaf(file) for file, _ in files)
                is_mean = i in selected and is_parameter(x)
                new = _mean(arrays, factors, x.dtype) if is_mean else _last(arrays)
                if i in selected:
                    x = as_saved(new, x, jtu.keystr(at), files[-1][1])
            merged[i] = x
    return put_back(jtu.tree_map(merged.__getitem__, part))


def _mean(arrays: Iterable[np.ndarray], factors: Sequence[float], dtype: Any):
    total: Any = 0.0
    wide = np.result_type(dtype, np.float32)
    for factor, x in zip(factors, arrays, strict=True):
        if factor:  # zero times infinity is NaN
            total = total + factor * x.view(dtype).astype(wide)
    return np.asarray(total).astype(dtype)


def _last(arrays: Iterable[np.ndarray]) -> np.ndarray:
    return collections.deque(arrays, maxlen=1).pop()  # one at a time in memory


def _factors(weights: Decay | Sequence[float | int], n: int) -> list[float]:
    """The weight of each of `n` checkpoints."""
    if isinstance(weights, str):
        rates = [*(_DECAYS[weights](j / n) for j in range(n)), 0.0]
        weights = [w - after for w, after in itertools.pairwise(rates)]
    factors = [float(x) for x in weights]
    if len(factors) != n or not abs(sum(factors) - 1) < 1e-6:  # NaN is not 1
        problem = f"`weights` must be {n} numbers with the sum 1, but is {factors}."
        raise InputError(problem)
    return factors
