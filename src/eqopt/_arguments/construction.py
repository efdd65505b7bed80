"""How public classes explain their arguments, in `help` and in errors."""

import difflib
import inspect
import operator
import sys
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import equinox as eqx

from .._typecheck import checked, checked_methods, needs_check
from .annotations import names_in, resolved
from .fields import types_of_choices
from .owners import why_no_hash


if TYPE_CHECKING:
    from equinox import Module as Module

    Explained = type
else:

    class Docstring:
        """The docstring of a class, which is completed at the first access.

        It is an attribute of the class, not of its type, so instances have it, too.
        """

        def __init__(self, written):
            self.written = written

        def __get__(self, instance, owner):
            if "**Arguments:**" not in self.written:
                return self.written
            if not hasattr(self, "completed"):
                from .explanations import completed  # which few processes ever need

                parameters = inspect.signature(owner).parameters.values()
                defaults = {p.name: p.default for p in parameters}
                self.completed = completed(self.written, defaults, _docstring)
            return self.completed

    def _docstring(name):
        """The docstring, as written, of a public class such as `"eqopt.Adam"`."""
        package, _, rest = name.partition(".")
        cls = operator.attrgetter(rest)(sys.modules[package])
        return vars(cls)["__doc__"].written

    class Explained(type):
        """The metaclass of classes that explain which arguments they accept.

        It explains a failed call; a successful call costs nothing more.
        """

        def __call__(cls, *args, **kwargs):
            __tracebackhide__ = True
            try:
                return super().__call__(*args, **kwargs)
            except TypeError:
                problem = misuse(cls, args, kwargs)
                if problem is None:
                    raise
            raise TypeError(problem)

        @property
        def __signature__(cls):
            # Otherwise it would be the signature of `__call__`.
            signature = inspect.signature(cls.__init__)
            # Not what its converter accepts, or `Any`.
            fields = getattr(cls, "__dataclass_fields__", {})
            choices = types_of_choices(cls) if fields else {}
            parameters = [
                x.replace(annotation=fields[name].type)
                if x.annotation in (Any, choices.get(name, Any))
                and name in fields
                and x.kind != x.VAR_POSITIONAL
                else x
                for name, x in signature.parameters.items()
            ]
            return signature.replace(parameters=parameters[1:])

    class _ExplainedModule(Explained, type(eqx.Module)):
        # `help` asks for the attribute of an object: it has to know that this is a type.
        __doc__ = vars(type)["__doc__"]

        def __new__(cls, name, bases, namespace, /, **options):
            if not namespace["__module__"].startswith("eqopt."):
                return super().__new__(cls, name, bases, namespace, **options)
            namespace = checked_methods(namespace)
            made = super().__new__(cls, name, bases, namespace, **options)
            if needs_check(made.__init__):
                made.__init__.__annotations__ |= types_of_choices(made)
                made.__init__ = checked(made.__init__)
            # Not earlier: `dataclass` reads `__doc__`.
            if isinstance(written := namespace.get("__doc__"), str):
                made.__doc__ = Docstring(written)
            return made

    class Module(eqx.Module, metaclass=_ExplainedModule):
        """An `eqx.Module` that explains its arguments, and why it has no hash."""

        def __hash__(self):
            try:
                return super().__hash__()
            except TypeError:
                raise TypeError(why_no_hash(self)) from None


