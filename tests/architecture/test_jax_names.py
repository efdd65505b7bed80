"""eqopt uses the public interface of JAX, and a few other names in one file."""

import ast
import functools
import pathlib

import eqopt


SRC = pathlib.Path(eqopt.__file__).parent
MODULES = sorted(SRC.rglob("*.py"))
parsed = functools.cache(lambda path: ast.parse(path.read_text()))

# Modules that JAX documents and promises to deprecate before it changes them.
PUBLIC = {
    "jax",
    *("jax.numpy", "jax.lax", "jax.random", "jax.nn", "jax.scipy"),
    *(
        "jax.tree",
        "jax.tree_util",
        "jax.sharding",
        "jax.dtypes",
        "jax.errors",
        "jax.memory",
    ),
    *("jax.config", "jax.debug", "jax.custom_batching"),
}
HIDDEN = [["core"], ["extend"], ["experimental"], ["interpreters"], ["lib"]]

# `_jax_internals.py` uses these names, and says what happens without them.
PROGRAMS = ("ClosedJaxpr", "Jaxpr", "JaxprEqn", "Literal", "Var")
INTERNAL = {"jax.core.Tracer", *(f"jax.extend.core.{name}" for name in PROGRAMS)}

# Only these files read traced programs, and only inside `attempt`.
READERS = {
    "_jax_internals.py",
    *("microbatching/_interpret.py", "microbatching/_ghost/gradient.py"),
}
OF_PROGRAMS = {"eqns", "invars", "outvars", "constvars", "primitive", "jaxpr", "consts"}


def names_of_jax(tree):
    """The full names that a file uses of JAX, such as `jax.lax.cond`."""
    found, known = set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            of_jax = [x for x in node.names if x.name.split(".")[0] == "jax"]
            found |= {x.name for x in of_jax}
            known |= {x.asname or "jax": x.name if x.asname else "jax" for x in of_jax}
        elif isinstance(node, ast.ImportFrom) and (node.module or "")[:3] == "jax":
            names = {x.asname or x.name: f"{node.module}.{x.name}" for x in node.names}
            found |= {*names.values()} if node.module.split(".")[0] == "jax" else set()
            known |= names
    for node in ast.walk(tree):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name):
            full = ".".join([known.get(node.id, ""), *reversed(parts)])
            found |= {full} if full.split(".")[0] == "jax" else set()
    return found


def is_public(name):
    parts = name.split(".")
    modules = [".".join(parts[:i]) for i in range(1, len(parts) + 1)]
    # `jax.lax.cond` is in the public module `jax.lax`; `jax.extend.core` is in none.
    inside = max((m for m in modules if m in PUBLIC), key=len)
    rest = parts[inside.count(".") + 1 :]
    is_hidden = any(x.startswith("_") for x in rest) or rest[:1] in HIDDEN
    return not is_hidden and (inside != "jax" or len(rest) <= 1)


def test_only_public_names():
    internal = {
        str(path.relative_to(SRC)): names
        for path in MODULES
        if (names := {x for x in names_of_jax(parsed(path)) if not is_public(x)})
    }
    assert internal.pop("_jax_internals.py") == INTERNAL
    assert not internal, "use the public interface of JAX instead"


def test_few_files_read_programs():
    nodes = {path: ast.walk(parsed(path)) for path in MODULES}
    attributes = lambda nodes: {x.attr for x in nodes if isinstance(x, ast.Attribute)}
    found = {path for path in MODULES if attributes(nodes[path]) & OF_PROGRAMS}
    assert {str(path.relative_to(SRC)) for path in found} <= READERS
