"""Failures name the line of the user's source that the call stands in."""

import inspect
import re

import jax
import jax.numpy as jnp
import pytest
from mpi4py import MPI

import mpixla
from mpixla.checks import sites

X = jnp.ones(3)


def alone(x, comm):
    return mpixla.sendrecv(x, x, 0, 0, comm=comm)


def line_of(fun, text):
    """Return the place of `text` in a function: "file:line"."""
    lines, first = inspect.getsourcelines(fun)
    (found,) = [i for i, line in enumerate(lines) if text in line]
    return f"test_sites.py:{first + found}"


def message_of(fun, x=X, jit=jax.jit):
    """Return the error of a function of an array and a communicator after that communicator was freed."""
    comm = MPI.COMM_SELF.Dup()
    program = jit(lambda x: fun(x, comm))
    jax.block_until_ready(program(x))
    comm.Free()
    with pytest.raises(Exception, match="was freed") as caught:
        jax.block_until_ready(program(x))
    return str(caught.value)


def in_a_loop(x, comm):
    def step(carry, _):
        return mpixla.sendrecv(carry, carry, 0, 0, comm=comm), None

    return jax.lax.scan(step, x, None, length=2)[0]


def in_a_branch(x, comm):
    return jax.lax.cond(x.sum() > 0, lambda x: mpixla.sendrecv(x, x, 0, 0, comm=comm), lambda x: x, x)


HERE = "mpixla.sendrecv("


@pytest.mark.parametrize("jit", [jax.jit, mpixla.jit])
@pytest.mark.parametrize("fun", [alone, in_a_loop, in_a_branch])
def test_traced(jit, fun):
    message = message_of(fun, jit=jit)
    assert f"{line_of(fun, HERE)} in " in message.partition("(at ")[2]
    assert message.count("test_sites.py:") == 1


@pytest.mark.parametrize("jit", [jax.jit, mpixla.jit])
def test_transformed(jit):
    """The line of the call, also for the communication that JAX makes of it."""
    line = line_of(alone, HERE)
    assert line in message_of(lambda x, comm: jax.vmap(lambda x: alone(x, comm))(x), jnp.ones((2, 3)), jit)
    assert line in message_of(lambda x, comm: jax.grad(lambda x: alone(x, comm).sum())(x), jit=jit)


def test_the_innermost_line_of_the_user():
    def helper(x, comm):
        return mpixla.sendrecv(x + 1, x, 0, 0, comm=comm)

    assert line_of(test_the_innermost_line_of_the_user, HERE + "x + 1") in message_of(helper)


def a_tree(x, comm):
    return mpixla.sendrecv({"a": x, "b": x}, {"a": x, "b": x}, 0, 0, comm=comm)


def test_a_leaf_is_named():
    assert f"{line_of(a_tree, HERE)} in a_tree (leaf 1 of 2)" in message_of(a_tree)


@pytest.mark.parametrize(("fun", "note"), [(alone, ""), (in_a_loop, ""), (a_tree, "leaf 2 of 2, ")])
def test_reverse_mode_is_named(fun, note):
    def transposed(x, comm):
        (result,) = jax.linear_transpose(lambda x: fun(x, comm), x)(fun(x, MPI.COMM_SELF))
        return result

    assert f"{line_of(fun, HERE)} in {fun.__name__.replace('in_a_loop', 'step')} ({note}in reverse mode)" in message_of(
        transposed
    )


def started(x):
    request = mpixla.isendrecv(jnp.ones(4), x, 0, 0, comm=MPI.COMM_SELF)
    return mpixla.wait(request)


def test_a_wait_has_two_lines():
    try:
        jax.block_until_ready(jax.jit(started)(X))
    except Exception as e:
        at, _, since = str(e).partition("started at")
    else:
        pytest.skip("this MPI does not notice that the message is too long")
    assert line_of(started, "mpixla.wait(") in at
    assert line_of(started, "mpixla.isendrecv(") in since


