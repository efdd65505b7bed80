"""Optimizer state that is sharded while the parameters are replicated."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec as P

from .._core import AbstractTransformation, AbstractWrapper, Call
from .._errors import InputError
from .._jax_internals import is_traced
from .._trees.leaves import is_parameter
from .._trees.sharding import on_automatic_axes, sharded_like, shardings_of
from .._trees.states import check_state
from .._trees.stored import is_elsewhere
from .._types import Model, Params, PyTree, State
from .meshes import axis_names, mesh_with


class ZeRO1State(eqx.Module):
    """The state of [`eqopt.ZeRO1`][].

    **Attributes:**

    - `inner_state`: the inner state, sharded, and padded if an axis does not divide
        evenly. Codes, scales and other parts of stored arrays are padded one by one.
    - `shapes`: the shapes of its arrays without the padding, static.
    """

    inner_state: State
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    @property
    def _layout_shapes(self) -> tuple[tuple[int, ...] | None, ...]:
        """For checkpoints: the shapes of padded arrays without the padding."""
        pairs = zip(jtu.tree_leaves(self.inner_state), self.shapes, strict=True)
        return tuple(None if np.shape(x) == shape else shape for x, shape in pairs)

    @property
    def _without_padding(self) -> "ZeRO1State":
        """The shapes of the inner transformation's own state, in a state like this."""
        leaves, treedef = jtu.tree_flatten(self.inner_state)
        shapes = (
            jax.ShapeDtypeStruct(shape, x.dtype) if _is_some_array(x) else x
            for x, shape in zip(leaves, self.shapes, strict=True)
        )
        return ZeRO1State(treedef.unflatten(shapes), self.shapes)


