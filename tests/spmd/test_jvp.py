"""Forward mode of every operation, against differences of the oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.jet import jet
from jax.sharding import PartitionSpec as P
from mpi4py import MPI

import mpixla
from cases import cases
from reference import difference, in_turn, normal

SIZE = MPI.COMM_WORLD.Get_size()
CASES = cases(lambda row, variant: row.differentiable(**variant))


@pytest.mark.parametrize(("row", "variant", "how"), in_turn(CASES, ["jit", "jit", "eager"]))
def test_jvp(row, variant, comm, rank, size, how):
    inputs, tangents = ([normal(row, (2, 3), r, size, draw, **variant) for r in range(size)] for draw in (0, 1))

    def f(*operands):
        return row.call(*operands, comm=comm, **variant)

    def run(primals, tangents):
        return jax.jvp(f, primals, tangents)

    value, tangent = (jax.jit(run) if how == "jit" else run)(tuple(inputs[rank]), tuple(tangents[rank]))
    want = row.model(inputs, rank, **variant)
    if want is None:
        assert tangent is None
        return
    np.testing.assert_allclose(value, want, rtol=1e-12)
    np.testing.assert_allclose(tangent, difference(row, inputs, tangents, rank, **variant), rtol=1e-6, atol=1e-8)


def test_no_derivative_of_user_made_reductions():
    op = MPI.Op.Create(lambda a, b, datatype: None)
    for name, call in (
        ("allreduce", mpixla.allreduce),
        ("iallreduce", lambda x, op: mpixla.wait(mpixla.iallreduce(x, op))),
    ):
        with pytest.raises(TypeError, match=rf"^{name} with op .* \(user-made\) has no derivative"):
            jax.jvp(lambda x: call(x, op), (1.0,), (1.0,))  # noqa: B023
    op.Free()


def test_integers_have_no_tangent():
    """An integer that travels beside a float is no obstacle."""

    def f(x):
        return x * mpixla.allreduce(np.int32(2), MPI.SUM)

    assert jax.jvp(f, (3.0,), (1.0,)) == (6.0 * SIZE, 2.0 * SIZE)
    assert jax.grad(f)(3.0) == 2.0 * SIZE


@pytest.mark.parametrize("mode", ["jvp", "vjp"])
@pytest.mark.parametrize("op", [MPI.MAX, MPI.MIN], ids=["MAX", "MIN"])
def test_ties_share_the_derivative(op, mode, rank, size):
    x = np.array([1.0, float(rank), 1.0 if rank == size - 1 else -1.0])  # all hold it, one does, one does
    winner = size - 1 if op == MPI.MAX else 0
    losers = size if size == 1 else size - 1
    share = np.array([1 / size, float(rank == winner), 0.0])
    holds = (rank == size - 1) if op == MPI.MAX else (rank < size - 1 or size == 1)
    share[2] = holds / (1 if op == MPI.MAX else losers)
    if mode == "vjp":
        np.testing.assert_allclose(jax.grad(lambda x: mpixla.allreduce(x, op).sum())(x), share)
    else:
        t = np.full(3, rank + 1.0)
        want = MPI.COMM_WORLD.allreduce(share * t)
        np.testing.assert_allclose(jax.jvp(lambda x: mpixla.allreduce(x, op), (x,), (t,))[1], want)


@pytest.mark.parametrize("name", ["allreduce", "iallreduce", "iscan", "reduce_scatter", "scan"])
def test_extremes_of_values_that_xla_computes_twice(name, rank, size):
    """It fuses the operand with what follows, and may round there in another way than in what is sent."""
    function = getattr(mpixla, name)
    call = (lambda x, op: function(x, op).wait()) if name.startswith("i") else function

    def loss(x):
        return call(0.3 * x + mpixla.sendrecv(x, x, (rank - 1) % size, (rank + 1) % size), MPI.MAX).sum()

    def gradient(x):
        return jax.vmap(jax.grad(loss), 2)(jnp.sin(x) + 0.1 * x)

    x = np.random.default_rng(rank).uniform(-1, 1, (size, 4, 300))
    got = jax.jit(gradient, compiler_options={"xla_backend_optimization_level": 0})(x)
    # Each entry of a result has one holder, who has it from two ranks.
    want = 1.3 * x.size * (size if name.endswith("scan") else 1)
    np.testing.assert_allclose(MPI.COMM_WORLD.allreduce(np.sum(got)), want)


@pytest.mark.parametrize("spread", ["shard_map", "pmap"])
def test_on_a_mesh_of_one_device(spread, rank, size):
    """Where JAX adds nothing up, the convention is that outside."""
    mesh = jax.sharding.Mesh(jax.local_devices()[:1], "x")

    def both(fun):
        if spread == "pmap":
            return lambda x: jax.pmap(fun, axis_name="x", devices=jax.local_devices()[:1])(x[None])[0]
        return jax.jit(jax.shard_map(fun, mesh=mesh, in_specs=P(), out_specs=P()))

    losses = {
        "allreduce": lambda x: mpixla.allreduce((x**2).sum(), MPI.SUM),
        "iallreduce": lambda x: mpixla.wait(mpixla.iallreduce((x**2).sum(), MPI.SUM)),
        "pvary": lambda x: mpixla.allreduce((rank + 1) * (mpixla.pvary(x) ** 2).sum(), MPI.SUM),
        "varying": lambda x: (rank + 1) * mpixla.allreduce((x**2).sum(), MPI.SUM, cotangent="varying"),
    }
    x = np.arange(3.0) + 1
    for name, loss in losses.items():
        want = 2 * x * (size * (size + 1) / 2 if name in ("pvary", "varying") else 1)
        np.testing.assert_allclose(both(jax.grad(loss))(x), want, err_msg=name)


@pytest.mark.parametrize("how", ["allreduce", "scan", "exscan", "reduce_scatter"])
def test_product_with_zeros(how, rank, size):
    """One zero factor, and several: the derivative by a zero factor is the product of the others."""
    x = np.array([0.0 if rank == 0 else rank + 1.0, 0.0 if rank < 2 else 2.0, rank + 1.0])
    if how == "reduce_scatter":
        x = np.stack([x] * size)

    def f(x):
        return getattr(mpixla, how)(x, MPI.PROD)

    xs = MPI.COMM_WORLD.allgather(x)
    t = np.ones_like(x) * (rank + 2)
    ts = MPI.COMM_WORLD.allgather(t)
    parts = [x_[rank] for x_ in xs] if how == "reduce_scatter" else xs
    dirs = [t_[rank] for t_ in ts] if how == "reduce_scatter" else ts
    ranks = {"scan": range(rank + 1), "exscan": range(rank)}.get(how, range(size))
    others = [np.prod([parts[j] for j in ranks if j != k], axis=0) if len(ranks) > 1 else 1.0 for k in ranks]
    want = sum((o * dirs[k] for o, k in zip(others, ranks, strict=True)), np.zeros(3))
    np.testing.assert_allclose(jax.jvp(f, (x,), (t,))[1], want)


@pytest.mark.parametrize("op", [MPI.PROD, MPI.MAX], ids=["PROD", "MAX"])
def test_nan_stays_with_the_results_that_depend_on_it(op, rank, size):
    """Of the last rank's operand its own scan does, and no exscan."""
    x, t = jnp.float32(2 + rank), jnp.float32(jnp.nan if rank == size - 1 else 1)
    assert np.isfinite(jax.jvp(lambda x: mpixla.exscan(x, op), (x,), (t,))[1])
    assert np.isfinite(jax.jvp(lambda x: mpixla.scan(x, op), (x,), (t,))[1]) == (rank < size - 1)


