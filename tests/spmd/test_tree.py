"""Pytrees and PRNG keys in data arguments."""

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from mpixla.core import eager
from reference import ROWS, bits, expected, operands

SIZE = MPI.COMM_WORLD.Get_size()

NOT_OF_TREES = ("barrier", "recv", "irecv", "isend")  # or their rows do more than the operation


class Pair(NamedTuple):
    a: object
    b: object


@pytest.mark.parametrize("how", [pytest.param("eager", marks=pytest.mark.two_ranks), "jit"])
@pytest.mark.parametrize("row", [row for row in ROWS if row.name not in NOT_OF_TREES], ids=lambda row: row.name)
def test_every_operation(row, comm, rank, size, how):
    variant = next(v for v in row.variants(size) if v.get("op", "SUM") == "SUM")
    dtype = np.dtype("float32")
    shapes = [((2,), dtype), ((), np.dtype("int32")), ((2, 3), dtype), ((0, 2), dtype)]
    leaves, wants = (
        [draws(row, t, shape, rank, size, draw, **variant) for draw, (shape, t) in enumerate(shapes)]
        for draws in (operands, expected)
    )

    def tree(leaves):
        return {"x": leaves[0], "y": [leaves[1], Pair(leaves[2], None)], "z": (leaves[3],)}

    columns = [tree(column) for column in zip(*leaves, strict=True)]

    def f(*columns):
        return row.call(*columns, comm=comm, **variant)

    got = (jax.jit(f) if how == "jit" else f)(*columns)
    if wants[0] is None:
        assert got is None
        return
    assert jax.tree.structure(got) == jax.tree.structure(columns[0])
    for got_leaf, want in zip(jax.tree.leaves(got), jax.tree.leaves(tree(wants)), strict=True):
        assert (got_leaf.shape, got_leaf.dtype) == (want.shape, want.dtype)
        np.testing.assert_array_equal(bits(got_leaf), bits(want))


@pytest.mark.parametrize(
    "name", ["allreduce", "reduce", "scan", "exscan", "bcast", "reduce_scatter", "iallreduce", "iscan"]
)
def test_one_call_for_each_dtype(name, comm, size):
    row = next(row for row in ROWS if row.name == name)
    variant = next(v for v in row.variants(size) if v.get("op", "SUM") == "SUM")
    tree = {str(i): operands(row, np.dtype("f4"), (i,), comm.rank, size, **variant)[0] for i in range(1, 9)}
    tree["i"] = operands(row, np.dtype("i4"), (3,), comm.rank, size, **variant)[0]
    text = jax.jit(lambda x: row.call(x, comm=comm, **variant)).lower(tree).as_text()
    assert text.count(f"stablehlo.custom_call @mpixla_{name}(") == 2


def test_send_and_recv(rank, size):
    tree = {"a": jnp.arange(3) + rank, "b": [jnp.float32(rank), jnp.ones((2, 2)) * rank]}

    @jax.jit
    def shift(tree):
        if rank < size - 1:
            mpixla.send(tree, rank + 1)
        return mpixla.recv(tree, rank - 1) if rank > 0 else tree

    got = shift(tree)
    np.testing.assert_array_equal(got["a"], np.arange(3) + max(rank - 1, 0))
    np.testing.assert_array_equal(got["b"][1], np.ones((2, 2)) * max(rank - 1, 0))


def test_empty_tree_and_keywords(size):
    assert mpixla.allreduce({}, MPI.SUM) == {}
    assert mpixla.bcast(x=(), root=0) == ()
    assert mpixla.allreduce([None], MPI.SUM) == [None]
    np.testing.assert_array_equal(mpixla.allreduce(x=[np.int32(1)], op=MPI.SUM)[0], size)


NOTHING = {
    "allgatherv": lambda: mpixla.allgatherv(None, [1] * SIZE),
    "allreduce": lambda: mpixla.allreduce(None, MPI.SUM),
    "bcast": lambda: mpixla.bcast(None, 0),
    "gatherv": lambda: mpixla.gatherv(None, [1] * SIZE, 0, capacity=SIZE),
    "iallreduce": lambda: mpixla.iallreduce(None, MPI.SUM),
    "isend": lambda: mpixla.isend(None, 0),
    "pvary": lambda: mpixla.pvary(None),
    "recv": lambda: mpixla.recv(None, 0),
    "reduce_scatter": lambda: mpixla.reduce_scatter(None, MPI.SUM),
    "send": lambda: mpixla.send(x=None, dest=0),
    "sendrecv": lambda: mpixla.sendrecv(1.0, None, 0, 0),
}


