"""Lineax's iterative solvers with an operator that communicates. Its primitives show no effects."""

import jax
import jax.numpy as jnp
import lineax
import numpy as np
import pytest
from mpi4py import MPI

import mpixla

pytestmark = pytest.mark.needs_hook("lowering")

SIZE = MPI.COMM_WORLD.Get_size()
N = 5
# Each rank has one term of the matrix, and all have the whole vector, so they make the same iterations.
TERMS = [(lambda m: m @ m.T + np.eye(N))(np.random.default_rng(r).normal(size=(N, N))) for r in range(SIZE)]
MATRIX = sum(TERMS)
B = np.random.default_rng(100).normal(size=N)
SOLVERS = {"CG": lineax.CG(1e-11, 1e-11), "GMRES": lineax.GMRES(1e-11, 1e-11)}


def solve(b, name, scale=1.0):
    def apply(x):
        return scale * mpixla.allreduce(TERMS[MPI.COMM_WORLD.Get_rank()] @ x, MPI.SUM)

    structure = jax.ShapeDtypeStruct((N,), jnp.float64)
    operator = lineax.FunctionLinearOperator(apply, structure, lineax.positive_semidefinite_tag)
    return lineax.linear_solve(operator, b, SOLVERS[name]).value


def same(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-7)


# Lineax jits its solve in any case. Compiling it takes seconds.
CASES = [
    pytest.param("CG", lambda f: f, id="CG-eager"),
    pytest.param("CG", mpixla.jit, id="CG-mpixla.jit"),
    pytest.param("GMRES", jax.jit, id="GMRES-jax.jit"),
]


@pytest.mark.parametrize(("name", "jit"), CASES)
def test_solves(name, jit):
    solution = np.linalg.solve(MATRIX, B)
    same(jit(lambda b: solve(b, name))(B), solution)
    same(jit(lambda b: mpixla.allreduce(solve(mpixla.bcast(b, 0), name), MPI.SUM))(B), SIZE * solution)
    twice = jit(lambda b: jax.lax.scan(lambda x, _: (solve(x, name), None), b, None, length=2)[0])
    same(twice(B), np.linalg.solve(MATRIX, solution))
    batch = np.stack([B, np.arange(N) + 1.0])
    same(jit(jax.vmap(lambda b: solve(b, name)))(batch), np.linalg.solve(MATRIX, batch.T).T)


@pytest.mark.parametrize(("name", "jit"), CASES)
def test_derivatives(name, jit):
    """By the right-hand side, and by what the operator closes over."""
    solution = np.linalg.solve(MATRIX, B)
    same(jit(jax.grad(lambda b: jnp.sum(solve(b, name) ** 2)))(B), 2 * np.linalg.solve(MATRIX.T, solution))
    same(jit(lambda b: jax.jvp(lambda b: solve(b, name), (b,), (b,)))(B)[1], solution)
    same(jit(jax.grad(lambda s: jnp.sum(solve(B, name, s))))(2.0), -np.sum(solution) / 4)


LOOPS = {
    "scan": lambda step: lambda b: jax.lax.scan(step, b, None, length=2)[0],
    "checkpoint": lambda step: jax.checkpoint(lambda b: step(step(b, None)[0], None)[0]),
    "scan in a checkpoint": lambda step: jax.checkpoint(lambda b: jax.lax.scan(step, b, None, length=2)[0]),
    "checkpoints in a scan": lambda step: lambda b: jax.lax.scan(jax.checkpoint(step), b, None, length=2)[0],
}


@pytest.mark.parametrize("how", LOOPS)
def test_derivatives_in_loops_and_checkpoints(how):
    """As of an implicit solver's steps."""

    def step(b, _):
        return jnp.sin(solve(b, "CG")), None

    def step_alone(b, _):
        return jnp.sin(jnp.linalg.solve(MATRIX, b)), None

    got, want = (jax.jit(jax.grad(lambda b, s=s: jnp.sum(LOOPS[how](s)(b) ** 2)))(B) for s in (step, step_alone))
    same(got, want)
