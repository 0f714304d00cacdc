"""Reverse mode of every operation: the dot-product identity, rank by rank, against differences of the oracle."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from cases import cases, explicit_mesh
from reference import difference, in_turn, normal

SIZE = MPI.COMM_WORLD.Get_size()
CASES = cases(lambda row, variant: row.differentiable(**variant) and row.reverse and row.name != "pvary")
LINEAR = [case for case in CASES if case.values[0].linear(**case.values[1])]


def cotangents(row, inputs, size, **variant):
    """Return one for each rank's result: the same ones where they count once."""
    results = [row.model(inputs, r, **variant) for r in range(size)]
    once = row.counts_once(**variant)
    return [np.random.default_rng(99 if once else r).normal(size=y.shape) for r, y in enumerate(results)]


@pytest.mark.parametrize(("row", "variant", "how"), in_turn(CASES, ["jit of grad", "eager", "remat", "explicit mesh"]))
def test_vjp(row, variant, comm, rank, size, how):
    """By each rank's operands alone: sum of (cotangent of its operand) * tangent = sum of cotangents * tangents out."""
    inputs = [normal(row, (2, 3), r, size, **variant) for r in range(size)]
    weights = cotangents(row, inputs, size, **variant)

    def f(*operands):
        return row.call(*operands, comm=comm, **variant)

    def pull_back(f, operands, ct):
        return jax.vjp(f, *operands)[1](ct)

    if how == "remat":
        f = jax.checkpoint(f)
    run = jax.jit(pull_back, static_argnums=0) if how in ("jit of grad", "explicit mesh") else pull_back
    with explicit_mesh() if how == "explicit mesh" else nullcontext():
        got = run(f, inputs[rank], weights[rank])
    assert [x.shape for x in got] == [x.shape for x in inputs[rank]]

    mine = normal(row, (2, 3), rank, size, 5, **variant)
    only_mine = [mine if r == rank else [np.zeros_like(x) for x in inputs[r]] for r in range(size)]
    out = [difference(row, inputs, only_mine, r, **variant) for r in range(size)]
    counted = [0] if row.counts_once(**variant) else range(size)
    want = sum(np.vdot(weights[r], out[r]) for r in counted)
    np.testing.assert_allclose(sum(np.vdot(*pair) for pair in zip(got, mine, strict=True)), want, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("row", "variant"), LINEAR)
def test_transposing_twice_gives_the_operation_back(row, variant, comm, rank, size):
    x = tuple(normal(row, (2, 3), rank, size, **variant))

    def f(*operands):
        return row.call(*operands, comm=comm, **variant)

    y = f(*x)
    transpose = jax.linear_transpose(f, *x)
    twice = jax.linear_transpose(lambda ct: transpose(ct), y)
    np.testing.assert_allclose(twice(x)[0], y, rtol=1e-12)


@pytest.mark.two_ranks
@pytest.mark.parametrize(("row", "variant"), CASES[::2])
def test_second_derivatives(row, variant, comm, rank, size):
    """Forward over reverse and reverse over reverse agree, jitted or not."""
    x = tuple(normal(row, (2,), rank, size, **variant))

    def loss(x):
        return jnp.sum(jnp.sin(row.call(x, *x_rest, comm=comm, **variant)))

    x, *x_rest = x
    shapes = {tuple(map(np.shape, normal(row, (2,), r, size, **variant))) for r in range(size)}
    if len(shapes) == 1:  # a Jacobian is a batch along all of an operand's entries: as many on every rank
        forward = jax.jit(jax.jacfwd(jax.jacrev(loss)))(x)
        assert forward.shape == (*x.shape, *x.shape)
        if size == 1:  # on more ranks each counts the others' results in its own way
            np.testing.assert_allclose(forward, jax.jit(jax.jacrev(jax.jacrev(loss)))(x), rtol=1e-10, atol=1e-12)
    # Against differences of the gradient along the first direction, which all ranks take at once.
    step = np.zeros_like(x)
    step.flat[:1] = 1e-6  # a rank may have no entries, and takes part all the same
    slope = (jax.grad(loss)(x + step) - jax.grad(loss)(x - step)) / 2e-6
    direction = np.zeros_like(x)
    direction.flat[:1] = 1.0
    hvp = jax.jvp(jax.grad(loss), (x,), (direction,))[1]
    np.testing.assert_allclose(hvp, slope, rtol=1e-5, atol=1e-7)


