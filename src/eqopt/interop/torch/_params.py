"""The parameters of a model from torch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.tree_util as jtu

from ..._trees.leaves import is_leaf
from ..._types import Mask, Params
from ._arrays import array_of, fitted
from ._places import Given, places


def params_from_torch(
    tensors: Iterable[Any],
    params: Params,
    *,
    paths: Sequence[str | None] | None = None,
    transpose: Mask | None = None,
) -> Params:
    """The model with the parameters of a torch module.

    !!! example

        ```python
        model = params_from_torch(network.parameters(), model)
        ```

    **Arguments:**

    - `tensors`: `network.parameters()`, `network.named_parameters()` or
        `network.state_dict()`; or NumPy arrays, alone or in a dictionary with their
        names. A `state_dict` may also have buffers: pass `None` for them in `paths`.
    - `params`: the model.
    - `paths`: the key path in the model of each tensor in order, such as
        `".layers[0].weight"`, and `None` for a tensor that the model does not have. By
        default, tensors are matched by name if every name is a key path of the model
        (`layers.0.weight` is `.layers[0].weight`). Otherwise, they are matched in order
        if their shapes agree in order, or by shape if no shape occurs twice. The bias
        of an `eqx.nn.Conv`, which has more axes here, agrees with torch's.
    - `transpose`: which matrices of the model are the transposes of torch's: a tree of
        bools like the model or a prefix of it (`True` for all matrices), or a function
        of the model that returns one, such as an [`eqopt.groups.Selector`][]. The last
        two axes are swapped. Equinox's linear layers, convolutions, embeddings and
        norms have the same layout as torch's and do not need this. The kernel of a
        transposed convolution is flipped, too: pass it in Equinox's layout.

    **Returns:**

    `params`, with the values of torch in the dtypes of the model. A parameter that is
    not in `paths` stays unchanged.

    **Raises:**

    A `ValueError` that names key paths if parameters cannot be matched, if shapes
    differ, if a parameter is complex, or if the dtype of the model would lose digits.
    """
    tensors = tensors.items() if isinstance(tensors, Mapping) else tensors
    pairs = [x if isinstance(x, tuple) else (None, x) for x in tensors]
    arrays = [array_of(x) for _, x in pairs]
    given = [
        Given(i, 0, x.shape, name)
        for i, ((name, _), x) in enumerate(zip(pairs, arrays, strict=True))
    ]
    where = places("params_from_torch", given, params, paths, transpose)

    def taken(path: tuple, x: Any) -> Any:
        name = jtu.keystr(path)
        if name not in where.given:
            return x
        source = arrays[where.given[name].key]
        return fitted(source, x, f"The parameter `{name}`", name in where.transposed)

    return jtu.tree_map_with_path(taken, params, is_leaf=is_leaf)
