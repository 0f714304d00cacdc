"""Every operation under JAX's control flow and its custom and saved derivatives: the same values and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from mpi4py import MPI

import mpixla
from messages import by_recv, by_request
from reference import ROWS, in_turn, normal

SIZE = MPI.COMM_WORLD.Get_size()


def variant_of(row):
    """Return one variant of a row: the sum, and a root that is not the first."""
    variants = row.variants(SIZE)
    return next((v for v in variants if v.get("root", SIZE - 1) == SIZE - 1), variants[0])


CASES = [pytest.param(row, id=row.name) for row in ROWS if row.differentiable(**variant_of(row))]
REVERSE = [case for case in CASES if case.values[0].reverse]
# Where JAX's own rules do not ask what the operation is: one of each kind of call.
KINDS = [c for c in REVERSE if c.id in ("allreduce", "alltoallv", "halo_exchange", "isend", "isendrecv", "sendrecv")]


def function(row, comm, size):
    """Return the operation from one array to an array of the same shape, with a scalar that differs by rank."""
    variant = variant_of(row)
    x, *rest = normal(row, (3,), comm.Get_rank(), size, **variant)

    def f(x):
        y = row.call(x, *rest, comm=comm, **variant)
        return jnp.sin(x) if y is None else x * 0.5 + jnp.mean(y)

    return f, x


WRAPPERS = {
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (f(c), jnp.sum(c)), x, None, length=3)[0],
    "cond": lambda f: lambda x: lax.cond(jnp.sum(x) > -1e9, lambda x: f(f(f(x))), lambda x: x, x),
    "remat": lambda f: lambda x: jax.checkpoint(f)(jax.checkpoint(f)(f(x))),
    "remat policy": lambda f: jax.checkpoint(
        lambda x: f(f(f(x))), policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    ),
    "jit in jit": lambda f: jax.jit(lambda x: jax.jit(f)(jax.jit(f)(f(x)))),
}


def three_times(f):
    return lambda x: f(f(f(x)))


@pytest.mark.parametrize("how", ["scan", "cond", "remat policy", "jit in jit"])
@pytest.mark.parametrize("row", CASES)
def test_values(row, how, comm, size):
    f, x = function(row, comm, size)
    np.testing.assert_allclose(jax.jit(WRAPPERS[how](f))(x), three_times(f)(x), rtol=1e-12)


@pytest.mark.parametrize("how", ["scan", "cond", "remat policy"])
@pytest.mark.parametrize("row", REVERSE)
def test_gradients(row, how, comm, size):
    f, x = function(row, comm, size)
    want = jax.grad(lambda x: jnp.sum(three_times(f)(x) ** 2))(x)
    loss = lambda x: jnp.sum(WRAPPERS[how](f)(x) ** 2)  # noqa: E731
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(x), want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("how", ["remat", "jit in jit"])
@pytest.mark.parametrize("row", REVERSE)
def test_gradients_where_a_rank_ignores_the_result(row, how, comm, rank, size):
    """The rank takes part all the same, forward and backward: the others count on it."""
    f, x = function(row, comm, size)

    def g(x):
        y = f(x)
        return x * 2 if rank == 0 else y

    want = jax.grad(lambda x: jnp.sum(three_times(g)(x) ** 2))(x)
    loss = lambda x: jnp.sum(WRAPPERS[how](g)(x) ** 2)  # noqa: E731
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(x), want, rtol=1e-10, atol=1e-12)


DERIVED = {
    "reverse over reverse": lambda f: jax.grad(lambda x: jnp.sum(jax.grad(f)(x) ** 2)),
    "forward over reverse": lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (jnp.ones_like(x),))[1],
    "forward over forward": lambda f: slope(slope(f)),
    "vmap of reverse": lambda f: lambda x: jax.vmap(jax.grad(f))(jnp.stack([x, 2 * x])),
    "vmap of forward": lambda f: lambda x: jax.vmap(slope(f))(jnp.stack([x, 2 * x])),
    "vmap of a scan": lambda f: lambda x: jax.vmap(jax.grad(in_a_scan(f)))(jnp.stack([x, 2 * x])),
}


def slope(f):
    return lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),))[1]


def in_a_scan(f):
    return lambda x: lax.scan(lambda c, _: (c * 0.5, f(c)), x, None, length=2)[1].sum()


@pytest.mark.parametrize(
    ("row", "what"), in_turn(REVERSE, [f"{what}, {how}" for what in ("ignored", "ones") for how in DERIVED])
)
def test_cotangent_constant_on_one_rank(row, what, comm, rank, size):
    """A cotangent of zeros, or of ones, on the first rank: as where JAX does not see that it is."""
    f, x = function(row, comm, size)
    ignored, how = what.split(", ")

    def chosen(choose):
        def loss(x):
            y = f(x * x)
            return choose(jnp.sum(x) if ignored == "ignored" else jnp.sum(y), jnp.sum(y**3))

        return jax.jit(DERIVED[how](loss))(x)

    want = chosen(lambda first, other: jnp.where(rank == 0, first, other))
    np.testing.assert_allclose(chosen(lambda first, other: first if rank == 0 else other), want, rtol=1e-10, atol=1e-12)


@pytest.mark.skipif(SIZE == 1, reason="needs two ranks")
@pytest.mark.parametrize("how", ["forward over forward", "vmap of forward"])
def test_constant_tangent_of_a_sent_array(how, comm, rank):
    def f(x):
        if rank == 0:
            mpixla.send(x, 1, comm=comm)
        return jnp.sum(mpixla.recv(x, 0, comm=comm) ** 3) if rank == 1 else jnp.sum(x**3)

    x = jnp.arange(3.0) + 1
    alone = jax.jit(DERIVED[how](lambda x: jnp.sum(x**3)))(x)
    np.testing.assert_allclose(jax.jit(DERIVED[how](f))(x), alone, rtol=1e-12)


@pytest.mark.parametrize("row", KINDS)
def test_forward_mode_of_while_loop(row, comm, size):
    f, x = function(row, comm, size)
    loop = lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, f(c[1])), (0, x))[1]  # noqa: E731
    value, tangent = jax.jit(lambda x, t: jax.jvp(loop, (x,), (t,)))(x, np.ones_like(x))
    want = jax.jvp(three_times(f), (x,), (np.ones_like(x),))
    np.testing.assert_allclose(value, want[0], rtol=1e-12)
    np.testing.assert_allclose(tangent, want[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("row", KINDS)
def test_custom_vjp(row, comm, size):
    """Communication inside a user's own rule, forward and backward."""
    f, x = function(row, comm, size)
    g = jax.custom_vjp(f)
    g.defvjp(lambda x: (f(x), x), lambda x, ct: jax.vjp(f, x)[1](ct))
    for wrap in (lambda h: h, jax.jit):
        got = wrap(jax.grad(lambda x: jnp.sum(g(x) ** 2)))(x)
        np.testing.assert_allclose(got, jax.grad(lambda x: jnp.sum(f(x) ** 2))(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("row", KINDS)
def test_custom_jvp(row, comm, size):
    f, x = function(row, comm, size)
    g = jax.custom_jvp(f)
    g.defjvp(lambda primals, tangents: jax.jvp(f, primals, tangents))
    t = np.ones_like(x)
    np.testing.assert_allclose(
        jax.jit(lambda x: jax.jvp(g, (x,), (t,))[1])(x), jax.jvp(f, (x,), (t,))[1], rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("row", KINDS)
def test_vmap_in_scan(row, comm, size):
    f, x = function(row, comm, size)
    xs = np.stack([x, x + 1])
    got = jax.jit(lambda xs: lax.scan(lambda c, _: (jax.vmap(f)(c), None), xs, None, length=2)[0])(xs)
    np.testing.assert_allclose(got, np.stack([f(f(x)) for x in xs]), rtol=1e-12)
    got = jax.jit(jax.vmap(lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]))(xs)
    np.testing.assert_allclose(got, np.stack([f(f(x)) for x in xs]), rtol=1e-12)


def _sum(x):
    return mpixla.pvary(mpixla.allreduce(x, op=MPI.SUM))


def _branch(x):
    return jax.lax.cond(x.sum() < jnp.inf, _sum, lambda x: x, x)


def _scan(x):
    return jax.lax.scan(lambda carry, _: (_sum(carry), None), x, None, length=2)


IGNORED = {
    "checkpoint": jax.checkpoint(_sum),
    "jit": jax.jit(_sum),
    "cond": _branch,
    "scan": _scan,
    "fori_loop": lambda x: jax.lax.fori_loop(0, 2, lambda i, x: _sum(x), x),
}


@pytest.mark.parametrize("what", IGNORED)
def test_reverse_mode_of_a_result_that_one_rank_ignores(what):
    """Rank 0 ignores a result that the others use, within checkpoints and a loop: all make the same calls."""
    comm = mpixla.get_default_comm()
    others = comm.Split(min(comm.rank, 1), 0)

    @jax.checkpoint
    def body(x):
        y = jax.tree.leaves(IGNORED[what](x))[0]
        if comm.rank > 0:
            x = x + 0 * mpixla.pvary(mpixla.allreduce(y, op=MPI.SUM, comm=others), comm=others)
        return 2 * x

    def loss(x):
        return jax.lax.scan(lambda carry, _: (jax.checkpoint(body)(carry), None), x, None, length=2)[0].sum()

    np.testing.assert_array_equal(jax.jit(jax.grad(loss))(jnp.ones(3)), 4 * np.ones(3))
    mpixla.barrier()


DERIVATIVES = {
    "vjp": lambda f, x, ct: (lambda y, back: (y, back(ct)[0]))(*jax.vjp(f, x)),
    "linearize": lambda f, x, ct: (lambda y, f_at: (y, jax.linear_transpose(f_at, x)(ct)[0]))(*jax.linearize(f, x)),
    "checkpoint": lambda f, x, ct: (lambda y, back: (y, back(ct)[0]))(*jax.vjp(jax.checkpoint(f), x)),
    "jit in a checkpoint": lambda f, x, ct: (lambda y, back: (y, back(ct)[0]))(*jax.vjp(jax.checkpoint(jax.jit(f)), x)),
}


def _in_a_branch(message, template, below, above, comm):
    return lax.cond(
        jnp.sum(message) > -1e9, lambda m: by_recv(m, template, below, above, comm), lambda m: (m, m), message
    )


@pytest.mark.parametrize("jitted", [False, True], ids=["", "jitted"])
@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("exchange", [by_request, by_recv, _in_a_branch])
def test_receives_into_a_constant_in_a_loop(comm, rank, below, above, exchange, derivative, jitted):
    """JAX would take the receive out of the loop, since it depends on nothing that changes there.

    What is received has no derivative, but is a factor in one.
    """

    def f(x):
        def step(carry, _):
            message, total = carry
            received, sent = exchange(message, jnp.zeros(3), below, above, comm)
            return (2 * sent, total + received * x), None

        return lax.scan(step, (lax.stop_gradient(x), jnp.zeros(3)), None, length=3)[0][1]

    x, of_below, ct = (np.arange(3.0) + r + 1 for r in (rank, below, 9))
    derive = functools.partial(DERIVATIVES[derivative], f)
    y, x_bar = (jax.jit(derive) if jitted else derive)(x, ct)
    np.testing.assert_allclose(y, 7 * of_below * x)
    np.testing.assert_allclose(x_bar, 7 * of_below * ct)


@pytest.mark.needs_hook("scan")
@pytest.mark.parametrize("derivative", ["vjp", "checkpoint"])
def test_ignored_call_in_a_loop_is_made_as_often(comm, size, derivative):
    """On every rank, whether what it communicates changes in the loop or not."""
    if size < 2:
        pytest.skip("needs two ranks that differ")
    rank = comm.Get_rank()

    def f(x):
        def step(_, a):
            mpixla.allreduce(a, MPI.SUM, comm=comm)
            return a * 2 if rank == 0 else a

        return lax.fori_loop(0, 3, step, x)

    text = str(jax.make_jaxpr(lambda x: DERIVATIVES[derivative](f, x, x))(jnp.ones(3)))
    looped = "".join(part.split("length=3")[0] for part in text.split("scan[")[1:])
    assert text.count("allreduce[") == looped.count("allreduce[") > 0
    jax.block_until_ready(DERIVATIVES[derivative](f, jnp.ones(3), jnp.ones(3)))


def _custom_jvp(f):
    g = jax.custom_jvp(f)
    g.defjvp(lambda primals, tangents: (g(*primals), f(*tangents)))
    return g


def _custom_vjp(f):
    g = jax.custom_vjp(f)
    g.defvjp(lambda x: (g(x), None), lambda _, ct: (f(ct),))
    return g


OF_ITS_OWN_DERIVATIVE = {
    "custom_jvp": _custom_jvp,
    "custom_vjp": _custom_vjp,
    "MAXLOC": lambda _: lambda x: mpixla.allreduce((x, jnp.arange(3)), MPI.MAXLOC)[0],
}


@pytest.mark.skipif(
    getattr(jax.config, "jax_custom_vjp3", False) and jax.__version_info__ < (0, 11),
    reason="JAX 0.10's next custom_vjp hides what is inside (docs/other_tools.md)",
)
@pytest.mark.needs_hook("scan")
@pytest.mark.parametrize("derivative", ["vjp", "checkpoint"])
@pytest.mark.parametrize("own", OF_ITS_OWN_DERIVATIVE)
def test_operand_that_changes_in_a_loop_on_one_rank(comm, rank, below, above, own, derivative):
    """What is in a function with a derivative of its own is not taken out of the loop on the other ranks either."""
    g = OF_ITS_OWN_DERIVATIVE[own](lambda c: mpixla.sendrecv(c, c, below, above, comm=comm))
    c = np.arange(3.0)

    def f(x):
        return lax.scan(lambda a, i: (a * g(c + (i if rank == 0 else 0)), None), x, jnp.arange(3.0))[0]

    greatest = own == "MAXLOC"  # that of rank 0
    factor = c * (c + 1) * (c + 2) if below == 0 or greatest else c**3
    y, x_bar = DERIVATIVES[derivative](f, c + 1, np.full(3, 2.0))
    np.testing.assert_allclose(y, (c + 1) * factor)
    np.testing.assert_allclose(x_bar, 2 * factor)


@pytest.mark.parametrize("where", ["body", "condition"])
def test_while_loop_in_a_checkpoint(comm, rank, size, where):
    """It is run once, and what it gave is kept for the way back."""
    norm = functools.partial(mpixla.norm, comm=comm)
    asks = (lambda s: norm(s[0]) > 1) if where == "condition" else (lambda s: s[1] > 1)

    @jax.checkpoint
    def f(x):
        y = lax.stop_gradient(x)
        y, *_ = lax.while_loop(asks, lambda s: (s[0] / 2, s[1] if where == "condition" else norm(s[0] / 2)), (y, 9.0))
        return jnp.sin(x * y).sum()

    x = np.arange(3.0) + 10 * rank
    norms = np.sqrt(sum(np.sum((np.arange(3.0) + 10 * r) ** 2) for r in range(size)))
    y = x / 2 ** np.ceil(np.log2(norms))
    np.testing.assert_allclose(jax.jit(jax.grad(f))(x), y * np.cos(x * y), rtol=1e-12)
    assert str(jax.make_jaxpr(jax.grad(f))(x)).count("allreduce[") == 1


@pytest.mark.needs_hook("while_loops")
@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint], ids=["as it is", "checkpoint"])
def test_reverse_mode_where_a_while_loop_only_compares(comm, rank, size, wrap):
    """The median of all ranks' numbers, by bisection."""
    x = np.array([1.0, 5.0, 2.0, 8.0]) + 10 * rank
    everyone = np.concatenate([np.array([1.0, 5.0, 2.0, 8.0]) + 10 * r for r in range(size)])

    @wrap
    def f(x):
        def halve(s):
            low, high = s
            middle = (low + high) / 2
            below = mpixla.allreduce(jnp.sum(x < middle), MPI.SUM, comm=comm)
            return jnp.where(below < 2 * size, middle, low), jnp.where(below < 2 * size, high, middle)

        median, _ = lax.while_loop(lambda s: s[1] - s[0] > 1e-3, halve, (-100.0, 100.0))
        return jnp.sum(jnp.where(x > median + 0.1, x**2, 0.0))

    above = x > np.sort(everyone)[2 * size - 1] + 0.1
    for g in (jax.grad(f), jax.jit(jax.grad(f))):
        np.testing.assert_allclose(g(x), np.where(above, 2 * x, 0))