def test_pvary(rank, size):
    """The gradient of a loss that all ranks share, by a parameter that all ranks share."""
    data = np.arange(4.0) + rank

    def loss(w):
        return mpixla.allreduce(jnp.sum((mpixla.pvary(w) * data) ** 2), MPI.SUM)

    every = np.concatenate([np.arange(4.0) + r for r in range(size)])
    np.testing.assert_allclose(jax.grad(loss)(3.0), 2 * 3.0 * np.sum(every**2))
    np.testing.assert_allclose(jax.jit(jax.hessian(loss))(3.0), 2 * np.sum(every**2))
    transpose = jax.linear_transpose(lambda x: mpixla.pvary(x), 1.0)
    np.testing.assert_allclose(transpose(rank + 1.0)[0], size * (size + 1) / 2)


REDUCTIONS = {
    "allreduce": mpixla.allreduce,
    "scan": mpixla.scan,
    "exscan": mpixla.exscan,
    "reduce": lambda x, op: mpixla.reduce(x, op, 0),
    "reduce_scatter": lambda x, op: mpixla.reduce_scatter(jnp.stack([x] * SIZE), op),
    "iallreduce": lambda x, op: mpixla.wait(mpixla.iallreduce(x, op)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_nonlinear_operations_have_no_transpose(name):
    own = MPI.Op.Create(lambda a, b, _: None)
    for op in (MPI.MAX, MPI.PROD, own):
        with pytest.raises(TypeError, match=rf"{name} with op .* is not linear, so it has no transpose"):
            jax.eval_shape(jax.linear_transpose(lambda x, op=op: REDUCTIONS[name](x, op), jnp.ones(3)), jnp.ones(3))


def test_proc_null(rank, size):
    """From nobody comes the template, with its derivative."""

    def f(x, template):
        above = rank + 1 if rank < size - 1 else MPI.PROC_NULL
        below = rank - 1 if rank > 0 else MPI.PROC_NULL
        return mpixla.sendrecv(x, template, below, above)

    x, template, ct = np.arange(3.0) + rank, np.full(3, 10.0), np.full(3, rank + 1.0)
    y, vjp = jax.vjp(f, x, template)
    np.testing.assert_allclose(y, np.arange(3.0) + rank - 1 if rank > 0 else template)
    x_bar, template_bar = vjp(ct)
    np.testing.assert_allclose(x_bar, np.full(3, rank + 2.0 if rank < size - 1 else 0.0))
    np.testing.assert_allclose(template_bar, ct if rank == 0 else np.zeros(3))


def test_send_has_no_reverse_mode(rank, size):
    def loss(x):
        mpixla.send(x, MPI.PROC_NULL)
        return jnp.sum(x)

    for grad in (jax.grad(loss), jax.jit(jax.grad(loss)), jax.grad(jax.jit(loss))):
        with pytest.raises(TypeError, match="send has no reverse mode"):
            grad(jnp.ones(3))


def test_exchange_with_one_differentiable_direction_is_refused(rank, size):
    """Refused on every rank, as the others would wait for what is not sent."""
    x, i = jnp.float32(rank), jnp.int32(rank)
    up, down = (rank + 1) % size, (rank - 1) % size
    for given, template in ((x, i), (i, x)):
        for call in (mpixla.sendrecv, lambda *args: mpixla.wait(mpixla.isendrecv(*args))):
            f = lambda x, given=given, template=template, call=call: call(  # noqa: E731
                x if given.dtype == x.dtype else given, x if template.dtype == x.dtype else template, down, up
            )
            with pytest.raises(TypeError, match="of which one has a derivative and the other none"):
                jax.make_jaxpr(lambda x, f=f: jax.jvp(f, (x,), (x,)))(x)
