"""The matrices of a model, divided between devices for the work on them."""

from typing import Any

import equinox as eqx
from jax.sharding import AbstractMesh, Mesh

from .._core import AbstractTransformation, AbstractWrapper, Call
from .._matrices import Division, use_division
from .._types import Model, Params, State
from .meshes import axis_names, mesh_with


class DistributeMatrices(AbstractWrapper):
    """Each device computes its share of the matrices, instead of a part of each matrix.

    If matrices are sharded, the products of an iteration such as Newton-Schulz need
    communication in each of its steps. This wrapper exchanges the matrices instead. With
    $N$ devices along the axis, each one receives $1/N$ of the matrices as a whole,
    computes these, and sends the parts of the results back. That takes two all-to-alls,
    each with the bytes that a device has of the parameters. If the matrices are
    replicated, each device computes $1/N$ of them, and the results are gathered.

    Equal matrices are computed together, and many of them in parts. A stack of matrices,
    for example of layers or of experts, is divided along one of its own axes: the one
    that is divided most evenly, and the last if there are several. If this is the axis
    along which the stack is sharded, nothing is sent. The results are equal except for
    rounding.

    **Newton-Schulz iterations.** In [`eqopt.Muon`][], [`eqopt.NorMuon`][],
    [`eqopt.AdaMuon`][], [`eqopt.Scion`][], [`eqopt.Dion2`][] and
    [`eqopt.Orthogonalize`][], devices exchange the argument of the iteration and its
    result. One part can travel while another one is computed. The state and the
    parameters stay where they are, and so the state is the state of `inner`: it can be
    loaded with or without this wrapper. Dion2 selects its rows or columns before the
    exchange. If the number of equal matrices is not a multiple of $N$, some of them are
    computed twice, or the last few of them, if they are at most $N/2$, are left to XLA,
    as without this wrapper.

    **Preconditioners.** The state of [`eqopt.SOAP`][], [`eqopt.SOAPMuon`][],
    [`eqopt.MOSO`][], [`eqopt.Shampoo`][], [`eqopt.KLShampoo`][] and [`eqopt.PSGDKron`][]
    is larger than the parameters. So the state of a matrix is only on the device that
    computes this matrix, and devices exchange the gradients and the updates. Each part
    is written over the old state, so that a device needs little temporary memory for
    many matrices. This has consequences for the state:

    - It has one array for all equal matrices, with a new first axis that is divided
        between the devices. If their number is not a multiple of $N$, matrices of zeros
        are added. [`eqopt.tree.migrate`][] converts it for another number of devices,
        and from and to the state without this wrapper.
    - Each matrix needs an update in each step.
    - With `stagger`, all equal matrices take the same turn.
    - [`eqopt.StoreState`][] leaves these arrays as they are.

    **Other equations of matrices**, such as your own: devices exchange all arrays that
    the equation takes and returns, with the state. This pays only if the state is small.
    Methods that only take sums, such as [`eqopt.SinkGD`][], and everything that is not a
    matrix are left to XLA.

    Use it under `jit`, on automatic or explicit axes. On one device, it equals `inner`.

    !!! example

        ```python
        auto = jax.sharding.AxisType.Auto
        mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(auto,))
        opt = eqopt.DistributeMatrices(eqopt.Muon(0.02), "data", mesh)
        ```

    **Arguments:**

    - `inner`: the transformation, usually a whole optimizer.
    - `axis_name`: the name of a mesh axis, or a tuple of names: the axes along which the
        matrices are sharded. For tensor-parallel matrices, this is the axis of the
        model. Defaults to `"data"`.
    - `mesh`: a `jax.sharding.Mesh`, for code without `jax.set_mesh(mesh)`. A mesh that
        is set takes precedence, and a mesh with explicit axes must be set. Defaults to
        `None`, for the mesh that is set.

    **Raises:**

    In `init` and `update`, a `ValueError` if there is no mesh, if it has no such axis, if
    that axis is manual (inside `jax.shard_map`), or if a mesh with explicit axes is not
    set. In `update`, a `ValueError` if the state of a preconditioner is for other
    matrices, or for another number of devices, or was made without this wrapper.
    """

    inner: AbstractTransformation
    axis_name: str | tuple[str, ...] = eqx.field(static=True, default="data")
    mesh: Mesh | AbstractMesh | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> State:
        with use_division(self._division()):
            return self.inner.init(params)

    def eval_params(self, state: State, params: Model) -> Model:
        return self.inner.eval_params(state, params)

    def handle(self, call: Call, state: State) -> tuple[Any, State]:
        with use_division(self._division()):
            return call.run(self.inner, state)

    def _division(self) -> Division | None:
        name, purpose = self.axis_name, "the matrices are sharded"
        mesh = mesh_with(name, self.mesh, purpose)
        division = Division(mesh, axis_names(name))
        return division if division.size > 1 else None
