"""Every operation lowers for GPUs as for CPUs, on every rank, through every interface, with or without a GPU.

What XLA makes of the programs for a GPU is looked at in tests/gpu_programs, which needs a compiler for one.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
import reference
from cases import cases
from mpixla.compat import _jpi, _mpi4jax
from mpixla.compat._tokens import new_token
from mpixla.core import eager
from mpixla.jaxprs.effect import ordered
from reference import operands

SIZE = MPI.COMM_WORLD.Get_size()

PLATFORMS = ("cuda", "rocm", "oneapi")


def lowered(program, xs, platform):
    """Return mpixla's calls in the program's text. JAX may lower the code before and after them in another way."""
    text = program.trace(*xs).lower(lowering_platforms=(platform,)).as_text()
    return [re.sub(r"%[\w#:]+", "%", line) for line in text.splitlines() if "@mpixla_" in line]


def assert_lowers(program, *xs, communicates=True):
    """Check that the program makes the same calls as that for the CPU, and makes some."""
    on_cpu = lowered(program, xs, "cpu")
    assert on_cpu or not communicates
    for platform in PLATFORMS:
        assert lowered(program, xs, platform) == on_cpu


def sealed(fun):
    """Return the program that mpixla.jit dispatches (its own ``lower`` is that of jax.jit)."""
    return mpixla.jit(fun)._sealed


def some(which=lambda row, variant: True):
    """Return some reductions, since to lowering they are numbers."""
    return cases(lambda row, v: v.get("op", "SUM") in ("SUM", "PROD", "LAND") and which(row, v))


def arrays(row, variant):
    rank = MPI.COMM_WORLD.Get_rank()
    dtype = next(d for d in map(np.dtype, (np.float32, np.int32)) if row.takes(dtype=d, **variant))
    return list(map(jnp.asarray, operands(row, dtype, (3,), rank, SIZE, **variant)))


@pytest.mark.parametrize(("row", "variant"), some())
def test_in_programs(row, variant, comm):
    def fun(*xs):
        return row.call(*xs, comm, **variant)

    xs, communicates = arrays(row, variant), row.name != "pvary"
    assert_lowers(jax.jit(fun), *xs, communicates=communicates)
    assert_lowers(sealed(fun), *xs, communicates=communicates)


@pytest.mark.parametrize(
    ("row", "variant"), some(lambda row, v: v == row.variants(SIZE)[0] or "room" in v or "by" in v)
)
def test_eager_programs(row, variant, comm):
    """An eager call runs a program for each primitive."""
    jaxpr = jax.make_jaxpr(lambda *xs: row.call(*xs, comm, **variant))(*arrays(row, variant))
    equations = [eqn for eqn in jaxpr.eqns if ordered in eqn.effects]
    assert equations
    for eqn in equations:
        program = eager._Program("call", functools.partial(eqn.primitive.bind, **eqn.params), []).program
        assert_lowers(program, *(v.aval for v in eqn.invars), communicates=row.name != "pvary")


@pytest.mark.parametrize(("row", "variant"), some(lambda row, v: row.reverse and row.differentiable(**v)))
def test_derivatives_and_batches(row, variant, comm):
    def fun(*xs):
        return row.call(*xs, comm, **variant)

    def reverse(*xs):
        y, pullback = jax.vjp(fun, *xs)
        return pullback(y)

    xs = arrays(row, variant)
    batch = [jnp.stack([x, 2 * x]) for x in xs]
    assert_lowers(jax.jit(lambda *xs: jax.jvp(fun, xs, xs)), *xs, communicates=row.name != "pvary")
    assert_lowers(jax.jit(reverse), *xs)
    assert_lowers(jax.jit(jax.vmap(fun)), *batch, communicates=row.name != "pvary")


def mixed():
    return {
        "floats": jnp.ones((3, 4)),
        "narrow": jnp.ones(5, jnp.bfloat16),
        "whole": [jnp.arange(6), jnp.ones((), jnp.int32)],
    }


TREES = {
    "allreduce": lambda tree, comm: mpixla.allreduce(tree, MPI.MAX, comm=comm),
    "bcast": lambda tree, comm: mpixla.bcast({**tree, "key": jax.random.key(0)}, 0, comm=comm),
    "halo_exchange": lambda tree, comm: mpixla.halo_exchange(
        [jax.tree.map(lambda x: jnp.zeros((4, *x.shape), x.dtype), tree)], reference._chain_of(comm, True)
    ),
    "iallreduce": lambda tree, comm: mpixla.wait(mpixla.iallreduce(tree, MPI.MAX, comm=comm)),
    "sendrecv": lambda tree, comm: mpixla.sendrecv(tree, tree, 0, 0, comm=comm),
}


@pytest.mark.parametrize("name", TREES)
def test_trees(name, comm):
    def fun(tree):
        return TREES[name](tree, comm)

    for program in (jax.jit(fun), sealed(fun)):
        assert_lowers(program, mixed())


# Through the functions of compat themselves: the oracle's calls, made of them.


class WithTokens:
    """mpixla as the oracle uses it, made of mpi4jax's functions with a token from one to the next."""

    def __init__(self, token):
        self.functions = vars(_mpi4jax.make_modules(tokens=True)["mpi4jax"])
        self.token = token

    def __getattr__(self, name):
        def op(*args, **kwargs):
            result = self.functions[name](*args, token=self.token, **kwargs)
            if name in ("barrier", "send"):
                self.token = result
                return None
            result, self.token = result
            return result

        return op


@pytest.mark.parametrize(
    ("row", "variant"), some(lambda row, v: row.name in _mpi4jax._OPERATIONS and "cotangent" not in v)
)
def test_mpi4jax(row, variant, comm, monkeypatch):
    def fun(token, *xs):
        library = WithTokens(token)
        monkeypatch.setattr(reference, "mpixla", library)
        return row.call(*xs, comm, **variant), library.token

    xs = arrays(row, variant)
    assert_lowers(jax.jit(fun), new_token(), *xs)
    assert_lowers(jax.jit(fun), None, *xs)


JPI = {
    "allgather": lambda x, token: _jpi.allgather(x, token),
    "allreduce": lambda x, token: _jpi.allreduce(x, token, MPI.SUM),
    "barrier": lambda x, token: _jpi.barrier(token),
    "bcast": lambda x, token: _jpi.bcast(x, token, 0),
    "gather": lambda x, token: _jpi.gather(x, token, 0),
    "recv": lambda x, token: _jpi.recv(x, token, 0),
    "scatter": lambda x, token: _jpi.scatter(x, token, 0),
    "send": lambda x, token: _jpi.send(x, token, 0),
}


def test_jpi_table():
    assert {*JPI, "gen_token"} == {*_jpi.make_modules()["jpi"].__all__}


@pytest.mark.parametrize("name", JPI)
def test_jpi(name):
    x = jnp.ones((6, 2))
    assert_lowers(jax.jit(JPI[name]), x, _jpi.gen_token())

    def derivative(x, token):
        y, pullback = jax.vjp(JPI[name], x, token)
        return pullback(y)

    if name != "barrier":
        assert_lowers(jax.jit(derivative), x, _jpi.gen_token())