# Argument names of other libraries (`torch.optim`, Keras, Optax), and the names here.
# The first of these that the class has is the right one.
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "lr": ("learning_rate",),
    "step_size": ("learning_rate",),
    "alpha": ("decay",),
    "beta": ("decay", "b1"),
    "beta1": ("b1",),
    "beta2": ("b2",),
    "beta3": ("b3",),
    "beta_1": ("b1",),
    "beta_2": ("b2",),
    "epsilon": ("eps",),
    "wd": ("weight_decay",),
    "weight_decay_rate": ("weight_decay",),
    "weight_decay_mask": ("mask",),
    "dtype_momentum": ("mu_dtype",),
    "momentum_dtype": ("mu_dtype", "accumulator_dtype"),
    "momentum": ("beta", "b1"),
    "use_nesterov": ("nesterov",),
    "seed": ("key",),
    "rng": ("key",),
    "random_seed": ("key",),
    "rng_key": ("key",),
    "opt": ("inner",),
    "tx": ("inner",),
    "optimizer": ("inner",),
    "inner_optimizer": ("inner",),
    "base_optimizer": ("inner",),
    "fast_optimizer": ("inner",),
    "transform": ("inner",),
    "adv_optimizer": ("adversary",),
    "transforms": ("transformations",),
    "param_labels": ("labels",),
    "every_k": ("every_k_schedule",),
    "step_size_fn": ("schedule",),
    "muon_weight_dimension_numbers": ("weight_dimension_numbers",),
    "base_lr": ("init_value", "peak_value", "learning_rate"),
    "T_max": ("decay_steps",),
    "gamma": ("decay_rate",),
}

# Arguments of other libraries that are not arguments here.
INSTEAD: Mapping[str, str] = {
    "betas": "Write `betas=(b1, b2)` as `b1=..., b2=...`.",
    "amsgrad": "Use the class `eqopt.AMSGrad`.",
    "maximize": "Change the sign of the gradients: `eqopt.Chain(eqopt.Scale(-1.0), "
    "optimizer)`.",
    "foreach": "Omit it: leaves are always fused.",
    "fused": "Omit it: leaves are always fused.",
    "capturable": "Omit it: every step can be compiled.",
    "differentiable": "Omit it: every step can be differentiated.",
    "clipnorm": "Put it first: `eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), optimizer)`.",
    "max_grad_norm": "Put it first: `eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), "
    "optimizer)`.",
    "weight_decay": "Put it first: `eqopt.Chain(eqopt.AddDecayedWeights(1e-4), "
    "optimizer)`.",
    "mask": "Wrap it: `eqopt.Masked(transformation, mask)`.",
    "momentum": "Put it first: `eqopt.Chain(eqopt.Trace(0.9), optimizer)`.",
    "lr": "Put the learning rate last: `eqopt.Chain(..., "
    "eqopt.ScaleByLearningRate(1e-3))`.",
    "mask_compatible_extra_args": "Omit it: extra arguments are masked if necessary.",
}


def misuse(cls: type, args: tuple, kwargs: Mapping[str, Any]) -> str | None:
    """The problem with a call of `cls`; `None` if its arguments are correct."""
    # Not of the class: classes explain wrong values of converted fields themselves.
    signature = inspect.signature(cls.__init__)
    signature = signature.replace(parameters=[*signature.parameters.values()][1:])
    parameters = signature.parameters.values()
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        names = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]
        unknown = [name for name in kwargs if name not in names]
        known = ", ".join(f"`{name}`" for name in names) or "none"
        if not unknown:
            problem = not_bound(signature, args, kwargs, error)
            return f"`{cls.__name__}`: {problem}. Its arguments are {known}."
        hints = [_hint(cls, name, names) for name in unknown]
        return (
            f"`{cls.__name__}` has no argument "
            + ", ".join(f"`{name}`" for name in unknown)
            + ". "
            + "".join(f"{hint} " for hint in hints if hint)
            + f"Its arguments are {known}."
        )
    from beartype.door import is_bearable  # which few processes ever need

    from .._wrong_calls import wrong_value

    names = names_in(cls)
    for parameter in parameters:
        annotation = resolved(parameter.annotation, names)
        value = given.get(parameter.name)
        is_given = parameter.name in given and _is_known(annotation)
        is_wrong = is_given and not is_bearable(value, annotation)
        if is_wrong and parameter.name == "weight_decay" and _is_how_to_decay(value):
            return (
                f"{cls.__name__}: `weight_decay` must be a number, a 0-d array or a "
                "schedule, but is an `AddDecayedWeights`. This optimizer has its own "
                "kind of decay. Pass only the number."
            )
        expected = _modules(annotation)
        if expected and value is not None and not isinstance(value, expected):
            kinds = " or ".join(f"`{kind.__name__}`" for kind in expected)
            return (
                f"{cls.__name__}: `{parameter.name}` must be an eqopt {kinds}, but is "
                f"{described(value)}"
            )
        if is_wrong:
            problem = wrong_value(value, annotation)
            return f"{cls.__name__}: `{parameter.name}` {problem}"
    return None


