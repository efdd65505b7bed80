"""What the steps of methods for matrices send and allocate on several devices."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import eqopt

from ..pages import markdown
from .collectives import Collective, collectives, hidden
from .program import bytes_in, bytes_per_device, placed, state_of


class MatrixLayout(NamedTuple):
    """Matrices, and where they are.

    **Attributes:**

    - `mesh`: the sizes of the axes of the mesh.
    - `axis`: the axis along which `eqopt.DistributeMatrices` divides the work.
    - `kinds`: for each kind of array, how many there are, their shape and partition.
    """

    mesh: dict[str, int]
    axis: str
    kinds: list[tuple[int, tuple[int, ...], P]]

    def shapes(self, devices: list[Any]) -> tuple[Mesh, list[jax.ShapeDtypeStruct]]:
        types = (AxisType.Auto,) * len(self.mesh)
        mesh = jax.make_mesh(
            (*self.mesh.values(),), (*self.mesh,), axis_types=types, devices=devices
        )
        each = [(shape, spec) for n, shape, spec in self.kinds for _ in range(n)]
        arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape, _ in each]
        return mesh, placed(arrays, [NamedSharding(mesh, spec) for _, spec in each])


LAYOUTS = {
    "fully sharded": MatrixLayout({"data": 8}, "data", [(64, (1024, 1024), P("data"))]),
    "tensor parallel": MatrixLayout(
        {"data": 2, "model": 4},
        "model",
        [(8, (1024, 768), P(None, "model")), (8, (768, 1024), P("model"))],
    ),
    "data parallel": MatrixLayout({"data": 8}, "data", [(8, (1024, 768), P())]),
    "experts": MatrixLayout(
        {"data": 8},
        "data",
        [
            (1, (3, 8, 384, 512), P(None, "data")),
            (1, (3, 8, 512, 384), P(None, "data")),
        ],
    ),
}


def _of_matrices(method: Callable) -> Callable[[], Any]:
    numbers = eqopt.MatrixDimensionNumbers(-2, -1)
    return lambda: method(1e-3, weight_dimension_numbers=numbers)


# Methods that work leaf by leaf have no use for `eqopt.DistributeMatrices`.
LEAFWISE = {
    "AdamW": lambda: eqopt.AdamW(1e-3),
    "AdamW, state in 8 bits": lambda: eqopt.StoreState(
        eqopt.AdamW(1e-3), eqopt.storage.BlockwiseQuantized()
    ),
}
METHODS = LEAFWISE | {
    method.__name__: _of_matrices(method)
    for method in (
        *(eqopt.Muon, eqopt.NorMuon, eqopt.AdaMuon, eqopt.Scion, eqopt.Dion2),
        *(eqopt.SOAP, eqopt.Shampoo, eqopt.KLShampoo, eqopt.PSGDKron),
    )
}
# All methods for the layout of most large models, and a telling sample for the others.
STEPS = [("fully sharded", name) for name in METHODS]
STEPS += [
    (layout, name)
    for layout in ("tensor parallel", "data parallel", "experts")
    for name in ("AdamW", "Muon", "SOAP")
]


class Step(NamedTuple):
    """What a step costs on one of several devices.

    **Attributes:**

    - `found`: all collectives.
    - `hidden`: how many of them take place during an iteration.
    - `params`: the bytes of all parameters.
    - `share`, `state`: the bytes of parameters and of the state on one device.
    - `temporary`: the temporary memory on one device.
    """

    found: list[Collective]
    hidden: int
    params: int
    share: int
    state: int
    temporary: int

    def sizes(self) -> dict[str, float]:
        """The results of collectives, in sizes of all parameters, without tiny ones."""
        found: dict[str, float] = {}
        for one in sorted(self.found):
            found[one.kind] = found.get(one.kind, 0.0) + one.size / self.params
        return {kind: round(x, 4) for kind, x in found.items() if x >= 0.005}


def counted(layout: str, method: str, devices: list[Any], is_divided: bool) -> Step:
    """Compiles the step of an optimizer, which gets the gradients in its shards."""
    matrices = LAYOUTS[layout]
    mesh, params = matrices.shapes(devices)
    opt = METHODS[method]()
    if is_divided:
        opt = eqopt.DistributeMatrices(opt, matrices.axis, mesh)
    state = state_of(opt, params)
    places = jax.tree.map(lambda x: x.sharding, (params, state))
    step = jax.jit(opt.step, donate_argnums=(1, 2), out_shardings=places)
    program: Any = step.lower(params, state, params).compile()
    text = program.as_text()
    return Step(
        collectives(text, with_loops=True),
        hidden(text),
        bytes_in(params),
        bytes_per_device(params),
        bytes_per_device(state),
        program.memory_analysis().temp_size_in_bytes,
    )


def steps(devices: list[Any]) -> Iterator[tuple[str, str, list[Step]]]:
    """Without and with `DistributeMatrices`, where both make sense."""
    for layout, method in STEPS:
        both = (False,) if method in LEAFWISE else (False, True)
        yield layout, method, [counted(layout, method, devices, x) for x in both]


def table(found: list[tuple[str, str, list[Step]]]) -> str:
    head = ["Layout and method", "Collectives", "Temporary", "State"]
    head += ["Distributed: collectives", "temporary", "state"]
    lines = []
    last = None
    for layout, method, both in found:
        name = method if layout == last else f"{layout}: {method}"
        last = layout
        cells = [cell for step in both for cell in _cells(step)]
        lines.append([name, *cells, *[""] * (6 - len(cells))])
    return markdown(head, lines)


def _cells(step: Step) -> list[str]:
    sizes = [f"{kind} {size:.2f}" for kind, size in step.sizes().items()]
    of_share = [f"{x / step.share:.1f}" for x in (step.temporary, step.state)]
    return ["<br>".join(sizes) or "nothing", *of_share]
