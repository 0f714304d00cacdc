"""Solvers that take inner products of their own, against themselves on one process."""

import diffrax
import jax
import jax.numpy as jnp
import lineax
import numpy as np
import optax
import optimistix
import pytest

from ecosystem.ring import START, WEIGHTS, laplacian


def matvec(u):
    return u - 0.3 * laplacian(u)


def integrate(u, solver):
    control = diffrax.PIDController(rtol=1e-5, atol=1e-7)
    equation = diffrax.ODETerm(lambda t, u, k: k * laplacian(u) - u**3)
    return diffrax.diffeqsolve(
        equation, solver, 0.0, 1.0, 0.01, u, args=5.0, stepsize_controller=control, max_steps=256
    ).ys[0]


def minimize(u):
    """Minimize a convex function of a spread vector by L-BFGS."""

    def value(u):
        return u @ matvec(u) / 2 - jnp.sum(START * u) + jnp.sum(u**4)

    optimizer = optax.lbfgs()

    def step(carry, _):
        u, state = carry
        at, gradient = optax.value_and_grad_from_state(value)(u, state=state)
        updates, state = optimizer.update(gradient, state, u, value=at, grad=gradient, value_fn=value)
        return (optax.apply_updates(u, updates), state), at

    return jax.lax.scan(step, (u, optimizer.init(u)), length=8)[0][0]


def root(b):
    solver = optimistix.Newton(rtol=1e-8, atol=1e-8)
    return optimistix.root_find(lambda u, b: matvec(u) + u**3 - b, solver, jnp.zeros_like(b), args=b).value


def solve(b, solver):
    operator = lineax.FunctionLinearOperator(matvec, jax.eval_shape(lambda: b), lineax.positive_semidefinite_tag)
    return lineax.linear_solve(operator, b, solver).value


SOLVERS = {
    "jax's cg": lambda b: jax.scipy.sparse.linalg.cg(matvec, b, tol=1e-10)[0],
    "jax's gmres": lambda b: jax.scipy.sparse.linalg.gmres(matvec, b, tol=1e-10)[0],
    "lineax's CG": lambda b: solve(b, lineax.CG(1e-10, 1e-10)),
    "lineax's GMRES": lambda b: solve(b, lineax.GMRES(1e-10, 1e-10)),
    "optimistix's Newton": root,
    "diffrax's Tsit5": lambda u: integrate(u, diffrax.Tsit5()),
    "diffrax's Kvaerno3": lambda u: integrate(u, diffrax.Kvaerno3()),
    "optax's L-BFGS": minimize,
}


@pytest.mark.parametrize("name", SOLVERS)
def test_solver(on_all, name):
    solver = SOLVERS[name]
    np.testing.assert_allclose(on_all(solver, START), jax.jit(solver)(START), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in SOLVERS if "L-BFGS" not in name])
def test_gradient(on_all, name):
    def loss(b):
        return jnp.sum(WEIGHTS * SOLVERS[name](b))

    np.testing.assert_allclose(on_all(jax.grad(loss), START), jax.jit(jax.grad(loss))(START), rtol=1e-6, atol=1e-8)
