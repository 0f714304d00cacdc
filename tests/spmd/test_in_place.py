"""Operations whose result may take its operand's memory: not a program's own arguments, and nobody's values suffer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.layout import Format, Layout, with_layout_constraint
from mpi4py import MPI

import mpixla
from mpixla.core import eager

SIZE = MPI.COMM_WORLD.Get_size()
ROOT = SIZE - 1

OPS = {
    "allreduce": lambda x: mpixla.allreduce(x, MPI.SUM),
    "bcast": lambda x: mpixla.bcast(x, ROOT),
    "exscan": lambda x: mpixla.exscan(x, MPI.SUM),
    "reduce": lambda x: mpixla.reduce(x, MPI.SUM, ROOT),
    "scan": lambda x: mpixla.scan(x, MPI.SUM),
}
MODELS = {
    "allreduce": lambda x: np.tile(x.sum(0), (SIZE, 1)),
    "bcast": lambda x: np.tile(x[ROOT], (SIZE, 1)),
    "exscan": lambda x: np.cumsum(x, 0) - x,
    "reduce": lambda x: np.concatenate([x[:-1], x.sum(0, keepdims=True)]),
    "scan": lambda x: np.cumsum(x, 0),
}


def in_place(name, f, x):
    """Return for each call in the program whether its result takes the operand's memory."""
    calls = [line for line in jax.jit(f).lower(x).as_text().splitlines() if f"@mpixla_{name}(" in line]
    return ["output_operand_alias<" in line for line in calls]


@pytest.mark.parametrize("name", OPS)
def test_results_are_in_place_where_the_rank_receives(name, rank):
    op, x = OPS[name], jnp.ones(4)
    gives = {"bcast": rank != ROOT, "reduce": rank == ROOT}.get(name, True)
    assert in_place(name, op, x) == [False]
    assert in_place(name, lambda x: op(op(x)), x) == [False, gives]
    assert in_place(name, lambda x: lax.fori_loop(0, 3, lambda i, c: op(c), x), x) == [gives]


@pytest.mark.parametrize("name", OPS)
def test_operand_that_is_used_again(name, rank):
    op, model = OPS[name], MODELS[name]
    x = np.stack([np.arange(5.0) + 10 * r for r in range(SIZE)])

    def f(x):
        y = x * 2
        z = op(y)
        c = lax.fori_loop(0, 2, lambda i, c: c + op(c), x)
        constant = op(jnp.arange(3.0))
        return y, z, op(z) + z, c, constant, op(x), x

    def want(x):
        y = x * 2
        z = model(y)
        c = x + model(x)
        constants = np.tile(np.arange(3.0), (SIZE, 1))
        return y, z, model(z) + z, c + model(c), model(constants), model(x), x

    for _ in range(2):
        for got, w in zip(jax.jit(f)(x[rank]), want(x), strict=True):
            np.testing.assert_array_equal(got, w[rank])


def test_arguments_of_sealed_programs():
    """What is called eagerly or through mpixla.jit is a program of its own, with arguments of its own."""
    alone = eager._Program("allreduce", OPS["allreduce"], []).program
    sealed = mpixla.jit(OPS["allreduce"])._sealed
    for program in (alone, sealed):
        text = program.lower(jnp.ones(4)).as_text()
        assert "@mpixla_allreduce(" in text
        assert "output_operand_alias<" not in text


COLUMNS_FIRST = Format(Layout((1, 0)), jax.sharding.SingleDeviceSharding(jax.local_devices()[0]))


@pytest.mark.parametrize(
    "settings",
    [{}, {"in_shardings": COLUMNS_FIRST}, {"out_shardings": COLUMNS_FIRST}],
    ids=["transposed", "columns-first argument", "columns-first result"],
)
@pytest.mark.parametrize("name", OPS)
def test_layouts(name, rank, settings):
    """Items arrive in their places whatever layout XLA would have chosen, which a call in place does not ask for."""
    x = np.stack([np.arange(12.0).reshape(3, 4) + 100 * r for r in range(SIZE)])
    op, model = OPS[name], MODELS[name]

    def f(x):
        return op((x + rank).T).T, lax.fori_loop(0, 2, lambda i, c: op(c.T * 2).T, x)

    def over(x):  # the model's operations are those of rows of numbers
        return model(x.reshape(SIZE, -1)).reshape(x.shape)

    mine = jax.device_put(x[rank], settings.get("in_shardings"))
    added = over(x + np.arange(SIZE).reshape(-1, 1, 1))
    text = jax.jit(f, **settings).lower(mine).as_text()
    # Of the operand and of the result: XLA would choose either by what it computes there.
    assert text.count("@LayoutConstraint(") == 2 * text.count("output_operand_alias<")
    for _ in range(2):
        for got, want in zip(jax.jit(f, **settings)(mine), (added, over(2 * over(2 * x))), strict=True):
            np.testing.assert_array_equal(got, want[rank])


RING = MPI.COMM_WORLD.Create_cart([SIZE], periods=[True], reorder=False)
LAID_OUT = {
    **OPS,
    "halo_exchange": lambda x: mpixla.halo_exchange(x, RING, axes=(0,)),
    "overlap": lambda x: mpixla.overlap(mpixla.iallreduce(x, MPI.SUM), lambda x: x, x)[1],
}


@pytest.mark.parametrize(
    "use",
    [
        lambda y: with_layout_constraint(y, Layout((1, 0))) * 1,
        lambda y: jnp.linalg.solve(y + 9 * jnp.eye(3), jnp.ones(3)),
    ],
    ids=["constraint", "solve"],
)
@pytest.mark.parametrize("name", LAID_OUT)
def test_result_may_be_used_in_another_layout(name, use, rank):
    """What is computed of a result may take another layout than the one in which the call has written it."""
    x = jnp.arange(9.0).reshape(3, 3) + 100 * rank
    apart = use(LAID_OUT[name](x + 1))
    together = jax.jit(lambda x: use(LAID_OUT[name](x + 1)))(x)
    np.testing.assert_allclose(together, apart, rtol=1e-5)


@pytest.mark.parametrize("name", sorted({*OPS} - {"exscan"}))  # whose first rank has a result of zeros to write
def test_updates_stay_in_place(name):
    """XLA copies nothing around a loop's updates of a part of what is communicated."""

    def loop(x):
        return lax.fori_loop(0, 5, lambda i, x: OPS[name](x.at[1:-1].multiply(2)), x)

    text = jax.jit(loop, donate_argnums=0).lower(jnp.ones((6, 7))).compile().as_text()
    body = next(part for part in text.split("\n\n") if f"mpixla_{name}" in part)
    assert "ENTRY" not in body
    assert " copy(" not in body
