"""Batches of every operation, against the oracle one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from cases import cases
from messages import by_one_request, by_recv, by_request, by_sendrecv
from reference import ROWS, bits, expected, in_turn, operands

BATCH = 3
CASES = cases(lambda row, variant: row.shapes(shape=(), rank=0, size=1, **row.variants(1)[0]))


def float_or_int(row, variant):
    return next(t for t in map(np.dtype, ("float32", "int32")) if row.takes(t, **variant))


@pytest.mark.parametrize(("row", "variant", "axis"), in_turn(CASES, [1, -1, 0]))
def test_vmap(row, variant, comm, rank, size, axis):
    dtype, shape = float_or_int(row, variant), (2, 4)
    draws = [operands(row, dtype, shape, rank, size, draw, **variant) for draw in range(BATCH)]
    batch = [np.stack(same, axis) for same in zip(*draws, strict=True)]

    def f(*operands):
        return row.call(*operands, comm=comm, **variant)

    f_batch = jax.vmap(f, in_axes=axis, out_axes=axis)
    got = jax.jit(f_batch)(*batch)
    want = [expected(row, dtype, shape, rank, size, draw, **variant) for draw in range(BATCH)]
    if want[0] is None:
        assert got is None
    else:
        np.testing.assert_array_equal(bits(got), bits(np.stack(want, axis)))
    # The whole batch is one call of MPI.
    calls = f"mpixla_{row.name}("
    assert jax.jit(f_batch).lower(*batch).as_text().count(calls) == jax.jit(f).lower(*draws[0]).as_text().count(calls)


@pytest.mark.parametrize("batched", [0, 1])
def test_vmap_of_one_operand_of_two(comm, rank, size, batched):
    row = next(row for row in ROWS if row.name == "sendrecv")
    dtype, shape, variant = np.dtype("float32"), (2,), {"step": 1, "by": "ring"}
    draws = [operands(row, dtype, shape, rank, size, draw, **variant) for draw in range(BATCH)]
    stacked = np.stack([draw[batched] for draw in draws])
    given = [stacked, draws[0][1]] if batched == 0 else [draws[0][0], stacked]
    got = jax.vmap(lambda x, y: row.call(x, y, comm=comm, **variant), in_axes=(0, None) if batched == 0 else (None, 0))(
        *given
    )
    source_draws = [
        expected(row, dtype, shape, rank, size, draw if batched == 0 else 0, **variant) for draw in range(3)
    ]
    np.testing.assert_array_equal(got, np.stack(source_draws))


@pytest.mark.parametrize(("row", "variant"), CASES[::3])
def test_vmap_of_vmap(row, variant, comm, rank, size):
    dtype = float_or_int(row, variant)
    draws = [[operands(row, dtype, (2,), rank, size, 2 * i + j, **variant) for j in range(2)] for i in range(2)]
    batch = [
        np.stack([np.stack([draws[i][j][k] for j in range(2)]) for i in range(2)]) for k in range(len(draws[0][0]))
    ]
    got = jax.vmap(jax.vmap(lambda *x: row.call(*x, comm=comm, **variant)))(*batch)
    want = [[expected(row, dtype, (2,), rank, size, 2 * i + j, **variant) for j in range(2)] for i in range(2)]
    if want[0][0] is not None:
        np.testing.assert_array_equal(bits(got), bits(np.array(want)))


@pytest.mark.not_checked
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("call", [by_sendrecv, by_one_request, by_request, by_recv])
def test_vmap_of_messages_shorter_than_the_template(comm, rank, size, below, above, call, axis, depth):
    """In each part of the batch the message is in front, and the template's values remain behind it."""
    batch = (3, 2)[:depth]
    messages = [np.random.default_rng(r).normal(size=(*batch, 2)) for r in range(size)]
    template = -np.arange(np.prod(batch) * 6, dtype=float).reshape(*batch, 2, 3)

    def f(message, template):
        return call(message, template, below, above, comm)[0]

    want = template.copy()
    want.reshape(*batch, 6)[..., :2] = messages[below]
    given = [messages[rank], template]
    if axis == -1:
        given = [np.moveaxis(x, range(depth), range(-1, -depth - 1, -1)) for x in given]
    for _ in range(depth):
        f = jax.vmap(f, in_axes=axis)
    np.testing.assert_array_equal(jax.jit(f)(*given), want)


LOSSES = {
    "the cotangent of what arrived is a constant": lambda received, sent: jnp.sum(received) + jnp.sum(sent * sent),
    "that of what was sent is a constant": lambda received, sent: jnp.sum(received * received) + jnp.sum(sent),
    "what was sent is not used": lambda received, sent: jnp.sum(received * received),
    "what arrived is not used": lambda received, sent: jnp.sum(sent * sent),
}


@pytest.mark.parametrize("looped", [False, True], ids=["", "in a scan"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("call", [by_request, by_recv])
def test_vmap_of_gradients_of_messages(comm, rank, size, below, above, loss, call, looped):
    """Each end of a message has a cotangent of its own, of which JAX may know that it has no batch."""

    def f(x):
        if not looped:
            return LOSSES[loss](*call(x, x, below, above, comm))
        step = lambda a, _: (a, LOSSES[loss](*call(a, a, below, above, comm)))  # noqa: E731
        return jax.lax.scan(step, x, None, length=2)[1].sum()

    x = np.random.default_rng(rank).normal(size=(3, 2))
    want = np.stack([jax.grad(f)(part) for part in x])
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(f)))(x), want, rtol=1e-12)


@pytest.mark.parametrize("call", [by_sendrecv, by_one_request])
def test_vmap_of_gradients_by_a_template(comm, rank, size, call):
    """What goes back for a template is a cotangent on the rank without a source, zeros on the others, and as many."""
    below = rank - 1 if rank > 0 else MPI.PROC_NULL
    above = rank + 1 if rank + 1 < size else MPI.PROC_NULL

    def f(x):
        template = mpixla.scan(x, MPI.SUM, comm=comm)
        return jnp.sum(call(x, template, below, above, comm)[0] ** 2)

    x = np.random.default_rng(rank).normal(size=(3, 2))
    want = np.stack([jax.grad(f)(part) for part in x])
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(f)))(x), want, rtol=1e-12)


def test_named_axis_without_jit(size):
    """What vmap passes on is no array, though nothing is traced."""
    with jax.disable_jit():
        y = jax.vmap(lambda x: mpixla.allreduce(x, MPI.SUM) + jax.lax.axis_index("i"), axis_name="i")(jnp.ones(3))
    np.testing.assert_array_equal(y, size + np.arange(3))
