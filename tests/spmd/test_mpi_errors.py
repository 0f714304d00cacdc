"""Errors of MPI as values: error_of, from exceptions of running programs and from sentences."""

import inspect

import jax
import jax.numpy as jnp
import pytest
from mpi4py import MPI

import mpixla

CALL = "on rank 1 of 2 of communicator"

# (what, a text, and the error in it)
SENTENCES = [
    (
        "Open MPI",
        "INTERNAL: r1 | MPI_Recv returned error code 15: MPI_ERR_TRUNCATE: message truncated (MPI_Recv <- 0 with tag "
        f"8 and 3 items of float64, {CALL} 'MPI_COMM_WORLD', at model.py:4 in step). The message is longer",
        ("MPI_Recv", 15, 1, 0, "model.py:4 in step"),
    ),
    (
        "MPICH, with a stack of several lines",
        "r1 | MPI_Recv returned error code 14: Message truncated, error stack:\ninternal_Recv(76): MPI_Recv(buf=0x7f, "
        "count=3, MPI_DOUBLE, 0, 8, MPI_COMM_WORLD) failed\n(unknown)(): truncated (MPI_Recv <- 0 with tag any and 3 "
        f"items of float64, {CALL} 'ocean, upper', at /a b/model.py:4)",
        ("MPI_Recv", 14, 1, 0, "/a b/model.py:4"),
    ),
    (
        "any source",
        "r0 | MPI_Recv returned error code 3: no (MPI_Recv <- any with tag any and 3 items of int8, "
        f"{CALL} 'c', at a.py:1)",
        ("MPI_Recv", 3, 0, None, "a.py:1"),
    ),
    (
        "both directions",
        "r0 | MPI_Sendrecv returned error code 3: no (MPI_Sendrecv -> 4 with tag 0 and 3 items <- 2 with tag 1 and 3 "
        f"items of int8, {CALL} 'c', at a.py:1 in <lambda>)",
        ("MPI_Sendrecv", 3, 0, 2, "a.py:1 in <lambda>"),
    ),
    (
        "a slot",
        "r0 | MPI_Irecv returned error code 3: no (MPI_Neighbor_allgather -> 2 neighbours with 3 items <- 2 neighbours "
        f"with 3 items of int8, {CALL} 'c', at a.py:1, in source slot 1 <- 5 with tag 0 and 3 items)",
        ("MPI_Irecv", 3, 0, 5, "a.py:1"),
    ),
    (
        "a wait, whose line it is, and a leaf of a pytree",
        "r0 | MPI_Wait returned error code 3: no (MPI_Wait for MPI_Irecv <- 1 with tag 0 and 3 items of int8, "
        f"{CALL} 'c', at a.py:7 in f (leaf 1 of 2), started at a.py:5 in f)",
        ("MPI_Wait", 3, 0, 1, "a.py:7 in f (leaf 1 of 2)"),
    ),
    (
        "packed leaves, and counts",
        "r0 | MPI_Gatherv returned error code 3: no (MPI_Gatherv with 3 items and root 0 of int8, "
        f"{CALL} 'c', at a.py:7 in f (called at b.py:3, 9 of 9 leaves of sizes: 1, 2 and 7 more (0a1b2c3d)), with 1, 2 "
        "rows on ranks 0 to 1; the counts)",
        (
            "MPI_Gatherv",
            3,
            0,
            None,
            "a.py:7 in f (called at b.py:3, 9 of 9 leaves of sizes: 1, 2 and 7 more (0a1b2c3d))",
        ),
    ),
    (
        "no line",
        f"r0 | MPI_Barrier returned error code 5: no (MPI_Barrier, {CALL} 'c')",
        ("MPI_Barrier", 5, 0, None, None),
    ),
    (
        "of two functions",
        "r0 | MPI_Allgather or MPI_Alltoall returned error code 5: no (by which neighbours agree to share memory)",
        ("MPI_Allgather or MPI_Alltoall", 5, 0, None, None),
    ),
    (
        "a rank that is refused",
        "ABORTED: MPI_Send got dest = -3, but the ranks of communicator 'c' are 0 to 1 (at a.py:2 in f)",
        ("MPI_Send", MPI.ERR_RANK, MPI.COMM_WORLD.rank, -3, "a.py:2 in f"),
    ),
    (
        "a root that is refused",
        "MPI_Bcast got root = 2, but the ranks of communicator 'c' are 0 to 1",
        ("MPI_Bcast", MPI.ERR_ROOT, MPI.COMM_WORLD.rank, None, None),
    ),
    (
        "a tag that is refused",
        "MPI_Recv got recvtag = -7, but tags are 0 to 99 (at a.py:2)",
        ("MPI_Recv", MPI.ERR_TAG, MPI.COMM_WORLD.rank, None, "a.py:2"),
    ),
    ("another error", "dest of send is 2, but the ranks of communicator 'c' are 0 to 1.", None),
    ("of a GPU", "ncclAllReduce returned error code 3, internal error", None),
]