def test_functions_of_one_name():
    functions = [
        lambda x, comm: mpixla.bcast(x, 0, comm=comm),
        lambda x, comm: mpixla.bcast(x, 0, comm=comm),
    ]
    lines = [message_of(fun).partition("test_sites.py:")[2].partition(" ")[0] for fun in functions]
    first = functions[0].__code__.co_firstlineno
    assert lines == [str(first), str(first + 1)]


STEP = """
def step(x):
    x = mpixla.allreduce(x, op=SUM)
    return (lambda x: mpixla.allreduce(x, op=SUM) + 1)(x)
"""


@pytest.mark.parametrize(
    "commented",
    [
        "# more\n\n" + STEP,
        STEP.replace("    return", "    # more\n\n    return"),
        STEP.replace("(x, op=SUM)\n", "(  # more\n        x,\n        op=SUM,\n    )\n"),
    ],
    ids=["above", "inside", "in the call"],
)
def test_text_does_not_depend_on_comments(monkeypatch, commented):
    """A program is found in JAX's cache after comments were added, and has its present lines in messages."""

    def text(source):
        monkeypatch.setattr(sites, "_lines", {})  # as in another run
        space = {"mpixla": mpixla, "SUM": MPI.SUM}
        exec(compile(source, "solver.py", "exec"), space)
        return jax.jit(space["step"]).lower(X).as_text()

    assert text(STEP) == text(commented)
    assert text(STEP) != text(STEP.replace("    x = mpixla", "    x = x\n    x = mpixla"))


def numbers_in(source):
    """Return the numbers of sites in the program of the function ``step``, in the order of its calls."""
    space = {"mpixla": mpixla, "SUM": MPI.SUM}
    exec(compile(source, "solver.py", "exec"), space)
    return re.findall(r"site = (\d+)", jax.jit(space["step"]).lower(X).as_text())


@pytest.mark.parametrize(
    ("body", "numbers"),
    [
        ("mpixla.allreduce(mpixla.allreduce(x, op=SUM), op=SUM)", 2),
        ("(lambda f: f(f(x)))(lambda x: mpixla.allreduce(x, op=SUM))", 1),
        ("(lambda x: mpixla.allreduce(x, SUM))((lambda x: mpixla.allreduce(x * 2, SUM))(x))", 2),
        ("[y := x, [y := mpixla.allreduce(y, op=SUM) for _ in range(3)]][1][-1]", 1),
    ],
)
def test_two_calls_in_a_line_are_two_sites(body, numbers):
    assert len(set(numbers_in(f"def step(x):\n    return {body}\n"))) == numbers


def test_a_condition_of_a_loop_is_one_site():
    """Python compiles it twice: before the loop, and at its end."""
    source = (
        "def step(x):\n  n = 0\n  while mpixla.allreduce(x, op=SUM) is not None and n < 3:\n    n += 1\n  return x\n"
    )
    assert len(set(numbers_in(source))) == 1


def test_the_line_that_calls_a_library(monkeypatch):
    """A line in an installed package says little without that of the program that calls it."""
    monkeypatch.setattr(sites, "_INSTALLED", ("/packages/",))
    library = {"mpixla": mpixla}
    source = "def exchange(x, comm):\n    return mpixla.sendrecv(x, x, 0, 0, comm=comm)\n"
    exec(compile(source, "/packages/library.py", "exec"), library)

    def solve(x, comm):
        return library["exchange"](x, comm)

    assert f"/packages/library.py:2 in exchange (called at {sites.short_name(__file__)}:" in message_of(solve)
    assert line_of(solve, "return library") in message_of(solve)


def test_caches_of_lines_have_a_limit(monkeypatch):
    """A notebook has ever new files: each cell is one."""
    monkeypatch.setattr(sites, "_LIMIT", 3)
    for cell in range(10):
        code = compile("mpixla.allreduce(x, MPI.SUM)", f"cell {cell}", "exec")
        exec(code, {"mpixla": mpixla, "x": jnp.ones(2), "MPI": MPI})
        assert len(sites._told) <= 3
    for remembered in (sites._register_line, sites._is_users_file):
        assert remembered.cache_info().maxsize == 4096
