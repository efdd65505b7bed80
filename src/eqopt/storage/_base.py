"""The base classes of storages, for arrays of a state and for parameters."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.tree_util as jtu
from jaxtyping import Array, Inexact

from .._arguments.annotations import returned_type
from .._arguments.construction import Module
from .._errors import InputError
from .._trees.stored import AbstractHidden, AbstractStored
from .._types import Nonnegative as Nonnegative


class Slot(NamedTuple):
    """Which array of a state, or which parameter, should be stored.

    **Attributes:**

    - `place`: a number that no other array of the same kind has, so that random
        keys differ.
    - `nonnegative`: whether it is in a field of a state that is never negative, such as
        a second moment: a field annotated [`Nonnegative`][eqopt._types.Nonnegative].
    """

    place: int
    nonnegative: bool = False


class AbstractStateStorage(Module):
    """A way to store arrays of a state, for [`eqopt.StoreState`][].

    Subclass it and implement `keep`.
    """

    @abc.abstractmethod
    def keep(self, x: Inexact[Array, "..."], slot: Slot) -> AbstractStored:
        """The object that stores `x`, an array of a new state.

        **Arguments:**

        - `x`: a real floating-point array with at least one element.
        - `slot`: the position of `x`, and its properties.
        """

    def _may_have_kept(self, x: AbstractStored) -> bool:
        """Whether `keep` may have made `x`, which is in a state."""
        return isinstance(x, returned_type(type(self).keep))


class AbstractParamStorage(Module):
    """A way to store parameters in two parts, for [`eqopt.StoreParams`][].

    Subclass it and implement `hide`.
    """

    @abc.abstractmethod
    def hide(self, p: Inexact[Array, "..."], slot: Slot) -> AbstractHidden | None:
        """The initial hidden part of a parameter with the value `p`.

        **Returns:**

        The hidden part, in separate buffers. `None` if the parameter should stay
        unchanged, for example because it already has full precision.

        **Raises:**

        A `TypeError` if the parameter can neither be stored this way nor stay
        unchanged.
        """

    def _may_have_hidden(self, x: AbstractHidden) -> bool:
        """Whether `hide` may have made `x`, which is in a state."""
        return isinstance(x, returned_type(type(self).hide))


def check_made_by(
    storage: Any, made: Sequence[tuple[Any, Any]], fits: Callable, fix: str
) -> None:
    """Raises if none of the stored leaves `made` is from this storage.

    Otherwise, another storage in the optimizer of a resumed run would do nothing.
    `made` has pairs of a key path and a leaf. Some may be from a transformation inside.
    """
    if not made or any(fits(x) for _, x in made):
        return
    path, x = made[0]
    raise InputError(
        f"`storage` is {storage}, but {getattr(x, '_made_by', 'another one')} made the "
        f"{type(x).__name__} at `{jtu.keystr(path)}` in the state, which keeps its form. "
        f"Pass the storage of that run{fix}."
    )
