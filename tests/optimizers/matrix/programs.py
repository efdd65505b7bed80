"""Which expensive operations a program has, and whether they always run."""

import re

import jax
import jax.numpy as jnp

from ...interpreter import is_condition, opened, programs_in


DECOMPOSITIONS = {"eigh", "geqrf", "householder_product", "qr", "svd"}


def decompositions(fn, *arguments, names=DECOMPOSITIONS):
    """The named primitives that `fn` always runs, and those under a condition."""
    always, sometimes = set(), set()

    def walk(program, found):
        _, _, equations, _ = opened(program)
        for equation in equations:
            found |= {equation.name} & names
            for inner in programs_in(equation):
                walk(inner, sometimes if is_condition(equation) else found)

    walk(jax.make_jaxpr(lambda *x: fn(*x))(*arguments), always)
    return always, sometimes


def compiled_decompositions(fn, *arguments):
    """The same for the compiled program, by the number of calls of LAPACK."""
    text = jax.jit(fn).lower(*arguments).compile().as_text()
    bodies = re.findall(r"^(ENTRY )?%?([\w.\-]+) \(.*?\{\n(.*?)^\}", text, re.M | re.S)
    program = {name: body for _, name, body in bodies}
    todo, always = [name for entry, name, _ in bodies if entry], set()
    assert len(todo) == 1
    while todo:
        name = todo.pop()
        if name not in always:
            always.add(name)
            callees = r"(?:calls|to_apply|body|condition)=%?([\w.\-]+)"
            todo += re.findall(callees, program[name])
    count = lambda names: sum(
        program[x].count('custom_call_target="lapack') for x in names
    )
    return count(always), count(program.keys() - always)


def executed_decompositions(monkeypatch, opt, params, steps):
    """The number of decompositions that run in each step, so only in taken branches.

    `params` must have new shapes, so that nothing has been traced before.
    """
    calls = []
    for name in ("eigh", "qr"):
        plain = getattr(jnp.linalg, name)

        def counted(*args, plain=plain, **kwargs):
            jax.debug.callback(lambda: calls.append(None))
            return plain(*args, **kwargs)

        monkeypatch.setattr(jnp.linalg, name, counted)
    state, update, counts = opt.init(params), jax.jit(opt.update), []
    for t in range(steps):
        grads = [jax.random.normal(jax.random.key(t), p.shape) for p in params]
        _, state = update(grads, state)
        jax.effects_barrier()
        counts.append(len(calls))
        calls.clear()
    return counts
