"""Two leaves in one loop, where XLA on a CPU would run one loop after the other.

The products of a small matrix are too short to divide between cores: each core waits for
the other, once per product. In one loop, each core computes the products of its own leaf.

Measured on two cores, float32: a step of Muon for 48 matrices of 256 x 256 takes 128 ms
instead of 144. For 512 x 512 it gains 1 to 3 %, and for 1024 x 1024 nothing.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, jaxpr_as_fun
from jaxtyping import Array, TypeCheckError

from .._equations import KERNELS, ShapeMismatch
from .._jaxprs import bind, equations, in_lockstep
from .._typecheck import no_type_check
from .order import LARGE, runs_alone


@no_type_check
def groups(
    run: Any, packed: Array, rows: Mapping[int, list]
) -> Iterator[Mapping[int, list]]:
    """The rows of arguments of a kernel, one by one, or two that share a loop.

    Two leaves share a loop if they are small, are neighbours and have the same types,
    and if the kernel has a loop, but no decomposition: LAPACK uses all cores for one.
    """
    waiting = {}
    for i, row in rows.items():
        if waiting and not _share_loop(run, packed, [*waiting.values(), row]):
            yield waiting
            waiting = {}
        waiting[i] = row
        if len(waiting) == 2:
            yield waiting
            waiting = {}
    if waiting:
        yield waiting


def _share_loop(run: Any, packed: Array, pair: list[list]) -> bool:
    row, other = pair
    g = row[0]
    if g.size > LARGE or not runs_alone(g) or _types(row) != _types(other):
        return False
    try:
        jaxpr = run.trace(packed, *row).jaxpr
    except (ShapeMismatch, TypeCheckError):
        return False  # it fails again when it runs alone, with its key path
    names = {eqn.primitive.name for eqn in equations(jaxpr)}
    return _has_loop(jaxpr) and names.isdisjoint(_DECOMPOSITIONS)


def _has_loop(jaxpr: ClosedJaxpr) -> bool:
    below = filter(None, map(_for_cpu, jaxpr.eqns))
    has_own = any(eqn.primitive.name == "scan" for eqn in jaxpr.eqns)
    return has_own or any(map(_has_loop, below))


def _for_cpu(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """What a CPU computes, of an equation that depends on the platform."""
    platforms = eqn.params.get("branches_platforms") or ()
    for branch, names in zip(eqn.params.get("branches", ()), platforms, strict=False):
        if names is None or "cpu" in names:
            return branch
    return None


def _types(row: list) -> Any:
    leaves, treedef = jax.tree.flatten(row)
    return treedef, [*map(jax.typeof, leaves)]


_DECOMPOSITIONS = {"eigh", "geqrf", "householder_product", "lu", "qr", "svd"}


@functools.lru_cache(KERNELS)  # one function for all pairs, so it is traced once
@no_type_check
def in_one_loop(run: Any) -> Callable:
    """A function that computes `run(packed, *row)` for rows of the same types."""

    @jax.jit
    def of_all(packed, *rows):
        traced = run.trace(packed, *rows[0])
        outs = _in_lockstep(traced.jaxpr, [jax.tree.leaves((packed, x)) for x in rows])
        return [
            jax.tree.unflatten(jax.tree.structure(traced.out_info), x) for x in outs
        ]

    return of_all


def _in_lockstep(closed: ClosedJaxpr, rows: list[list[Array]]) -> list[list[Array]]:
    """The results of a traced function for each row; equal loops are one loop."""

    def compute(eqn: JaxprEqn, rows: list[list[Any]]) -> list[Any]:
        if eqn.primitive.name == "scan":
            return _loop(eqn, rows)
        if branch := _for_cpu(eqn):
            return _in_lockstep(branch, [inputs[1:] for inputs in rows])
        return [bind(eqn, inputs) for inputs in rows]

    return in_lockstep(closed.jaxpr, closed.consts, rows, compute)


def _loop(eqn: JaxprEqn, inputs: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    params = eqn.params
    n, end = params["num_consts"], params["num_consts"] + params["num_carry"]
    body = jaxpr_as_fun(params["jaxpr"])

    def step(carries, slices):
        outs = [
            body(*x[:n], *carry, *some)
            for x, carry, some in zip(inputs, carries, slices, strict=True)
        ]
        count = params["num_carry"]
        return [out[:count] for out in outs], [out[count:] for out in outs]

    carries, found = lax.scan(
        step,
        [[*x[n:end]] for x in inputs],
        [[*x[end:]] for x in inputs],
        params["length"],
        params["reverse"],
        params["unroll"],
    )
    return [[*carry, *out] for carry, out in zip(carries, found, strict=True)]