class ZeRO1(AbstractWrapper):
    r"""Shards optimizer state over the data-parallel axis; parameters stay replicated.

    This is stage 1 of ZeRO. With $N$ devices along the axis, each device keeps $1/N$ of
    the state, computes $1/N$ of the update, and gathers the rest of the new parameters
    from the others. The gradients, which an all-reduce would sum over all devices, are
    then only needed in shards, so a reduce-scatter is enough. With the all-gather of
    the parameters, the total number of bytes sent is the same as without ZeRO.

    Every array of the state is divided along one of its axes: the first axis for which
    $\lceil n/N \rceil / n$ is smallest, where $n$ is its size. If $N$ does not divide
    $n$, the array is padded with zeros to $N \lceil n/N \rceil$. So a device holds
    $\lceil n/N \rceil / n$ of each array. Scalars and keys are not divided.

    The inner transformation sees whole arrays without padding; XLA distributes them. So
    for any `inner`, the result equals the result without this wrapper, except for
    rounding: XLA adds the communication for norms, trust ratios and matrix products.
    Use it under `jit`; without `jit`, it is correct but slow. On one device, it equals
    `inner`.

    Automatic and explicit axes give the same result. On a mesh with several axes, the
    parameters may be sharded over the others, and keep these shards. The state is
    sharded over this axis, and over other automatic axes as XLA chooses.

    !!! example

        ```python
        auto = jax.sharding.AxisType.Auto
        mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(auto,))
        opt = eqopt.ZeRO1(eqopt.AdamW(1e-3), "data", mesh)
        replicated = NamedSharding(mesh, PartitionSpec())
        model = eqx.filter_shard(model, replicated)
        state = eqx.filter_jit(opt.init)(model)
        ```

    **Arguments:**

    - `inner`: the whole optimizer: put clipping, averages and accumulators inside.
    - `axis_name`: the name of a mesh axis, or a tuple of names. Defaults to `"data"`.
    - `mesh`: a `jax.sharding.Mesh`, for code without `jax.set_mesh(mesh)`. A mesh that
        is set takes precedence, and a mesh with explicit axes must be set. Defaults to
        `None`, for the mesh that is set.

    **Raises:**

    In `init` and `update`, a `ValueError` if there is no mesh, if it has no such axis,
    if that axis is manual (inside `jax.shard_map`), or if a mesh with explicit axes is
    not set. In `init`, a `ValueError` if `inner` holds an `Offload`, which goes outside.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{rajbhandari2020zero,
            title={{ZeRO}: Memory Optimizations Toward Training Trillion Parameter
                   Models},
            author={Rajbhandari, Samyam and Rasley, Jeff and Ruwase, Olatunji and
                    He, Yuxiong},
            booktitle={International Conference for High Performance Computing,
                       Networking, Storage and Analysis (SC20)},
            year={2020}
        }
        ```
    """

    _loads = "params"

    inner: AbstractTransformation
    axis_name: str | tuple[str, ...] = eqx.field(static=True, default="data")
    mesh: Mesh | AbstractMesh | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ZeRO1State:
        axis = _Axis.of(self)

        def init(inner, params):
            return axis.stored(inner.init(axis.split(params)))

        # Without shardings, which are not needed here.
        shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
        shapes = jtu.tree_map(lambda x: shape(x) if eqx.is_array(x) else x, params)
        shapes = eqx.filter_eval_shape(self.inner.init, shapes)
        if any(map(is_elsewhere, jtu.tree_leaves(shapes, is_leaf=is_elsewhere))):
            raise InputError(
                "`inner` has an `Offload`, which keeps its state on the host. Put "
                "`Offload` outside: `eqopt.Offload(eqopt.ZeRO1(opt, ...))`."
            )
        shardings = axis.shardings(shapes)
        state = on_automatic_axes(init, self.inner, params, shardings=shardings)
        return ZeRO1State(state, tuple(map(np.shape, jtu.tree_leaves(shapes))))

    def handle(self, call: Call, state: ZeRO1State) -> tuple[Any, State]:
        updates, params, extra, is_step, _ = call
        axis, stored = _Axis.of(self), state.inner_state
        axis.check(state)
        # The tree whose layout the result gets.
        like = params if is_step else updates

        def run(inner, updates, stored, params, like, extra):
            full = axis.restored(stored, state.shapes)
            split = Call(axis.split(updates), axis.split(params), extra, is_step)
            new, full = split.run(inner, full)
            return axis.whole(new, like), axis.stored(full)

        arguments = self.inner, updates, stored, params, like, extra
        shardings = shardings_of(like), axis.shardings(stored)
        new, stored = on_automatic_axes(run, *arguments, shardings=shardings)
        return new, ZeRO1State(stored, state.shapes)

    def eval_params(self, state: State, params: Model) -> Model:
        check_state(self, state)
        axis = _Axis.of(self)

        def evaluated(inner, stored, params):
            full = axis.restored(stored, state.shapes)
            return axis.whole(inner.eval_params(full, axis.split(params)), params)

        arguments = self.inner, state.inner_state, params
        shardings = shardings_of(params)
        return on_automatic_axes(evaluated, *arguments, shardings=shardings)