def not_bound(
    signature: inspect.Signature, args: tuple, kwargs: Mapping[str, Any], error: Any
) -> str:
    """What `error` of `signature.bind` says, with the names of all missing arguments."""
    try:
        given = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        return str(error)
    missing = [
        repr(p.name)
        for p in signature.parameters.values()
        if p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and p.name not in given
    ]
    if len(missing) < 2:
        return str(error)
    names = f"{', '.join(missing[:-1])} and {missing[-1]}"
    return f"missing {len(missing)} required arguments: {names}"


def _is_known(annotation: Any) -> bool:
    return annotation is not inspect.Parameter.empty and not isinstance(annotation, str)


def _is_how_to_decay(value: Any) -> bool:
    return type(value).__name__ == "AddDecayedWeights"  # which imports this


def _hint(cls: type, name: str, names: list[str]) -> str:
    """A suggestion for the argument `name`, which `cls` does not have."""
    owner = cls.__name__
    meant = [x for x in SPELLINGS.get(name, ()) if x in names]
    close = difflib.get_close_matches(name, names, n=3)
    if meant:
        return f"`{name}` is called `{meant[0]}` here."
    if name in ("weight_decay", "mask") and owner in _DECOUPLED:
        return f"Use `eqopt.{_DECOUPLED[owner]}`, which has it."
    if name == "mask" and _may_descend(cls):
        return _FREEZE
    if name in INSTEAD:
        return INSTEAD[name]
    if name.startswith("adam_") and "fallback" in names:
        return "Pass it to the fallback: `fallback=eqopt.AdamW(..., nesterov=True)`."
    return f"Did you mean {' or '.join(f'`{x}`' for x in close)}?" if close else ""


_DECOUPLED = {"Adam": "AdamW", "NAdam": "NAdamW", "Adamax": "AdamaxW"}

_FREEZE = (
    "To train only some parameters, wrap the whole optimizer: "
    "`eqopt.SelectiveTransform(optimizer, freeze_mask=frozen)`, with `True` for "
    "parameters that stay unchanged."
)


def _may_descend(cls: type) -> bool:
    """Whether the updates of `cls` are subtracted already, or may be.

    Around such a class, `Masked` would add the gradients of all other parameters.
    """
    is_recipe = isinstance(getattr(cls, "chain", None), property)
    fields = getattr(cls, "__dataclass_fields__", {}).keys()
    return is_recipe or bool(fields & {"learning_rate", "inner", "transformations"})


def _modules(annotation: Any) -> tuple[type, ...]:
    """The module classes that an annotation requires, if it requires nothing else."""
    kinds = typing.get_args(annotation) or (annotation,)
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    are_modules = all(isinstance(k, type) and issubclass(k, eqx.Module) for k in kinds)
    return kinds if are_modules else ()


def described(value: Any) -> str:
    """A description of a value that is not a transformation, and how to fix it."""
    if isinstance(value, type):
        return f"the class {value.__name__}. Create an instance of it."
    kind = f"a {type(value).__module__}.{type(value).__qualname__}."
    if type(value).__module__.partition(".")[0] == "optax":
        tx = "tx.gradient_transformation()" if not _is_optax(value) else "tx"
        return f"{kind} Wrap it: `eqopt.interop.optax.from_optax({tx})`."
    if callable(value) and str(value.__module__).partition(".")[0] == "optax":
        return (
            f"the function {value.__name__} of Optax. Call it and wrap the result: "
            f"`eqopt.interop.optax.from_optax({value.__name__}(...))`."
        )
    return kind


def _is_optax(value: Any) -> bool:
    return getattr(value, "_fields", None) == ("init", "update")
