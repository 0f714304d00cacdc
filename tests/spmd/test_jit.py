"""mpixla.jit does what jax.jit does, with a program that has no effects."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import dispatch as _dispatch
from jax.extend.core import Primitive
from jax.interpreters import mlir
from mpi4py import MPI

import mpixla
from reference import ROWS, bits, normal

SIZE = MPI.COMM_WORLD.Get_size()


class Pair(NamedTuple):
    a: object
    b: object


def both(fun, **options):
    return jax.jit(fun, **options), mpixla.jit(fun, **options)


def same(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (g.dtype, g.shape, g.weak_type) == (w.dtype, w.shape, w.weak_type)
        np.testing.assert_array_equal(bits(g), bits(w))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_operation(row, comm, rank, size):
    variant = row.variants(SIZE)[0]
    inputs = normal(row, (3,), rank, size, **variant)
    plain, sealed = both(lambda *x: row.call(*x, comm=comm, **variant))
    want = plain(*inputs)
    for _ in range(2):
        same(sealed(*inputs), want)


@pytest.mark.needs_hook("sealing")
def test_is_dispatched_without_python(rank, monkeypatch):
    """JAX does not hand it tokens, as it does to a program with effects; and it is traced once."""
    traces, tokens = [], []
    get_token = _dispatch.RuntimeTokenSet.get_token_input
    monkeypatch.setattr(_dispatch.RuntimeTokenSet, "get_token_input", lambda *a: tokens.append(1) or get_token(*a))

    @mpixla.jit
    def f(x):
        traces.append(1)
        return mpixla.allreduce(x, MPI.SUM)

    for i in range(5):
        assert float(f(jnp.float32(rank + i))[()]) == sum(r + i for r in range(SIZE))
    assert (len(traces), len(tokens)) == (1, 0)
    jax.jit(lambda x: mpixla.allreduce(x, MPI.SUM))(1.0)
    assert len(tokens) == 0
    jax.jit(lambda x: mpixla.send(x, MPI.PROC_NULL))(1.0)  # nobody could wait for its results
    assert len(tokens) == 1


@pytest.mark.needs_hook("sealing")
def test_lowering_does_not_trace_a_program_again():
    counted = Primitive("counted")
    traced = []

    @counted.def_abstract_eval
    def _count(x):
        traced.append(x)
        return x

    mlir.register_lowering(counted, lambda ctx, x: [x])
    for jit in (jax.jit, mpixla.jit):
        program = jit(lambda x: mpixla.allreduce(counted.bind(x), MPI.SUM)).trace(jnp.ones(3))
        before = len(traced)
        assert before > 0
        program.lower()
        assert len(traced) == before


def test_arguments_as_of_jax_jit(rank):
    def f(tree, scale, *rest, power, flag=True):
        y = mpixla.allreduce(tree["x"] * scale, MPI.SUM) ** power
        return Pair(y if flag else -y, [tree["y"][0], rest])

    tree = {"x": jnp.arange(3.0) + rank, "y": (np.float32(2), None)}
    plain, sealed = both(f, static_argnames=("power", "flag"))
    for power, flag in ((2, True), (3, False), (2, True)):
        same(sealed(tree, 2.0, 1, 2, power=power, flag=flag), plain(tree, 2.0, 1, 2, power=power, flag=flag))
    plain, sealed = both(lambda n, x: mpixla.allreduce(x, MPI.SUM)[:n], static_argnums=0)
    for n in (1, 2):
        same(sealed(n, tree["x"]), plain(n, tree["x"]))
    with pytest.raises(TypeError):
        mpixla.jit(f, no_such_option=1)
    with pytest.raises(ValueError, match="on-hashable"):
        sealed([1], tree["x"])


def test_decorator_with_options(rank):
    @mpixla.jit(donate_argnums=0)
    def f(x):
        """Double the argument."""
        return mpixla.allreduce(x, MPI.SUM) * 2

    assert (f.__name__, f.__doc__) == ("f", "Double the argument.")
    x = jnp.ones(1000)
    assert float(f(x)[0]) == 2 * SIZE
    assert x.is_deleted()


def test_methods_of_a_jitted_function():
    f = mpixla.jit(lambda x: mpixla.allreduce(x, MPI.SUM))
    x = jnp.ones(3)
    np.testing.assert_array_equal(f.lower(x).compile()(x), np.full(3, SIZE))
    assert f.trace(x).jaxpr.out_avals[0].shape == (3,)
    assert f.eval_shape(x).shape == (3,)
    f(x)
    f.clear_cache()
    np.testing.assert_array_equal(f(x), np.full(3, SIZE))


@pytest.mark.parametrize("jit", [jax.jit, mpixla.jit])
def test_wrapped_function_keeps_methods_of_its_own(jit):
    """functools.wraps copies the attributes of a function, as JAX does for its gradient."""
    derivative = jit(jax.grad(mpixla.jit(lambda x: mpixla.allreduce(x, MPI.SUM) ** 3)))
    x = jnp.float64(2)
    assert float(derivative.lower(x).compile()(x)) == float(derivative(x)) == 12 * SIZE**2
    assert float(jit(mpixla.jit(lambda x: x + 1))(x)) == 3


def test_a_method():
    class Shift:
        by = 2

        @mpixla.jit
        def of(self, x):
            return mpixla.allreduce(x, MPI.SUM) + self.by

    jax.tree_util.register_static(Shift)
    assert float(Shift().of(jnp.ones(()))) == SIZE + 2
    assert float(mpixla.jit(lambda self: mpixla.allreduce(self, MPI.SUM))(self=jnp.ones(()))) == SIZE


@pytest.mark.parametrize("wrap", [jax.jit, mpixla.jit, lambda f: f])
def test_transformations(wrap, rank):
    x = jnp.arange(3.0) + rank

    def f(x):
        return jnp.sum(mpixla.allreduce(x**2, MPI.SUM))

    sealed = mpixla.jit(f)
    for transform in (
        jax.grad,
        jax.vmap,
        jax.hessian,
        jax.checkpoint,
        lambda f: jax.grad(lambda x: jnp.sum(jax.vmap(f)(x[None]))),
        lambda f: lambda x: jax.lax.scan(lambda c, _: (c + f(c) / 100, None), x, None, length=3)[0],
        lambda f: partial(jax.jvp, f, tangents=(jnp.ones(3),)),
    ):
        takes_primals = isinstance(transform(f), partial) and transform is not jax.checkpoint
        argument = (x,) if takes_primals else x
        same(wrap(transform(sealed))(argument), wrap(transform(f))(argument))


def test_without_results(rank):
    """The call returns when its communication is done."""
    above, below = (rank + 1) % SIZE, (rank - 1) % SIZE
    traced = []

    @mpixla.jit
    def send(x):
        traced.append(mpixla.sendrecv(x, x, below, above))

    assert send(jnp.ones(3)) is None

    @mpixla.jit
    def passes_on(x, y):
        mpixla.barrier()
        return {"y": y, "x": [x]}

    x, y = jnp.ones(2), jnp.zeros(1)
    same(passes_on(x, y), {"y": y, "x": [x]})


def test_without_results_but_with_a_ref(rank):
    total = jax.new_ref(jnp.zeros(3))

    @mpixla.jit
    def add(total, x):
        total[...] += mpixla.allreduce(x, MPI.SUM)

    add(total, jnp.ones(3))
    add(total, jnp.ones(3))
    np.testing.assert_array_equal(total[...], 2 * SIZE)


def test_order_with_other_calls(rank):
    """A long sealed program, eager calls, plain programs and short sealed ones, on unrelated data: ranks must match."""
    if SIZE == 1:
        pytest.skip("one rank is never out of order")
    other = (rank + 1) % SIZE, (rank - 1) % SIZE

    def ring(x):
        return mpixla.sendrecv(x, x, other[1], other[0])

    long = mpixla.jit(lambda x: jax.lax.fori_loop(0, 200, lambda i, c: ring(c) + jnp.sin(c), x))
    short, plain = mpixla.jit(ring), jax.jit(ring)
    results = []
    for i in range(20):
        for f in (long, short, ring, plain, short, ring):
            results.append(f(jnp.full(100, 1000.0 * i + rank)))
    for i in range(20):
        for y in (*results[6 * i + 1 : 6 * i + 6],):
            np.testing.assert_array_equal(y, 1000.0 * i + other[1])


def test_other_effects_are_kept(rank):
    seen = []

    def f(x):
        jax.debug.callback(seen.append, x[0], ordered=True)
        y = mpixla.allreduce(x, MPI.SUM)
        jax.debug.callback(seen.append, y[0], ordered=True)
        return y

    same(mpixla.jit(f)(jnp.ones(2)), jax.jit(f)(jnp.ones(2)))
    jax.effects_barrier()
    assert [float(s) for s in seen] == [1, SIZE, 1, SIZE]


def test_without_communication():
    f = mpixla.jit(lambda x: x + 1)
    assert float(f(1.0)) == 2
    with jax.disable_jit():
        assert float(mpixla.jit(lambda x: mpixla.allreduce(x, MPI.SUM))(1.0)) == SIZE
        # As with jax.jit, arguments have values then.
        assert float(mpixla.jit(lambda x: x if float(mpixla.allreduce(x, MPI.SUM)) == SIZE else -x)(1.0)) == 1
