"""Results are never weakly typed: MPI has no such types, and all ranks are to go on with the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from mpi4py import MPI

import mpixla
from cases import HOWS
from reference import ROWS

SIZE = MPI.COMM_WORLD.Get_size()


def variant_of(row):
    """Return one variant of a row, a sum if it reduces."""
    return next(v for v in row.variants(SIZE) if v.get("op", "SUM") == "SUM")


ROWS_OF_FLOATS = [pytest.param(row, id=row.name) for row in ROWS if row.differentiable(**variant_of(row))]


def weak(shape, value=1.5):
    x = jnp.broadcast_to(value, shape)
    assert x.weak_type
    return x


def no_weak_types(tree):
    for leaf in jax.tree.leaves(tree):
        assert isinstance(leaf, jax.Array)
        assert not leaf.weak_type


def call_of(row, comm):
    variant = variant_of(row)
    shapes = row.shapes(shape=(2,), rank=comm.Get_rank(), size=comm.Get_size(), **variant)
    return (lambda *xs: row.call(*xs, comm=comm, **variant)), [weak(shape) for shape in shapes]


@pytest.mark.parametrize("comm", [MPI.COMM_WORLD, MPI.COMM_SELF], ids=["all ranks", "alone"])
@pytest.mark.parametrize("row", ROWS_OF_FLOATS)
def test_results(row, comm):
    f, xs = call_of(row, comm)
    if comm == MPI.COMM_SELF and variant_of(row).get("root", 0) != 0:
        pytest.skip("the root is another rank")
    no_weak_types(f(*xs))
    no_weak_types(jax.jit(f)(*xs))
    no_weak_types(jax.jit(jax.vmap(f))(*(jnp.stack([x, x]) for x in xs)))


@pytest.mark.parametrize("row", [case for case in ROWS_OF_FLOATS if case.values[0].reverse])
def test_derivatives(row, comm):
    """JAX checks in each step that cotangents are of their primals' types."""
    f, xs = call_of(row, comm)

    def derive(*xs):
        y, tangent = jax.jvp(f, xs, xs)
        return (
            y,
            tangent,
            jax.linear_transpose(f, *xs)(y) if row.linear(**variant_of(row)) else (),
            jax.vjp(f, *xs)[1](y),
        )

    with jax.enable_checks(True):
        y, tangent, transposed, back = jax.jit(derive)(*xs)
    no_weak_types((y, tangent))
    assert jax.tree.map(jnp.shape, back) == jax.tree.map(jnp.shape, tuple(xs))
    for got, want in zip(transposed, back, strict=bool(transposed)):
        np.testing.assert_allclose(got, want)


@pytest.mark.parametrize("how", HOWS)
def test_type_does_not_depend_on_the_number_of_leaves(how):
    rates = [{"lr": 0.1}, {"lr": 0.1, "decay": 0.5}, {"lr": 0.1, "steps": 3}]
    for call in (
        lambda x: mpixla.bcast(x, 0),
        lambda x: mpixla.wait(mpixla.ibcast(x, 0)),
        lambda x: mpixla.allreduce(x, MPI.MAX),
        lambda x: mpixla.sendrecv(x, x, MPI.PROC_NULL, MPI.PROC_NULL),
        lambda x: mpixla.recv(x, MPI.PROC_NULL),
        lambda x: mpixla.wait(mpixla.irecv(x, MPI.PROC_NULL)),
        lambda x: mpixla.wait(mpixla.isend(x, MPI.PROC_NULL)),
        mpixla.assert_replicated,
        mpixla.pvary,
    ):
        for rate in rates:
            got = HOWS[how](call)(rate)
            no_weak_types(got)
            assert (got["lr"] * jnp.ones(2, jnp.bfloat16)).dtype == jnp.float64
            np.testing.assert_allclose(got["lr"], 0.1)


@pytest.mark.parametrize("how", HOWS)
def test_pairs_and_inner_products(how):
    x = weak((3,))
    places = jnp.broadcast_to(2, (3,))
    assert places.weak_type
    no_weak_types(HOWS[how](lambda x: mpixla.allreduce((x, places), MPI.MAXLOC))(x))
    no_weak_types(HOWS[how](lambda x: (mpixla.vdot(x, x), mpixla.norm(x), mpixla.fsum(x)))(x))


@pytest.mark.parametrize("how", HOWS)
def test_halo_of_a_weak_block(how):
    ring = MPI.COMM_WORLD.Create_cart([SIZE], periods=[False])
    x = weak((4,))
    no_weak_types(HOWS[how](lambda x: mpixla.halo_exchange(x, ring))(x))
    no_weak_types(HOWS[how](lambda x: mpixla.wait(mpixla.halo_start(x, ring)))(x))
    ring.Free()


def test_control_flow_that_begins_with_a_number():
    """JAX gives the number the type of what takes its place."""

    def mean(x):
        return mpixla.allreduce(x, MPI.SUM) / SIZE

    assert lax.scan(lambda c, _: (mean(c), None), 0.5, None, length=2)[0] == 0.5
    assert lax.while_loop(lambda c: c < 1, lambda c: mean(c) * 2, 0.5) == 1
    assert lax.fori_loop(0, 2, lambda i, c: mean(c), 0.5) == 0.5
    assert jax.jit(lambda p, x: lax.cond(p, mean, lambda x: x, x))(True, 0.5) == 0.5
    assert jax.grad(lambda x: lax.scan(lambda c, _: (mean(c), None), x, None, length=2)[0])(0.5) == 1 / SIZE**2
    assert jax.jit(jax.grad(lambda x: lax.cond(x > 0, mean, lambda x: x, x)))(0.5) == 1 / SIZE