def parts(error):
    return error and (error.function, error.error_class, error.rank, error.peer, error.line)


@pytest.mark.parametrize(("text", "want"), [pytest.param(*s[1:], id=s[0]) for s in SENTENCES])
def test_sentences(text, want):
    assert parts(mpixla.error_of(RuntimeError(text))) == want


def test_chains_of_exceptions():
    """Check causes, contexts and groups; an exception that is in its own chain ends the search."""
    _, text, want = SENTENCES[0]
    error = jax.errors.JaxRuntimeError(text)
    by_cause, by_context, loop, hidden = (RuntimeError("step 3 failed") for _ in range(4))
    by_cause.__cause__ = ExceptionGroup("two", [KeyError(1), error])
    by_context.__context__ = by_cause
    loop.__context__, hidden.__context__, hidden.__suppress_context__ = loop, error, True
    for e in (error, by_cause, by_context):
        assert parts(mpixla.error_of(e)) == want
    for e in (loop, hidden, ValueError()):
        assert mpixla.error_of(e) is None


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return next(first + i for i, line in enumerate(lines) if text in line)


@pytest.mark.not_checked
@pytest.mark.parametrize("how", ["eager", "jit", "request", "sendrecv"])
def test_truncated_message(comm, rank, size, how):
    """Check the class that MPI returned, the peer on the call's communicator, and the line."""
    if size == 1:
        pytest.skip("needs a partner")
    turned = comm.Split(0, -rank)
    last, before = size - 1, size - 2  # of comm: ranks 0 and 1 of turned
    if rank == before:
        mpixla.send(jnp.zeros(50), 0, tag=8, comm=turned)
    if rank == last:

        def receive(x):
            if how == "request":
                request = mpixla.irecv(x, 1, tag=8, comm=turned)
                return mpixla.wait(request)
            if how == "sendrecv":
                return mpixla.sendrecv(x, x, 1, MPI.PROC_NULL, recvtag=8, comm=turned)
            return mpixla.recv(x, 1, tag=8, comm=turned)

        run = receive if how == "eager" else jax.jit(receive)
        with pytest.raises(jax.errors.JaxRuntimeError) as raised:
            jax.block_until_ready(run(jnp.zeros(3)))
        error = mpixla.error_of(raised.value)
        assert error.error_class == MPI.ERR_TRUNCATE
        functions = {"request": ("MPI_Wait", "MPI_Irecv"), "sendrecv": ("MPI_Sendrecv",)}
        assert error.function in functions.get(how, ("MPI_Recv",))
        assert (error.rank, error.peer) == (rank, 1)
        words = {"request": "mpixla.wait(", "sendrecv": "mpixla.sendrecv("}.get(how, "mpixla.recv(")
        assert error.line == f"{raised_at(receive, words)} in receive"
        assert "with tag 8" in error.text
    comm.Barrier()
    turned.Free()


def raised_at(function, text):
    from mpixla.checks.sites import short_name

    return f"{short_name(__file__)}:{line_of(function, text)}"


def test_refused_when_it_runs(size, comm):
    """Check the errors of a traced rank and a traced tag; a refused argument is no error of MPI."""
    x = jnp.ones(2)
    source = jax.jit(lambda source: mpixla.recv(x, source))
    tag = jax.jit(lambda tag: mpixla.recv(x, MPI.PROC_NULL, tag=tag))
    for run, number, want in (
        (source, size + 1, ("MPI_Recv", MPI.ERR_RANK, comm.rank, size + 1)),
        (tag, -5, ("MPI_Recv", MPI.ERR_TAG, comm.rank, None)),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError) as raised:
            run(number).block_until_ready()
        error = mpixla.error_of(raised.value)
        assert parts(error)[:4] == want
        assert "test_mpi_errors.py:" in error.line
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        mpixla.recv(x, size)
    assert mpixla.error_of(refused.value) is None
