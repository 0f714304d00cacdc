"""assert_replicated: what is the same passes and comes back, what is not is told on every rank."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from cases import HOWS

SIZE = MPI.COMM_WORLD.Get_size()
HOW = pytest.mark.parametrize("how", HOWS)
OTHERS = pytest.mark.skipif(SIZE == 1, reason="needs another rank")
TREE = {"w": jnp.arange(6.0).reshape(2, 3), "b": [jnp.int8(-3), jnp.array([True, False])], "key": jax.random.key(3)}


def check(how, tree, **options):
    return jax.block_until_ready(HOWS[how](lambda tree: mpixla.assert_replicated(tree, **options))(tree))


@HOW
def test_replicated_tree_is_returned(comm, how):
    got = check(how, TREE, comm=comm)
    assert jax.tree.structure(got) == jax.tree.structure(TREE)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(TREE), strict=True):
        assert x.dtype == y.dtype
        assert bool((x == y).all())


@HOW
@pytest.mark.parametrize("x", [jnp.array([jnp.nan, jnp.inf]), jnp.zeros((0, 3)), jnp.float32(2), jnp.ones(100_001)])
def test_nan_and_no_entries(how, x):
    np.testing.assert_array_equal(check(how, x), x)
    assert check(how, []) == []


@HOW
@OTHERS
def test_an_entry_that_differs(rank, size, how):
    tree = {**TREE, "w": TREE["w"].at[1, 2].add(rank == size - 1)}
    with pytest.raises(Exception, match="assert_replicated") as raised:
        check(how, tree)
    text = str(raised.value)
    assert f"r{rank} | assert_replicated: leaf ['w'] of shape (2, 3) and data type float64 is not the same" in text
    assert f"rank {size - 1} differs from rank 0 in 1 of 6 entries, first at [1, 2]: 6, where rank 0 has 5" in text
    assert "test_replicated.py:" in text or how != "jit"
    assert "\nIf this is a gradient: mpixla.pvary(parameters), " in text
    check(how, TREE)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("float32", ("0.25", "0.5")),
        ("float64", ("0.25", "0.5")),
        ("complex64", ("0.25+0j", "0.5+0j")),
        ("complex128", ("0.25+0j", "0.5+0j")),
        ("bfloat16", ("0x3e80", "0x3f00")),
        ("float16", ("0x3400", "0x3800")),
        ("int8", ("-1", "-2")),
        ("int16", ("-1", "-2")),
        ("int32", ("-1", "-2")),
        ("int64", ("-1", "-2")),
        ("uint8", ("255", "254")),
        ("uint64", ("18446744073709551615", "18446744073709551614")),
        ("bool", ("True", "False")),
    ],
)
@OTHERS
def test_values_of_every_kind(rank, size, dtype, values):
    kind = jnp.dtype(dtype)
    pair = [True, False] if dtype == "bool" else [-1, -2] if jnp.issubdtype(kind, jnp.integer) else [0.25, 0.5]
    mine = np.array(pair).astype(kind)[1 if rank == size - 1 else 0]
    with pytest.raises(Exception, match="is not the same") as raised:
        check("eager", jnp.full(3, mine))
    assert ("pvary" in str(raised.value)) == (kind.kind not in "biu")
    others = f"rank {size - 1} differs from rank 0 in 3 of 3 entries, first at [0]: {values[1]}, where rank 0 has"
    assert f"{others} {values[0]}" in str(raised.value)


@OTHERS
def test_numbers_that_look_the_same(rank):
    quiet = np.array([0x7FC00000 + (rank == 0)], np.uint32).view(np.float32)
    with pytest.raises(Exception, match="nan, where rank [01] has nan of other bits"):
        check("eager", quiet)


@pytest.mark.parametrize(
    ("mine", "sentence"),
    [
        (
            lambda odd: jnp.ones(3 + odd),
            r"the array of shape \(3,\) and .* is not the same on all .*rank 1 has the array of shape \(4,\)",
        ),
        (lambda odd: jnp.ones(3, jnp.int8 if odd else jnp.float32), r"rank 1 has .* \(3,\) and data type int8"),
        (
            lambda odd: [1, 2] if odd else [1, 2, 3],
            r"leaf \[2\] of shape .* is not the same on all .*rank 1 has the end of the tree",
        ),
        (lambda odd: {"a": 1} if odd else {"b": 1}, r"leaf \['b'\] of .* is not the same .*rank 1 has leaf \['a'\]"),
        (lambda odd: [] if odd else [1], r"leaf \[0\] of .* is not the same .*rank 1 has an empty tree"),
    ],
)
@OTHERS
def test_other_kinds(rank, mine, sentence):
    with pytest.raises(Exception, match=f"(?s){sentence}"):
        check("jit", mine(rank == 1))


@pytest.mark.skipif(SIZE < 3, reason="needs three ranks")
def test_names_the_rank_that_differs_from_most(rank):
    with pytest.raises(Exception, match=r"\n  rank 0 differs from rank 1 in 2 of 2 entries") as raised:
        check("jit", [jnp.full(2, rank == 0), jnp.ones(3), jnp.float32(rank)])
    text = str(raised.value)
    assert "leaf [0] of shape (2,) and data type bool is not" in text
    assert "rank 2 differs" not in text
    assert "Arrays after it that are not the same either: 1." in text


@OTHERS
def test_batches_of_other_sizes(rank):
    check_batch = jax.jit(jax.vmap(mpixla.assert_replicated))
    with pytest.raises(Exception, match=r"rank 1 has it in another shape"):
        jax.block_until_ready(check_batch(jnp.ones((3 + (rank == 1), 2))))


def test_derivative_and_batch(rank):
    """The identity, whose derivative communicates nothing: cotangents may differ."""
    x = jnp.arange(3.0)

    def f(x):
        return (mpixla.assert_replicated(x) * (rank + 1)).sum()

    np.testing.assert_array_equal(jax.grad(f)(x), np.full(3, rank + 1))
    value, tangent = jax.jvp(mpixla.assert_replicated, (x,), (x + rank,))
    np.testing.assert_array_equal(value, x)
    np.testing.assert_array_equal(tangent, x + rank)
    np.testing.assert_array_equal(jax.vmap(mpixla.assert_replicated, 1, 1)(jnp.ones((2, 3))), np.ones((2, 3)))


def test_derivative_beside_integers():
    """Which have none, also where a loop carries both."""

    def f(x, identity=mpixla.assert_replicated):
        def step(carry, _):
            y, k = identity(carry)
            return (jnp.sin(y) * k, k + 1), y

        (y, k), ys = jax.lax.scan(step, (x, jnp.int32(1)), length=3)
        return y.sum() + ys.sum() * k

    x = jnp.arange(3.0)
    without = lambda x: f(x, lambda carry: carry)  # noqa: E731
    for derivative in (jax.grad, jax.hessian):
        np.testing.assert_allclose(derivative(f)(x), derivative(without)(x))


def test_linear_transpose():
    transposed = jax.linear_transpose(lambda x: 2 * mpixla.assert_replicated(x), jnp.ones(2))
    np.testing.assert_array_equal(transposed(jnp.ones(2))[0], [2, 2])


@OTHERS
def test_assert_replicated_is_kept_without_use_of_its_result(rank):
    @jax.jit
    def f(x):
        mpixla.assert_replicated(x)
        return x + 1

    with pytest.raises(Exception, match="is not the same"):
        jax.block_until_ready((f(jnp.full(2, rank)), jax.effects_barrier()))
