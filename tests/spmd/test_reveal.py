"""Communication inside primitives whose equations show no effect: it is made in program order with the calls around."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.custom_derivatives import linear_call
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from mpi4py import MPI

import mpixla

pytestmark = pytest.mark.needs_hook("lowering")

SIZE = MPI.COMM_WORLD.Get_size()
RANK = MPI.COMM_WORLD.Get_rank()
ABOVE, BELOW = (RANK + 1) % SIZE, (RANK - 1) % SIZE


def hidden(fun, name="hides"):
    """Return the function as a primitive without effects, made as equinox makes them."""

    def impl(x):
        return [fun(x)]

    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(impl)
    primitive.def_abstract_eval(lambda x: [x])
    mlir.register_lowering(primitive, mlir.lower_fun(impl, multiple_results=True))

    def jvp(primals, tangents):
        results, tangents = jax.jvp(impl, primals, tuple(map(ad.instantiate_zeros, tangents)))
        return results, tangents

    def batch(operands, dims):
        return [hidden(jax.vmap(fun, *dims, *dims))(*operands)], dims

    ad.primitive_jvps[primitive] = jvp
    batching.primitive_batchers[primitive] = batch
    return lambda x: primitive.bind(x)[0]


def ring(x):
    return mpixla.sendrecv(x, x, BELOW, ABOVE) + 1


quiet = hidden(ring)


def custom_jvp(f):
    g = jax.custom_jvp(f)
    g.defjvp(lambda primals, tangents: jax.jvp(f, primals, tangents))
    return g


def custom_vjp(f):
    g = jax.custom_vjp(f)
    g.defvjp(lambda x: (f(x), x), lambda x, ct: (ct,))
    return g


WRAPPERS = {
    "plain": lambda f: f,
    "jit in jit": lambda f: jax.jit(f),
    "sealed in jit": lambda f: mpixla.jit(f),
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
    "fori_loop": lambda f: lambda x: lax.fori_loop(0, x[0].astype(int) * 0 + 1, lambda i, c: f(c), x),
    "while_loop": lambda f: lambda x: lax.while_loop(lambda c: c[1] < 1, lambda c: (f(c[0]), c[1] + 1), (x, 0))[0],
    "cond": lambda f: lambda x: lax.cond(x[0] > -1, f, lambda x: x, x),
    "remat": jax.checkpoint,
    "custom_jvp": custom_jvp,
    "custom_vjp": custom_vjp,
    "hidden again": lambda f: hidden(f),
    "hidden jit": lambda f: hidden(jax.jit(f)),
    "hidden scan": lambda f: hidden(lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0]),
    "linear_call": lambda f: lambda x: linear_call(lambda _, x: f(x), lambda _, ct: f(ct), (), x),
    "composite": lambda f: lax.composite(f, "mpixla.test"),
    "linear solve": lambda f: lambda x: lax.custom_linear_solve(lambda x: x, x, lambda _, x: f(x)),
}


@pytest.mark.parametrize("jit", [jax.jit, mpixla.jit, lambda f: lambda x: jax.jit(f).lower(x).compile()(x)])
@pytest.mark.parametrize("how", WRAPPERS)
def test_values(how, jit):
    """Alone, where the program shows no effect at all, and between calls that do."""
    x = np.arange(3.0) + 10 * RANK
    alone = jit(WRAPPERS[how](quiet))
    between = jit(lambda x: ring(WRAPPERS[how](quiet)(ring(x))))
    for _ in range(2):  # the second is dispatched in another way
        np.testing.assert_array_equal(alone(x), np.arange(3.0) + 10 * BELOW + 1)
        np.testing.assert_array_equal(between(x), np.arange(3.0) + 10 * ((RANK - 3) % SIZE) + 3)


def test_eagerly():
    np.testing.assert_array_equal(quiet(jnp.full(2, RANK)), np.full(2, BELOW + 1))


@pytest.mark.parametrize("jit", [jax.jit, mpixla.jit])
def test_transformed(jit):
    x = np.arange(3.0) + 10 * RANK

    def loss(fun):
        return lambda x: jnp.sum(fun(x) ** 2)

    # What this rank sends comes back, one more, to be doubled.
    np.testing.assert_allclose(jit(jax.grad(loss(quiet)))(x), 2 * (x + 1))
    _, tangent = jit(lambda x: jax.jvp(quiet, (x,), (x,)))(x)
    np.testing.assert_allclose(tangent, np.arange(3.0) + 10 * BELOW)
    np.testing.assert_allclose(jit(jax.vmap(quiet, 1, 1))(np.stack([x, 2 * x], 1))[:, 1], 2 * tangent + 1)


@pytest.mark.parametrize("how", ["vjp", "checkpoint"])
@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_operand_that_changes_in_a_loop_on_one_rank(how, jit):
    """JAX would make the call once before the loop on the other ranks."""
    c = np.arange(3.0)

    def f(x):
        return lax.scan(lambda a, i: (a * quiet(c + (i if RANK == 0 else 0)), None), x, jnp.arange(3.0))[0]

    def derive(x):
        y, back = jax.vjp(jax.checkpoint(f) if how == "checkpoint" else f, x)
        return y, back(jnp.full(3, 2.0))[0]

    factor = (c + 1) * (c + 2) * (c + 3) if BELOW == 0 else (c + 1) ** 3
    y, x_bar = jit(derive)(c + 1)
    np.testing.assert_allclose(y, (c + 1) * factor)
    np.testing.assert_allclose(x_bar, 2 * factor)


@pytest.mark.parametrize("wrap", ["plain", "scan", "jit in jit", "hidden again"])
def test_call_in_a_checkpoint_is_made_once(wrap):
    calls = WRAPPERS[wrap](quiet)
    x = np.arange(3.0) + 10 * RANK

    @jax.checkpoint
    def f(x):
        return jnp.sum(jnp.sin(x * calls(lax.stop_gradient(x))))

    y = np.arange(3.0) + 10 * BELOW + 1
    np.testing.assert_allclose(jax.jit(jax.grad(f))(x), np.cos(x * y) * y)
    assert jax.jit(jax.grad(f)).lower(x).as_text().count("@mpixla_sendrecv") == 1


ORDERS = [((), (0, 1, 2, 3, 4)), ((1, 3), (0, 3, 4)), ((0, 1), (2,)), ((4,), (0,))]


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("jit", [jax.jit, mpixla.jit])
@pytest.mark.parametrize(("sends", "receives"), ORDERS)
def test_order(sends, receives, jit, loop):
    """One rank sends numbers, another receives them; some of their calls are hidden, others are not."""
    if SIZE == 1:
        pytest.skip("one rank is never out of order")

    def send(x):
        mpixla.send(x, 1)
        return x

    def numbers(start):
        results = []
        for i in range(5):
            # The fewer the terms, the earlier it could be sent.
            number = start + i + jnp.sum(jnp.zeros(10 ** (5 - i)) + start) * 0
            if RANK == 0:
                results.append((hidden(send) if i in sends else send)(number))
            elif RANK == 1:
                receive = functools.partial(mpixla.recv, source=0)
                results.append((hidden(receive) if i in receives else receive)(number * 0))
            else:
                results.append(number)
        return jnp.stack(results)

    def program(start):
        if not loop:
            return numbers(start)[None]
        return lax.scan(lambda c, _: (c + 5, numbers(c)), start, None, length=3)[1]

    got = jit(program)(jnp.float64(7))
    np.testing.assert_array_equal(np.ravel(got), 7 + np.arange(15.0 if loop else 5.0))


def test_exported():
    exported = export.export(jax.jit(lambda x: ring(quiet(x))), disabled_checks=mpixla.export_checks())(jnp.ones(2))
    np.testing.assert_array_equal(exported.call(jnp.full(2, 1.0 * RANK)), np.full(2, (RANK - 2) % SIZE + 2))


def test_only_the_hidden_is_rewritten():
    """A program without hidden communication is lowered once, as it is; what a program shares is rewritten once."""
    inner = jax.jit(lambda x: quiet(x) * 2)
    text = jax.jit(lambda x: inner(inner(jax.jit(jnp.sin)(x)))).lower(jnp.ones(2)).as_text()
    assert text.count("@mpixla_sendrecv") == 1
    assert text.count("call @sin") == 1


def test_refused_in_a_sentence():
    """Where the primitive cannot be looked into."""

    def opaque(impl):
        primitive = Primitive("opaque")
        primitive.def_impl(impl)
        primitive.def_abstract_eval(lambda x: x)
        mlir.register_lowering(primitive, mlir.lower_fun(ring, multiple_results=False))

        def program(x):
            return primitive.bind(quiet(x))

        return program

    why = "The program 'program' uses an operation of mpixla inside a primitive that does not show .* def_impl"
    for wrap in (jax.jit, mpixla.jit):
        with pytest.raises(NotImplementedError, match=why):
            wrap(opaque(lambda x: x))(jnp.ones(2))
        with pytest.raises(
            NotImplementedError, match=why + r".* opaque could not be traced \(TracerArrayConversionError"
        ):
            wrap(opaque(np.sin))(jnp.ones(2))


def test_other_errors_are_left_alone():
    primitive = Primitive("fails")
    primitive.def_abstract_eval(lambda x: x)

    def fails(ctx, x):
        raise KeyError("other")

    mlir.register_lowering(primitive, fails)
    with pytest.raises(KeyError, match="other"):
        jax.jit(primitive.bind)(jnp.ones(2))