def test_taylor_series(comm, rank, size, below, above):
    """Of what is linear each term is the operation's; others are refused."""

    def f(x):
        request = mpixla.isendrecv(jnp.sin(x), x, below, above, comm=comm)
        return mpixla.overlap(request, lambda x: mpixla.allreduce(x * x, MPI.SUM, comm=comm), x)

    x, t = np.array([0.5, 1.0]) + rank, np.array([1.0, 2.0]) * (rank + 1)
    y, terms = jet(f, (jnp.asarray(x),), ([jnp.asarray(t), jnp.zeros(2)],))
    every = [(np.array([0.5, 1.0]) + r, np.array([1.0, 2.0]) * (r + 1)) for r in range(size)]
    x, t = every[below]
    for got, want in zip([y[0], *terms[0]], [np.sin(x), np.cos(x) * t, -np.sin(x) * t**2], strict=True):
        np.testing.assert_allclose(got, want)
    squares = [sum(term) for term in zip(*[(x**2, 2 * x * t, 2 * t**2) for x, t in every], strict=True)]
    np.testing.assert_allclose([y[1], *terms[1]], squares)
    with pytest.raises(NotImplementedError, match="allreduce with op MAX has no rule for Taylor series"):
        jet(lambda x: mpixla.allreduce(x, MPI.MAX, comm=comm), (x,), ([t],))


@pytest.mark.parametrize("name", ["vdot", "norm"])
def test_taylor_series_of_exact_sums(name, rank, size):
    """Of which that of the product is not linear."""
    x, t, s = (jnp.arange(1.0, 3.0) + 7 * i + rank for i in range(3))
    xs, ts, ss = (jnp.concatenate(MPI.COMM_WORLD.allgather(np.asarray(v))) for v in (x, t, s))
    exact = {"vdot": lambda x: mpixla.vdot(jnp.sin(x), x, exact=True), "norm": lambda x: mpixla.norm(x, exact=True)}
    whole = {"vdot": lambda x: jnp.vdot(jnp.sin(x), x), "norm": lambda x: jnp.sqrt(jnp.vdot(x, x))}
    y, terms = jet(exact[name], (x,), ([t, s, t],))
    want, wanted = jet(whole[name], (xs,), ([ts, ss, ts],))
    np.testing.assert_allclose([y, *terms], [want, *wanted])


@pytest.mark.parametrize("op", [MPI.PROD, MPI.MAX], ids=["PROD", "MAX"])
@pytest.mark.parametrize("name", ["allreduce", "scan", "exscan"])
def test_strict_types_and_ranks(op, name, rank):
    """JAX is asked for no conversion: of types, or of the number of axes."""
    call, x = getattr(mpixla, name), jnp.arange(3.0) + rank + 1
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        y, t = jax.jvp(jax.grad(lambda x: (call(x, op) ** 2).sum()), (x,), (x,))
    assert y.shape == t.shape == (3,)
