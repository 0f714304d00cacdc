"""Failures name the line of the user's source that the call stands in."""

import inspect

import jax
import jax.numpy as jnp
import pytest
from mpi4py import MPI

import mpixla

SELF = MPI.COMM_SELF
X, LONGER = jnp.ones(3), jnp.ones(4)


def too_long(x):
    """A message to oneself that does not fit."""
    return mpixla.sendrecv(LONGER, x, 0, 0, comm=SELF)


def line_of(fun, text):
    """Where `text` stands in a function: "file:line"."""
    lines, first = inspect.getsourcelines(fun)
    (found,) = [i for i, line in enumerate(lines) if text in line]
    return f"test_sites.py:{first + found}"


def message_of(call):
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(call())
    return str(caught.value)


def in_a_loop(x):
    def step(carry, _):
        return mpixla.sendrecv(LONGER, carry, 0, 0, comm=SELF), None

    return jax.lax.scan(step, x, None, length=2)[0]


def in_a_branch(x):
    return jax.lax.cond(x.sum() > 0, lambda x: mpixla.sendrecv(LONGER, x, 0, 0, comm=SELF), lambda x: x, x)


HERE = "mpixla.sendrecv("


@pytest.mark.parametrize("jit", [jax.jit, mpixla.jit])
@pytest.mark.parametrize("fun", [too_long, in_a_loop, in_a_branch])
def test_traced(jit, fun):
    message = message_of(lambda: jit(fun)(X))
    assert f"{line_of(fun, HERE)} in " in message
    assert message.count("test_sites.py:") == 1


@pytest.mark.parametrize("jit", [jax.jit, mpixla.jit])
def test_transformed(jit):
    """The line of the call, also for the communication that JAX makes of it."""
    line = line_of(too_long, HERE)
    assert line in message_of(lambda: jit(jax.vmap(too_long))(jnp.ones((2, 3))))
    assert line in message_of(lambda: jit(jax.grad(lambda x: too_long(x).sum()))(X))


def test_the_innermost_line_of_the_user():
    def helper(x):
        return mpixla.sendrecv(LONGER, x, 0, 0, comm=SELF)

    assert line_of(test_the_innermost_line_of_the_user, HERE + "LONGER") in message_of(lambda: jax.jit(helper)(X))


def started(x):
    request = mpixla.isendrecv(LONGER, x, 0, 0, comm=SELF)
    return mpixla.wait(request)


def test_a_wait_has_two_lines():
    message = message_of(lambda: jax.jit(started)(X))
    assert f"at {line_of(started, 'mpixla.wait(')}".replace("at ", "") in message
    assert "started at" in message
    assert line_of(started, "mpixla.isendrecv(") in message


def a_tree(x):
    return mpixla.sendrecv({"a": x, "b": LONGER}, {"a": x, "b": x}, 0, 0, comm=SELF)


def test_a_leaf_is_named():
    message = message_of(lambda: jax.jit(a_tree)(X))
    assert f"{line_of(a_tree, HERE)} in a_tree (leaf 2 of 2)" in message


def test_text_does_not_depend_on_lines_before():
    """A program is found in JAX's cache after lines before its function were added."""

    def text(source):
        space = {"mpixla": mpixla, "SUM": MPI.SUM}
        exec(compile(source, "solver.py", "exec"), space)
        return jax.jit(space["step"]).lower(X).as_text()

    source = "def step(x):\n    return mpixla.allreduce(x, op=SUM)\n"
    assert text(source) == text("# more\n\n" + source)
    assert text(source) != text(source.replace("    return", "    # more\n    return"))