class _Axis(eqx.Module):
    """An axis of a mesh, and how arrays are divided along it."""

    name: str | tuple[str, ...]
    mesh: Mesh | AbstractMesh
    size: int

    @staticmethod
    def of(owner: ZeRO1) -> "_Axis":
        name, purpose = owner.axis_name, "the batch is sharded"
        mesh = mesh_with(name, owner.mesh, purpose)
        return _Axis(name, mesh, math.prod(mesh.shape[one] for one in axis_names(name)))

    def split(self, tree: PyTree) -> PyTree:
        """The same values, in shards."""
        divide = lambda x: self._cut(self._padded(x), x.shape)
        return jtu.tree_map(lambda x: divide(x) if is_parameter(x) else x, tree)

    def stored(self, state: State) -> State:
        return jtu.tree_map(lambda x: self._padded(x) if _is_divided(x) else x, state)

    def check(self, state: ZeRO1State) -> None:
        """Raises an error if the state is for another number of devices."""
        leaves = jtu.tree_leaves_with_path(state.inner_state)
        for (path, x), shape in zip(leaves, state.shapes, strict=True):
            expected = self._padded_shape(shape)
            if _is_divided(x) and x.shape != expected:
                raise InputError(
                    f"`state.inner_state{jtu.keystr(path)}` has shape "
                    f"{[*x.shape]}, but {[*expected]} on {self.size} devices. A state is "
                    "for one number of devices: `eqopt.tree.migrate(opt, state, model)`."
                )

    def restored(self, stored: State, shapes: tuple[tuple[int, ...], ...]) -> State:
        leaves, treedef = jtu.tree_flatten(stored)
        return treedef.unflatten(
            self._cut(x, shape) if _is_divided(x) else x
            for x, shape in zip(leaves, shapes, strict=True)
        )

    def whole(self, tree: PyTree, like: PyTree) -> PyTree:
        """Gathers the shards: every leaf gets the layout of the leaf of `like`."""
        gather = lambda x, y: self._gathered(x, y) if is_parameter(x) else x
        return jtu.tree_map(gather, tree, like)

    def shardings(self, state: State) -> PyTree:
        """The shardings of a stored state."""
        spec = lambda x: self._spec(x.shape) if _is_divided(x) else P()
        arrays = eqx.filter(state, _is_some_array)
        return jtu.tree_map(lambda x: NamedSharding(self.mesh, spec(x)), arrays)

    def _divided(self, shape: tuple[int, ...]) -> int | None:
        """The axis along which an array is divided, if any."""
        if math.prod(shape) <= 1:
            return None
        share = lambda i: math.ceil(shape[i] / self.size) / shape[i]
        return min(range(len(shape)), key=share)

    def _padded_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        padded, i = list(shape), self._divided(shape)
        if i is not None:
            padded[i] = self.size * math.ceil(shape[i] / self.size)
        return tuple(padded)

    def _spec(self, shape: tuple[int, ...]) -> P:
        i = self._divided(shape)
        if i is None:
            return P()
        return P(*[None] * i, self.name)

    def _padded(self, x):
        if self.size == 1:
            return x
        shape = self._padded_shape(x.shape)
        spec = list(self._spec(shape))
        if len(self.mesh.axis_names) > 1:
            others = [P.UNCONSTRAINED] * (len(shape) - len(spec))
            spec = [P.UNCONSTRAINED if s is None else s for s in spec] + others
        if shape != x.shape:
            x = jnp.pad(x, [(0, m - n) for m, n in zip(shape, x.shape, strict=True)])
        return jax.lax.with_sharding_constraint(x, self._sharding(P(*spec)))

    def _cut(self, x, shape):
        return x if x.shape == shape else x[tuple(map(slice, shape))]

    def _gathered(self, x, like):
        if self.size == 1:
            return x
        if len(self.mesh.axis_names) == 1:
            return jax.lax.with_sharding_constraint(x, self._sharding(P()))
        i = self._divided(x.shape)
        if not is_traced(x) or i is None:
            return sharded_like(like, x)

        # Without `shard_map`, XLA may leave the result in shards.
        def gathered(shard, like):
            full = jax.lax.all_gather(shard, self.name, axis=i, tiled=True)
            return sharded_like(like, self._cut(full, like.shape))

        return jax.shard_map(
            gathered,
            mesh=self._sharding(P()).mesh,
            in_specs=(self._spec(x.shape), P()),
            out_specs=P(),
            axis_names={*axis_names(self.name)},
            check_vma=False,
        )(self._padded(x), like)

    def _sharding(self, spec: P) -> NamedSharding:
        here = jax.sharding.get_abstract_mesh()
        return NamedSharding(self.mesh if here.empty else here, spec)


def _is_some_array(x):
    return eqx.is_array(x) or isinstance(x, jax.ShapeDtypeStruct)


def _is_divided(x):
    if not _is_some_array(x):
        return False
    # The bits of a key are an array of this dtype.
    return x.dtype != jnp.uint32 and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
