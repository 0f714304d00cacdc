"""diffrax, optimistix and lineax on a ring whose cells are spread over all ranks, against themselves on one process."""

import diffrax
import jax
import jax.numpy as jnp
import lineax
import numpy as np
import optimistix
import pytest

import mpixla
from ecosystem.ring import START, WEIGHTS, laplacian

K = 5.0


def rms(x):
    return jnp.sqrt(jnp.mean(x**2))


def whole_rate(t, u, k):
    """Return the page's `rate`, of all cells."""
    return k * laplacian(u)


def integrate(rate, norm, solver, u, k):
    control = diffrax.PIDController(rtol=1e-5, atol=1e-7, norm=norm)
    done = diffrax.diffeqsolve(
        diffrax.ODETerm(rate), solver, 0.0, 1.0, 0.01, u, args=k, stepsize_controller=control, max_steps=256
    )
    return done.ys[0], done.stats["num_steps"]


def test_the_page_s_diffrax(page, mine):
    got = jax.jit(page["spread"])(START[mine], K)
    want, _ = jax.jit(lambda u: integrate(whole_rate, rms, diffrax.Tsit5(), u, K))(START)
    np.testing.assert_allclose(got, want[mine], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("jit", [jax.jit, mpixla.jit])
def test_explicit_steps(page, mine, jit):
    got, steps = jit(lambda u: integrate(page["rate"], page["norm"], diffrax.Tsit5(), u, K))(START[mine])
    want, whole_steps = jax.jit(lambda u: integrate(whole_rate, rms, diffrax.Tsit5(), u, K))(START)
    assert steps == whole_steps
    np.testing.assert_allclose(got, want[mine], rtol=1e-9, atol=1e-12)


def test_gradient_through_explicit_steps(page, mine):
    def loss(u, k):
        end, _ = integrate(page["rate"], page["norm"], diffrax.Tsit5(), u, mpixla.pvary(k))
        return mpixla.vdot(WEIGHTS[mine], end)

    def whole_loss(u, k):
        return WEIGHTS @ integrate(whole_rate, rms, diffrax.Tsit5(), u, k)[0]

    by_u, by_k = jax.jit(jax.grad(loss, (0, 1)))(START[mine], K)
    want_by_u, want_by_k = jax.jit(jax.grad(whole_loss, (0, 1)))(START, K)
    np.testing.assert_allclose(by_u, want_by_u[mine], rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(by_k, want_by_k, rtol=1e-8)


def test_implicit_steps(page, mine):
    newton = optimistix.Newton(rtol=1e-8, atol=1e-8, norm=rms)
    got, steps = jax.jit(lambda u: integrate(page["rate"], page["norm"], page["implicit"], u, K))(START[mine])
    whole = jax.jit(lambda u: integrate(whole_rate, rms, diffrax.Kvaerno3(root_finder=newton), u, K))
    want, whole_steps = whole(START)
    assert steps == whole_steps
    np.testing.assert_allclose(got, want[mine], rtol=1e-6, atol=1e-9)


def test_roots_and_their_gradient(page, mine):
    """u with u - laplacian(u) + u**3 = b."""

    def root(b, rate, solver, adjoint):
        def residual(u, b):
            return u - rate(0.0, u, 0.3) + u**3 - b

        return optimistix.root_find(residual, solver, jnp.zeros_like(b), args=b, adjoint=adjoint).value

    spread = optimistix.ImplicitAdjoint(linear_solver=page["SpreadCG"]())
    newton = optimistix.Newton(rtol=1e-8, atol=1e-8, norm=rms)

    def loss(b):
        return mpixla.vdot(WEIGHTS[mine], root(b, page["rate"], page["newton"], spread))

    def whole_loss(b):
        return WEIGHTS @ root(b, whole_rate, newton, optimistix.ImplicitAdjoint())

    got, want = (jax.jit(jax.value_and_grad(f))(b) for f, b in ((loss, START[mine]), (whole_loss, START)))
    np.testing.assert_allclose(got[0], want[0], rtol=1e-6)
    np.testing.assert_allclose(got[1], want[1][mine], rtol=1e-6, atol=1e-9)


def test_linear_solver(page, mine):
    def solve(b, k, rate, solver):
        operator = lineax.FunctionLinearOperator(
            lambda u: u - rate(0.0, u, k), jax.eval_shape(lambda: b), lineax.positive_semidefinite_tag
        )
        return lineax.linear_solve(operator, b, solver).value

    def loss(b, k):
        return mpixla.vdot(WEIGHTS[mine], solve(b, mpixla.pvary(k), page["rate"], page["SpreadCG"](tol=1e-12)))

    def whole_loss(b, k):
        return WEIGHTS @ solve(b, k, whole_rate, lineax.LU())

    got = jax.jit(jax.value_and_grad(loss, (0, 1)))(jnp.asarray(START[mine]), 0.3)
    want = jax.jit(jax.value_and_grad(whole_loss, (0, 1)))(jnp.asarray(START), 0.3)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-8)
    np.testing.assert_allclose(got[1][0], want[1][0][mine], rtol=1e-8, atol=1e-11)
    np.testing.assert_allclose(got[1][1], want[1][1], rtol=1e-8)
