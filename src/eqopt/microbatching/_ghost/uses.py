"""Finds where a traced function multiplies values by its parameters."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from ..._jax_internals import ClosedJaxpr, JaxprEqn
from .._interpret import dtype_of, flattened, shape_of
from .factors import Layout, Picks, Rows
from .kinds import KINDS, Axes


class Use(NamedTuple):
    """A parameter is multiplied by values that depend on the example.

    **Attributes:**

    - `eqn`: the equation of the product, which is linear in the parameter.
    - `operand`: the position of the parameter among the inputs of the equation.
    - `layout`: how the gradient factors.
    - `is_real`: whether the parameter is real, even if the other values are complex.
    """

    eqn: JaxprEqn
    operand: int
    layout: Layout
    is_real: bool

    @property
    def is_lookup(self) -> bool:
        return KINDS[self.eqn.primitive.name].is_lookup

    def factor(self, inputs: Sequence[Any], cotangent: Array) -> Rows | Picks:
        kind = KINDS[self.eqn.primitive.name]
        factor = kind.factor(self.eqn, self.operand, self.layout, inputs, cotangent)
        return factor.real if self.is_real else factor


class Uses(NamedTuple):
    """All uses of a parameter.

    **Attributes:**

    - `linear`: the uses whose gradient can be factored.
    - `others`: for every other equation that combines it with values that depend on the
        example, the size of the largest output.
    """

    linear: list[Use]
    others: list[int]

    @property
    def factors(self) -> bool:
        """Whether the whole gradient can be factored."""
        if not self.linear or self.others:
            return False
        # Look-ups determine the sides of the matrix; products can be transposed.
        lookups = [use.layout for use in self.linear if use.is_lookup]
        first = (lookups or [self.linear[0].layout])[0]
        alike = all(x.layout in (first, first.swapped) for x in self.linear)
        return alike and all(layout == first for layout in lookups)


def find_uses(closed: ClosedJaxpr, count: int, num_mapped: int) -> list[Uses]:
    """How the first `count` arguments of a function without calls are used.

    The `num_mapped` arguments after them depend on the example.
    """
    jaxpr = closed.jaxpr
    found = [Uses([], []) for _ in range(count)]
    mapped = set(jaxpr.invars[count : count + num_mapped])
    # The parameters that each variable depends on, and the variables that are a
    # parameter, possibly with other axes or in another dtype.
    made_of: dict[Any, set[int]] = {}
    views: dict[Any, tuple[int, Axes]] = {}
    for i, var in enumerate(jaxpr.invars[:count]):
        shape = shape_of(var)
        made_of[var] = {i}
        views[var] = i, tuple(None if n == 1 else k for k, n in enumerate(shape))
    equations, outputs = flattened(closed)
    for eqn, inputs in equations:
        operands = [k for k, var in enumerate(inputs) if var in made_of]
        indices = set().union(*(made_of[inputs[k]] for k in operands))
        if not any(var in mapped for var in inputs):
            if indices:
                made_of |= dict.fromkeys(eqn.outvars, indices)
            if len(inputs) == 1 and inputs[0] in views:
                index, axes = views[inputs[0]]
                moved = _moved(eqn, axes)
                if moved is not None:
                    views[eqn.outvars[0]] = index, moved
            continue
        mapped.update(eqn.outvars)
        use = None
        if len(operands) == 1 and inputs[operands[0]] in views:
            index, axes = views[inputs[operands[0]]]
            use = _use(eqn, operands[0], axes, jaxpr.invars[index])
            if use is not None:
                found[index].linear.append(use)
        if use is None:
            size = max([math.prod(shape_of(v)) for v in eqn.outvars], default=0)
            for i in indices:
                found[i].others.append(size)
    # The first output is the loss. If it does not depend on an example, it is not an
    # input of anything.
    for i in made_of.get(outputs[0], ()):
        found[i].others.append(1)
    return found


def _use(eqn: JaxprEqn, operand: int, axes: Axes, parameter: Any) -> Use | None:
    kind = KINDS.get(eqn.primitive.name)
    layout = kind and kind.layout(eqn, operand, axes, shape_of(parameter))
    if layout is None:
        return None
    is_real = not jnp.issubdtype(dtype_of(parameter), jnp.complexfloating)
    return Use(eqn, operand, layout, is_real)


def _moved(eqn: JaxprEqn, axes: Axes) -> Axes | None:
    """The axes of the output, if the equation only moves axes of a parameter."""
    name, params = eqn.primitive.name, eqn.params
    if name == "copy":
        return axes
    if name == "convert_element_type":
        # A conversion to real numbers drops a part, which has no gradient.
        kinds = [jnp.floating, jnp.complexfloating]
        old, new = (
            [jnp.issubdtype(dtype, kind) for kind in kinds]
            for dtype in (dtype_of(eqn.invars[0]), params["new_dtype"])
        )
        return axes if old == new or (old[0] and new[1]) else None
    if name == "transpose":
        return tuple(axes[i] for i in params["permutation"])
    if name in ("reshape", "squeeze", "broadcast_in_dim"):
        # Only axes of size 1 may be added or removed.
        old, new = shape_of(eqn.invars[0]), shape_of(eqn.outvars[0])
        if [n for n in old if n != 1] != [n for n in new if n != 1]:
            return None
        rest = iter(axis for axis in axes if axis is not None)
        return tuple(None if n == 1 else next(rest) for n in new)
    return None
