"""Derivatives of implicit functions: jax.lax.custom_root and custom_linear_solve of functions that communicate.

All ranks have the whole vector, and each rank has one term of the matrix.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from mpi4py import MPI

import mpixla
from reference import in_turn

SIZE = MPI.COMM_WORLD.Get_size()
RANK = MPI.COMM_WORLD.Get_rank()
N = 3
TERMS = [(lambda m: m @ m.T + 2 * np.eye(N) + m / 2)(np.random.default_rng(r).normal(size=(N, N))) for r in range(SIZE)]
MATRIX = sum(TERMS)
B = np.random.default_rng(100).normal(size=N)
W = np.arange(N) + 1.0
SHARE = 0.1  # of the sum of all ranks' vectors, on all ranks but the first


def product(x):
    """Return the matrix times a vector."""
    return mpixla.allreduce(TERMS[RANK] @ mpixla.pvary(x), MPI.SUM)


def product_by_messages(x):
    """Return the same, from rank to rank around a ring."""
    x = mpixla.pvary(x)
    part = total = TERMS[RANK] @ x
    for _ in range(SIZE - 1):
        part = mpixla.sendrecv(part, part, (RANK - 1) % SIZE, (RANK + 1) % SIZE)
        total = total + part
    return mpixla.allreduce(total / SIZE, MPI.SUM)


def product_with_request(x):
    return mpixla.wait(mpixla.iallreduce(TERMS[RANK] @ mpixla.pvary(x), MPI.SUM))


def product_of_which_one_rank_ignores_a_part(x):
    x = mpixla.pvary(x)
    everyone = mpixla.allreduce(x, MPI.SUM, cotangent="varying")
    part = TERMS[RANK] @ x
    return mpixla.allreduce(part if RANK == 0 else part + SHARE * everyone, MPI.SUM)


PRODUCTS = {
    "allreduce": (product, MATRIX),
    "sendrecv": (product_by_messages, MATRIX),
    "request": (product_with_request, MATRIX),
    "ignored": (product_of_which_one_rank_ignores_a_part, MATRIX + SHARE * SIZE * (SIZE - 1) * np.eye(N)),
}


def newton(f, x):
    return lax.fori_loop(0, 12, lambda _, x: x - jnp.linalg.solve(jax.jacfwd(f)(x), f(x)), x)


def dense(linear, y, jacobian=jax.jacrev):
    return jnp.linalg.solve(jacobian(linear)(y), y)


def by_linear_solve(linear, y):
    """Solve linear(x) = y by steepest descent, whose loop asks all ranks."""

    def solve(a, y):
        def step(x):
            r = transposed(y - a(x))
            return x + jnp.dot(r, r) / jnp.maximum(jnp.sum(a(r) ** 2), 1e-300) * r

        transposed = jax.linear_transpose(a, y)
        transposed = functools.partial(lambda t, y: t(y)[0], transposed)
        return lax.while_loop(lambda x: mpixla.norm(y - a(x)) > 1e-11, step, jnp.zeros_like(y))

    return lax.custom_linear_solve(linear, y, solve, solve)


SOLVES = {"jacrev": dense, "jacfwd": functools.partial(dense, jacobian=jax.jacfwd), "by linear solve": by_linear_solve}


def root(b, scale, of=product, solve=dense):
    """Return the x with scale * matrix @ x + x**3 / 10 = b."""
    return lax.custom_root(lambda x: scale * of(x) + x**3 / 10 - b, jnp.zeros(N), newton, solve)


@functools.cache
def closed_form(name):
    """Return the root for B and 1, and the derivative by both."""
    matrix = PRODUCTS[name][1]
    x = np.zeros(N)
    for _ in range(30):
        x -= np.linalg.solve(matrix + np.diag(0.3 * x**2), matrix @ x + x**3 / 10 - B)
    inverse = np.linalg.inv(matrix + np.diag(0.3 * x**2))
    return x, inverse, -inverse @ matrix @ x


def same(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-10)


def of_a_batch(f):
    """Return the Jacobians of a batch of one right-hand side and another."""
    return lambda b, scale: jax.tree.map(
        lambda y: y[1], jax.vmap(jax.jacrev(f, (0, 1)), (0, None))(jnp.stack([W, b]), scale)
    )


def in_a_scan(f):
    return lambda b, scale: lax.scan(lambda scale, _: (scale, f(b, scale)), scale, None, length=1)[1][0]


TRANSFORMED = {
    "jacfwd": lambda f: jax.jacfwd(f, (0, 1)),
    "jacrev": lambda f: jax.jacrev(f, (0, 1)),
    "jacfwd in a scan": lambda f: jax.jacfwd(in_a_scan(f), (0, 1)),
    "jacrev in a scan": lambda f: jax.jacrev(in_a_scan(f), (0, 1)),
    "jacrev in a checkpoint": lambda f: jax.jacrev(jax.checkpoint(f), (0, 1)),
    "vmap of jacrev": of_a_batch,
    "jacrev of vmap": lambda f: jax.jacrev(
        lambda b, scale: jax.vmap(f, (0, None))(jnp.stack([W, b]), scale)[1], (0, 1)
    ),
}
JITS = {"eager": lambda f: f, "jit": jax.jit, "sealed": mpixla.jit}
CASES = [pytest.param(of, how, id=f"{of}-{how}") for of in ("allreduce", "sendrecv", "request") for how in TRANSFORMED]


@pytest.mark.parametrize(
    ("of", "how", "solved"), in_turn(CASES, [f"{solve}, {jit}" for solve in SOLVES for jit in JITS])
)
def test_jacobians_of_a_root(of, how, solved):
    x, by_b, by_scale = closed_form(of)
    solve, jit = solved.split(", ")
    f = functools.partial(root, of=PRODUCTS[of][0], solve=SOLVES[solve])
    same(JITS[jit](f)(B, 1.0), x)
    got = JITS[jit](TRANSFORMED[how](f))(B, 1.0)
    same(got[0], by_b)
    same(got[1], by_scale)


@pytest.mark.parametrize("jit", JITS)
def test_gradient_where_a_rank_ignores_a_result(jit):
    """By jacfwd: where the cotangents alone have a batch, all ranks must use a result (docs/derivatives.md)."""
    _, by_b, by_scale = closed_form("ignored")
    f = functools.partial(root, of=PRODUCTS["ignored"][0], solve=SOLVES["jacfwd"])
    got = JITS[jit](jax.grad(lambda *xs: jnp.dot(W, f(*xs)), (0, 1)))(B, 1.0)
    same(got[0], W @ by_b)
    same(got[1], W @ by_scale)


def solution(b, scale, of):
    """Return the x with scale * matrix @ x = b."""
    return by_linear_solve(lambda x: scale * of(x), b)


@pytest.mark.parametrize("jit", JITS)
@pytest.mark.parametrize("of", ["allreduce", "sendrecv", "request"])
def test_derivatives_of_a_linear_solve(of, jit):
    f, jit, inverse = functools.partial(solution, of=PRODUCTS[of][0]), JITS[jit], np.linalg.inv(MATRIX)
    same(jit(f)(B, 2.0), inverse @ B / 2)
    same(jit(lambda b, s: jax.jvp(f, (b, s), (W, 1.0))[1])(B, 2.0), inverse @ (W / 2 - B / 4))
    got = jit(jax.grad(lambda *xs: jnp.dot(W, f(*xs)), (0, 1)))(B, 2.0)
    same(got[0], W @ inverse / 2)
    same(got[1], -W @ inverse @ B / 4)
    for how in ("jacrev", "vmap of jacrev"):
        got = jit(TRANSFORMED[how](f))(B, 2.0)
        same(got[0], inverse / 2)
        same(got[1], -inverse @ B / 4)


@pytest.mark.parametrize("jit", JITS)
def test_second_derivatives_of_a_root(jit):
    """By the scale, against differences of the closed form."""
    got = JITS[jit](jax.grad(jax.grad(lambda s: jnp.dot(W, root(B, s)))))(1.0)
    x, inverse, by_scale = closed_form("allreduce")
    # scale * matrix @ x + x**3 / 10 = b, differentiated twice.
    want = -inverse @ (2 * MATRIX @ by_scale + 0.6 * x * by_scale**2)
    same(got, W @ want)
