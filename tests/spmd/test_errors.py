"""Bad arguments are refused when tracing; what fails while running is an exception, and the next call works."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from cases import check_refused
from mpixla.watch import sites

X = np.ones((3, 2), np.float32)
SIZE = MPI.COMM_WORLD.Get_size()

# (what, a call, the exception, what its sentence must have)
BAD_CALLS = [
    (
        "root too large",
        lambda: mpixla.bcast(X, SIZE),
        ValueError,
        rf"(?m)root of bcast is {SIZE}, .* are 0 to {SIZE - 1}\."
        + (r" There is one process: python -m mpixla run -n 2 script\.py starts two\.$" if SIZE == 1 else "$"),
    ),
    ("root negative", lambda: mpixla.gather(X, -1), ValueError, "root of gather is -1"),
    ("root a float", lambda: mpixla.reduce(X, MPI.SUM, 0.5), TypeError, "root of reduce must be an integer"),
    ("root a list", lambda: mpixla.scatter(X, [0]), TypeError, "root of scatter must be an integer"),
    ("dest too large", lambda: mpixla.send(X, SIZE), ValueError, "dest of send"),
    ("dest any source", lambda: mpixla.send(X, MPI.ANY_SOURCE), ValueError, "dest of send"),
    ("source too large", lambda: mpixla.recv(X, SIZE), ValueError, "source of recv"),
    ("source of sendrecv", lambda: mpixla.sendrecv(X, X, SIZE, 0), ValueError, "source of sendrecv"),
    ("dest of sendrecv", lambda: mpixla.sendrecv(X, X, 0, SIZE), ValueError, "dest of sendrecv"),
    ("tag negative", lambda: mpixla.send(X, 0, tag=-5), ValueError, "tag of send is -5, but this MPI's tags"),
    ("tag of any", lambda: mpixla.send(X, 0, tag=MPI.ANY_TAG), ValueError, "tag of send"),
    ("tag too large", lambda: mpixla.recv(X, 0, tag=2**40), ValueError, "tag of recv"),
    (
        "op a string",
        lambda: mpixla.allreduce(X, "sum"),
        TypeError,
        "op must be an mpi4py reduction .* is a str\\.",
    ),
    ("op REPLACE", lambda: mpixla.allreduce(X, MPI.REPLACE), ValueError, "does not apply to arrays"),
    ("op null", lambda: mpixla.scan(X, MPI.OP_NULL), ValueError, "freed"),
    (
        "op for the dtype",
        lambda: mpixla.allreduce(X, MPI.BAND),
        TypeError,
        "with op BAND.*SUM, PROD, MAX, MIN",
    ),
    ("comm an int", lambda: mpixla.barrier(comm=0), TypeError, "comm must be an mpi4py communicator .* is an int\\."),
    ("comm null", lambda: mpixla.barrier(comm=MPI.COMM_NULL), ValueError, "MPI.COMM_NULL"),
    ("comm an op", lambda: mpixla.barrier(comm=MPI.SUM), TypeError, "communicator .* is an mpi4py.MPI.Op\\."),
    ("op an array", lambda: mpixla.scan(X, jnp.ones(2)), TypeError, "reduction .* is a jax.Array\\."),
    ("op nothing", lambda: mpixla.scan(X, None), TypeError, "reduction .* is None\\."),
    ("status an int", lambda: mpixla.recv(X, 0, status=1), TypeError, "status must be an mpi4py.MPI.Status"),
    ("alltoall shape", lambda: mpixla.alltoall(np.ones(SIZE + 1)), ValueError, "one entry for each of the"),
    ("alltoall scalar", lambda: mpixla.alltoall(1.0), ValueError, r"x has shape \(\)"),
    (
        "scatter shape",
        lambda: mpixla.scatter(np.ones(SIZE + 1), MPI.COMM_WORLD.rank),
        ValueError,
        "one entry for",
    ),
    (
        "a token",
        lambda: mpixla.allreduce(X, MPI.SUM, token=None),
        TypeError,
        r"allreduce\(\) takes no token: .* docs/migration\.md says",
    ),
    ("a token, and no array", lambda: mpixla.barrier(token=jnp.zeros(())), TypeError, r"barrier\(\) takes no token"),
    ("a token of two arrays", lambda: mpixla.sendrecv(X, X, 0, 0, token=X), TypeError, r"sendrecv\(\) takes no token"),
    (
        "sendbuf an array, recvbuf a pair",
        lambda: mpixla.sendrecv(X, (X, X), 0, 0),
        ValueError,
        r"sendbuf and recvbuf of sendrecv must be pytrees of one structure, but are PyTreeDef\(\*\) and "
        r"PyTreeDef\(\(\*, \*\)\)",
    ),
    ("sendbuf a pair", lambda: mpixla.sendrecv((X, X), X, 0, 0), ValueError, "of sendrecv must be pytrees of one"),
    ("names differ", lambda: mpixla.isendrecv({"a": X}, {"b": X}, 0, 0), ValueError, "of isendrecv must be pytrees"),
    (
        "operand a list",
        lambda: mpixla.ragged_all_to_all([X], X, *[[1] * SIZE] * 4),
        ValueError,
        "operand and output of ragged_all_to_all must be pytrees of one structure",
    ),
    (
        "template of another structure",
        lambda: mpixla.allgatherv((X, X), 1, capacity=3 * SIZE, template=X),
        ValueError,
        r"template of allgatherv must have the structure of x, PyTreeDef\(\(\*, \*\)\), but has PyTreeDef\(\*\)",
    ),
    (
        "template a list",
        lambda: mpixla.allgatherv(X, 1, capacity=9, template=[X] * 9),
        ValueError,
        "the structure of x",
    ),
    ("x a string", lambda: mpixla.allreduce("abc", MPI.SUM), TypeError, "x of allreduce must be an array"),
    (
        "x too large",
        lambda: mpixla.allreduce(2**70, MPI.SUM),
        ValueError,
        "x of allreduce is a number that is too large",
    ),
    ("x an object", lambda: mpixla.bcast(object(), 0), TypeError, "x of bcast must be an array.* is an object"),
    (
        "x of another byte order",
        lambda: mpixla.sendrecv(X, X.astype(X.dtype.newbyteorder()), 0, 0),
        TypeError,
        r"recvbuf of sendrecv has dtype [<>]f4, which is not this machine's byte order\. "
        r"Pass recvbuf\.astype\(recvbuf\.dtype\.newbyteorder\('='\)\)",
    ),
    (
        "x of objects",
        lambda: mpixla.allreduce(np.array([None, 1]), MPI.SUM),
        TypeError,
        "x of allreduce must be an array of numbers, but has dtype object, which JAX does not have",
    ),
    ("x of dates", lambda: mpixla.bcast(np.zeros(2, "M8[D]"), 0), TypeError, r"has dtype datetime64\[D\], which JAX"),
    ("x of strings", lambda: mpixla.allgather(np.array(["a"])), TypeError, "has dtype <U1, which JAX does not have"),
    (
        "x masked",
        lambda: mpixla.allreduce(np.ma.array([1.0, 2.0], mask=[0, 1]), MPI.SUM),
        TypeError,
        r"x of allreduce is a masked array, which JAX does not take\. Pass x\.filled\(value\)\.",
    ),
    ("x a jax.Ref", lambda: mpixla.norm(jax.new_ref(jnp.ones(2))), TypeError, r"is a jax\.Ref\. Pass x\[\.\.\.\]\."),
    (
        "x a traced jax.Ref",
        lambda: jax.jit(mpixla.norm)(jax.new_ref(jnp.ones(2))),
        TypeError,
        r"x of norm must be an array or a number, but is a jax\.Ref\. Pass x\[\.\.\.\]\.",
    ),
    ("cotangent", lambda: mpixla.allreduce(1.0, MPI.SUM, cotangent="both"), ValueError, "must be .* but is 'both'"),
    ("x int4", lambda: mpixla.bcast(jnp.zeros(2, jnp.int4), 0), TypeError, "dtype int4"),
]


@pytest.mark.parametrize(("call", "kind", "sentence"), [pytest.param(*c[1:], id=c[0]) for c in BAD_CALLS])
def test_bad_arguments(call, kind, sentence):
    check_refused(call, kind, sentence)


def test_deleted_array(monkeypatch):
    monkeypatch.setattr(sites, "_first_calls", np.inf)  # which wait for their operands
    x = jnp.ones(3)
    x.delete()
    with pytest.raises(RuntimeError, match=r"Array has been deleted with shape=float\d+\[3\]"):
        mpixla.allreduce(x, MPI.SUM)


def test_traced_values_where_static_ones_are_needed():
    for call in (
        lambda x, i: mpixla.bcast(x, i),
        lambda x, i: mpixla.scatter(x, root=i),
        lambda x, i: mpixla.send(x, mpixla.Shift(0, i)),
    ):
        with pytest.raises(TypeError, match="traced value .* static"):
            jax.jit(call)(X, 0)


def test_inter_communicator(comm, rank, size):
    if size == 1:
        pytest.skip("needs two groups")
    half = comm.Split(rank % 2, rank)
    inter = half.Create_intercomm(0, comm, 1 - rank % 2, 5)
    with pytest.raises(TypeError, match="inter-communicator.*Merge"):
        mpixla.allreduce(X, MPI.SUM, comm=inter)
    inter.Free()
    half.Free()


def still_works(comm, size):
    assert mpixla.allreduce(jnp.int32(1), MPI.SUM, comm=comm) == size
    assert jax.jit(lambda x: mpixla.allreduce(x, MPI.SUM, comm=comm) + 1)(jnp.int32(1)) == size + 1


def test_communicator_freed_through_another_object(comm, size):
    """The program fails, in words, and the next calls work, whatever took the communicator's handle since."""
    clone = comm.Clone()
    program = jax.jit(lambda x: mpixla.allreduce(x, MPI.SUM, comm=clone))
    assert program(jnp.int32(1)) == size
    MPI.Intracomm(clone).Free()
    successor = comm.Clone()
    for _ in range(2):
        with pytest.raises(Exception, match="freed after this program was traced"):
            program(jnp.int32(1)).block_until_ready()
    still_works(comm, size)
    still_works(successor, size)
    successor.Free()


@pytest.mark.not_checked
@pytest.mark.parametrize("how", ["eager", "jit", "long jit"])
def test_truncated_message(comm, rank, size, how):
    """MPI's error names the call, and later calls work: small programs, and long ones that run in the background."""
    if size == 1:
        pytest.skip("needs a partner")
    # Open MPI 4 reports nothing for a message to oneself, so the ranks pair up.
    if rank < 2:
        if rank == 0:
            mpixla.send(jnp.zeros(50), 1, tag=8, comm=comm)
        else:

            def receive(x):
                if how == "long jit":
                    x = jax.lax.fori_loop(0, 5, lambda i, x: x @ x, x)
                return mpixla.recv(x[0, :3], 0, tag=8, comm=comm)

            run = receive if how == "eager" else jax.jit(receive)
            with pytest.raises(Exception, match=r"r1 \| MPI_Recv returned error code \d+: ") as raised:
                run(jnp.zeros((600, 600))).block_until_ready()
            for part in ("<- 0 with tag 8 and 3 items of float64", "rank 1 of", "'MPI_COMM_WORLD'"):
                assert part in str(raised.value)
    comm.Barrier()
    still_works(comm, size)
