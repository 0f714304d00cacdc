"""The operations whose parts differ in size between ranks, beyond what the oracle's table covers."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI
from test_large_counts import limit, refused  # noqa: F401
from test_value import check

import mpixla
from cases import check_refused
from reference import ROW

NAMES = ("allgatherv", "alltoallv", "gatherv", "scatterv")
RANK, SIZE = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
ONES = [1] * SIZE
X = np.ones((1, 2), np.float32)

CALLS = {
    "allgatherv": lambda x, counts: mpixla.allgatherv(x, counts),
    "alltoallv": lambda x, counts: mpixla.alltoallv(x, counts, ONES),
    "alltoallv recvcounts": lambda x, counts: mpixla.alltoallv(np.ones((SIZE, 2)), ONES, counts),
    "gatherv": lambda x, counts: mpixla.gatherv(x, counts, 0),
    "scatterv": lambda x, counts: mpixla.scatterv(x, counts, 0),
}
WHAT = {name: name.split()[-1] if " " in name else "sendcounts" if name == "alltoallv" else "counts" for name in CALLS}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("counts", "kind", "sentence"),
    [
        (3, TypeError, f"must be a sequence of integers, one for each of the {SIZE} ranks .*, but is 3"),
        ("1" * SIZE, TypeError, "must be a sequence of integers"),
        (np.ones((SIZE, 1), int), TypeError, "must be a sequence of integers"),
        (None, TypeError, "must be a sequence of integers"),
        ([0.5] * SIZE, TypeError, r"\[0\] of \w+ must be an integer, but is 0.5"),
        ([1] * (SIZE + 1), ValueError, f"one entry for each of the {SIZE} ranks .* has {SIZE + 1}: "),
        ([], ValueError, r"one entry for each of the .* has 0: \(\)"),
        ([*ONES[1:], -1], ValueError, rf"\[{SIZE - 1}\] of \w+ is -1, but a number of rows is not negative"),
        ([*ONES[1:], 2**63], ValueError, r"rows, but an array has fewer than 2\*\*63"),
    ],
    ids=["int", "string", "matrix", "none", "floats", "too many", "too few", "negative", "huge"],
)
def test_bad_counts(name, counts, kind, sentence):
    text = check_refused(lambda: CALLS[name](X, counts), kind, sentence)
    assert re.match(rf"{WHAT[name]}(\[\d\])? of {name.split()[0]} ", text)


@pytest.mark.parametrize("name", CALLS)
def test_traced_counts(name):
    for counts in (jnp.ones(SIZE, int), ONES):
        with pytest.raises(
            TypeError, match=f"^{WHAT[name]} of {name.split()[0]} is a traced value .* capacity.* static"
        ):
            jax.jit(lambda counts: CALLS[name](X, counts))(counts)


@pytest.mark.parametrize("name", NAMES)
def test_bad_rows(name):
    check_refused(lambda: CALLS[name](1.0, ONES), ValueError, f"^{name} communicates rows, .* but x is a scalar")
    whole = name == "alltoallv" or (name == "scatterv" and RANK == 0)
    meaning = {"alltoallv": "the sum of sendcounts", "scatterv": "the sum of counts, since it is the root"}
    meaning = meaning[name] if whole else rf"which is counts\[{RANK}\]"
    rows = SIZE if whole else 1
    sentence = rf"^{name} needs an x with {rows} rows on this rank, {meaning}, but x has shape \({rows + 1}, 2\)"
    check_refused(lambda: CALLS[name](np.ones((rows + 1, 2)), ONES), ValueError, sentence)


def test_bad_roots_and_conventions():
    for call in (lambda: mpixla.gatherv(X, ONES, SIZE), lambda: mpixla.scatterv(X, ONES, SIZE)):
        with pytest.raises(ValueError, match=f"root of (gatherv|scatterv) is {SIZE}"):
            call()
    with pytest.raises(ValueError, match="cotangent of allgatherv must be"):
        mpixla.allgatherv(X, ONES, cotangent="both")


@pytest.mark.not_checked
def test_sequences_of_counts(compilations, rank):
    """Whatever holds them, the program is the same."""
    x = jnp.full((1,), rank)
    mpixla.allgatherv(x, list(ONES))
    arrays = np.array(ONES), np.array(ONES, np.uint8), jnp.ones(SIZE, int)
    list(arrays[-1])  # JAX compiles what takes it apart
    compilations.clear()
    for counts in (tuple(ONES), *arrays):
        np.testing.assert_array_equal(mpixla.allgatherv(x, counts), np.arange(SIZE))
    assert compilations == []


def test_counts_are_readable_in_programs(rank, size):
    counts = [r + 1 for r in range(size)]
    text = jax.jit(lambda x: mpixla.allgatherv(x, counts)).lower(np.ones(rank + 1)).as_text()
    assert f"counts = array<i64: {', '.join(map(str, counts))}>" in text
    sendcounts, recvcounts = [r + 2 for r in range(size)], [rank + 2] * size
    program = jax.jit(lambda x: mpixla.alltoallv(x, sendcounts, recvcounts))
    text = program.lower(np.ones(sum(sendcounts))).as_text()
    assert f"recvcounts = array<i64: {', '.join(map(str, recvcounts))}>" in text
    assert f"sendcounts = array<i64: {', '.join(map(str, sendcounts))}>" in text


@pytest.mark.parametrize("name", NAMES)
def test_large_counts(name, limit, comm, size):  # noqa: F811
    """On any number of ranks, each of which has a count."""
    with refused(name):
        check(ROW[name], ROW[name].variants(size)[0], np.dtype("float32"), (5,), comm, "eager")


@pytest.mark.parametrize("name", NAMES)
def test_no_rows_at_all(name, comm, rank, size):
    counts = [0] * size
    x = jnp.zeros((0, 3), jnp.bfloat16)
    call = {
        "alltoallv": lambda x: mpixla.alltoallv(x, counts, counts, comm=comm),
        "allgatherv": lambda x: mpixla.allgatherv(x, counts, comm=comm),
    }.get(name, lambda x: getattr(mpixla, name)(x, counts, size - 1, comm=comm))
    for y in (call(x), jax.jit(call)(x)):
        assert (y.shape, y.dtype) == ((0, 3), jnp.bfloat16)


@pytest.mark.parametrize("sent", [2, 6])
def test_rank_alone_is_refused_counts_that_differ(sent):
    """Nobody else compares it, and MPICH takes a message that is too short for one that is right."""
    with pytest.raises(Exception, match=rf"sendcounts\[0\] = {sent} but recvcounts\[0\] = 4, on a .* of one rank"):
        jax.block_until_ready(mpixla.alltoallv(np.ones(sent), [sent], [4], comm=MPI.COMM_SELF))


@pytest.mark.not_checked
@pytest.mark.not_through_nccl
@pytest.mark.skipif(SIZE != 2, reason="is between two ranks")
@pytest.mark.parametrize("name", ["alltoallv", "gatherv"])
def test_counts_that_disagree(name, comm, rank):
    """The error of the rank that gets too much says what it sent and what it was to receive; the next call works."""
    private = comm.Dup()
    counts = [1] * SIZE
    exchanged = ", sending 1, 1 rows to ranks 0 to 1 and receiving 1, 1 rows from there; rank i's sendcounts[j] must"
    gathered = ", with 1, 1 rows on ranks 0 to 1; the counts must be the same on every rank"

    def call(own):
        """Call with rank 1 expecting `own` rows for rank 0."""
        given = [own, 1] if name == "alltoallv" else [1, own]
        given = given if rank == 1 else counts
        if name == "gatherv":
            return mpixla.gatherv(np.ones((given[rank], 2)), given, 0, comm=private)
        return mpixla.alltoallv(np.ones((sum(given), 2)), given, counts, comm=private)

    if rank == 0:
        with pytest.raises(jax.errors.JaxRuntimeError) as raised:
            call(3).block_until_ready()
        assert {"alltoallv": exchanged, "gatherv": gathered}[name] in str(raised.value)
        assert f"r0 | MPI_{name.capitalize()} returned error code" in str(raised.value)
    else:
        call(3).block_until_ready()
    assert np.asarray(call(1)).sum() == (4 if name == "alltoallv" or rank == 0 else 2)
    private.Free()