@pytest.mark.parametrize("name", NOTHING)
def test_none_is_no_array(name):
    """To JAX it is a pytree without arrays, with which there would be nothing to do."""
    with pytest.raises(TypeError, match=rf"(x|recvbuf) of {name} must be an array or a number, but is None\."):
        NOTHING[name]()


def test_none_is_no_template():
    """As for a root's data in mpi4py, on the other ranks."""
    with pytest.raises(TypeError, match=r"None\. A rank that only receives passes an array of the shape and dtype"):
        mpixla.bcast(None, 0)


def test_prng_keys_among_other_arrays(rank):
    tree = {"key": jax.random.key(rank + 3), "data": jnp.uint32(rank), "keys": jax.random.split(jax.random.key(rank))}
    for how in (lambda f: f, jax.jit):
        got = how(lambda tree: mpixla.bcast(tree, 0))(tree)
        assert int(got["data"]) == 0
        for name, want in (("key", jax.random.key(3)), ("keys", jax.random.split(jax.random.key(0)))):
            assert got[name].dtype == want.dtype
            np.testing.assert_array_equal(jax.random.key_data(got[name]), jax.random.key_data(want))


def test_errors_name_the_leaf():
    right, wrong = np.ones((SIZE, 2)), np.ones(SIZE + 1)
    for tree, sentence in (
        ([right, wrong], rf"x\[1\] has shape \({SIZE + 1},\)\."),
        ({"a": wrong, "b": right}, rf"x\['a'\] has shape \({SIZE + 1},\)\."),
        ([1.0], r"x\[0\] has shape \(\)\."),
        (wrong, rf"x has shape \({SIZE + 1},\)\."),
    ):
        for reduce_scatter in (mpixla.reduce_scatter, mpixla.ireduce_scatter):
            with pytest.raises(ValueError, match=f"reduce_scatter needs .* one entry for each .* but {sentence}"):
                reduce_scatter(tree, MPI.SUM)
    for pair in ((wrong, wrong.astype(int)), (1.0, 1)):
        with pytest.raises(ValueError, match=rf"but x\[0\] has shape {re.escape(str(np.shape(pair[0])))}\."):
            mpixla.reduce_scatter(pair, MPI.MAXLOC)
    # Nothing is communicated of a pytree without arrays, and the other arguments are checked all the same.
    assert mpixla.allreduce({}, MPI.SUM) == {}
    assert mpixla.reduce_scatter([], MPI.BAND) == []
    assert mpixla.bcast({}, 0) == mpixla.wait(mpixla.ibcast({}, 0)) == {}
    for wrong in (
        lambda: mpixla.allreduce({}, op=None),
        lambda: mpixla.reduce([], MPI.SUM, 99),
        lambda: mpixla.bcast({}, root=SIZE),
        lambda: mpixla.iallreduce((), "SUM"),
        lambda: mpixla.scan({"a": None}, MPI.SUM, comm=3),
        lambda: jax.jit(lambda: mpixla.allreduce({}, MPI.NO_OP))(),
    ):
        with pytest.raises((TypeError, ValueError), match=r"(op|root|comm)\b.* (must be|are|does not apply)"):
            wrong()
    with pytest.raises(TypeError, match=r"x\[1\] of allreduce must be an array"):
        mpixla.allreduce([1.0, "abc"], MPI.SUM)
    with pytest.raises(TypeError, match="allreduce cannot reduce dtype bool"):
        mpixla.allreduce({"a": np.ones(2), "b": np.ones(2, bool)}, MPI.SUM)


def test_messages_that_are_under_way(rank, size):
    """A request of a pytree is one pytree more, across jit; keys stay keys."""
    tree = {"x": jnp.float32(rank), "keys": jax.random.split(jax.random.key(rank), 2)}
    start = jax.jit(lambda tree: (mpixla.irecv(tree, (rank - 1) % size), mpixla.isend(tree, (rank + 1) % size)))
    requests = start(tree)
    assert all(isinstance(request, mpixla.Request) for request in requests)
    received, sent = jax.jit(mpixla.waitall)(requests)
    assert float(sent["x"]) == rank
    assert float(received["x"]) == (rank - 1) % size
    want = jax.random.key_data(jax.random.split(jax.random.key((rank - 1) % size), 2))
    np.testing.assert_array_equal(jax.random.key_data(received["keys"]), want)


def test_leaves_share_a_program():
    """Each is an eager call of its own, and of one kind."""
    before = len(eager._programs)
    mpixla.allgather([jnp.ones(2)] * 23)
    assert len(eager._programs) <= before + 1
