"""mpixla.jacfwd and jacrev: parts of the Jacobian that JAX gives of the same function of all ranks' vectors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla

N = 3
HOW = pytest.mark.parametrize("jit", [lambda f: f, jax.jit, mpixla.jit], ids=["eager", "jit", "sealed"])


def vector(size):
    return jnp.asarray(np.random.default_rng(5).normal(size=(size, N)))


def shift(x, comm):
    """A function of this rank's part and the next rank's, and of all by their product."""
    rank, size = comm.Get_rank(), comm.Get_size()
    y = mpixla.sendrecv(x, x, source=(rank + 1) % size, dest=(rank - 1) % size, comm=comm)
    return jnp.sin(y) * x[0] + x**2 * mpixla.vdot(x, x, comm=comm, cotangent="varying")


def whole_shift(x):
    """The same of all ranks' parts, one in each row."""
    return jnp.sin(jnp.roll(x, -1, 0)) * x[:, :1] + x**2 * jnp.sum(x * x)


@HOW
def test_forward(comm, rank, size, jit):
    x = vector(size)
    want = jax.jacfwd(whole_shift)(x)[rank]
    got = jit(mpixla.jacfwd(lambda x: shift(x, comm), comm=comm))(x[rank])
    assert got.shape == (N, size, N)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)


@HOW
def test_reverse(comm, rank, size, jit):
    x = vector(size)
    want = jax.jacrev(whole_shift)(x)[:, :, rank]
    got = jit(mpixla.jacrev(lambda x: shift(x, comm), comm=comm))(x[rank])
    assert got.shape == (size, N, N)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)


def test_pytrees_and_argnums(comm, rank, size):
    """A result of two leaves by two arguments, of which one is a pytree."""
    a, b = vector(size), vector(size) + 1
    scale = jnp.arange(2.0)

    def fun(a, power, tree, *, plus):
        total = mpixla.allreduce(a * tree["b"], MPI.SUM, comm=comm, cotangent="varying")
        return {"y": total * tree["scale"][1] + plus, "z": [a**power]}

    def whole(a, tree):
        total = jnp.broadcast_to((a * tree["b"]).sum(0), a.shape)
        return {"y": total * tree["scale"][:, 1:] + 1, "z": [a**2]}

    trees = {"b": b, "scale": jnp.tile(scale, (size, 1))}
    args = (a[rank], 2, {"b": b[rank], "scale": scale})
    forward = mpixla.jacfwd(fun, (0, 2), comm=comm)(*args, plus=1.0)
    want = jax.jacfwd(whole, (0, 1))(a, trees)
    assert jax.tree.structure(forward) == jax.tree.structure(want)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y[rank], atol=1e-14), forward, want)
    reverse = mpixla.jacrev(fun, (0, 2), comm=comm)(*args, plus=1.0)
    assert jax.tree.structure(reverse) == jax.tree.structure(want)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y[:, :, rank], atol=1e-14), reverse, want)


@pytest.mark.parametrize("jac", [mpixla.jacfwd, mpixla.jacrev])
def test_numbers_that_are_no_arrays(rank, size, jac):
    """As JAX's take them."""
    got = jac(lambda x: mpixla.allreduce(x, MPI.SUM, cotangent="varying") * (rank + 1))(1.5)
    np.testing.assert_allclose(got, rank + 1 if jac is mpixla.jacfwd else np.arange(size) + 1)


def test_hessian(comm, rank, size):
    """Of one number that all ranks share: its gradient is spread, and so are the rows of its Hessian."""
    x = vector(size)
    got = mpixla.jacfwd(jax.grad(lambda x: jnp.sum(x) * 0 + mpixla.norm(x, comm=comm) ** 3), comm=comm)(x[rank])
    want = jax.hessian(lambda x: jnp.sqrt(jnp.sum(x**2)) ** 3)(x)[rank]
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


def test_what_is_the_same_on_every_rank(rank, size):
    """The derivatives of the page on derivatives: sums over ranks, and what is seeded together."""
    w = jnp.arange(1.0, 3.0)

    def own(w):
        return w**2 * (rank + 1)

    rows = mpixla.jacfwd(lambda w: mpixla.allreduce(own(w), MPI.SUM))(w)
    total = size * (size + 1) / 2
    np.testing.assert_allclose(rows.sum(1), jax.jacfwd(lambda w: mpixla.allreduce(own(w), MPI.SUM))(w))
    np.testing.assert_allclose(rows.sum(1), np.diag(2 * w * total))


def test_one_program(rank, size):
    def text_of(jac):
        return jax.jit(jac(lambda x: shift(x, MPI.COMM_SELF))).lower(jnp.ones(N)).as_text()

    texts = [text_of(jac) for jac in (mpixla.jacfwd, mpixla.jacrev)]
    assert len(set(MPI.COMM_WORLD.allgather(tuple(texts)))) == 1


@pytest.mark.parametrize("jac", [mpixla.jacfwd, mpixla.jacrev])
def test_refusals(jac):
    with pytest.raises(TypeError, match="needs arguments of real floats, but one has dtype complex64"):
        jac(jnp.sin)(jnp.ones(2, jnp.complex64))
    with pytest.raises(TypeError, match="needs arguments of real floats, but one has dtype int32"):
        jac(jnp.sin)(jnp.ones(2, jnp.int32))
    with pytest.raises(TypeError, match="needs results of real floats"):
        jac(lambda x: x + 1j)(jnp.ones(2))
    with pytest.raises(TypeError, match="comm"):
        jac(jnp.sin, comm="world")(jnp.ones(2))
