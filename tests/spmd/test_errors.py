"""Bad arguments are refused when tracing; what fails while running is an exception, and the next call works."""

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from cases import check_refused
from mpixla.checks import sites

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
    ("op null", lambda: mpixla.scan(X, MPI.OP_NULL), ValueError, r"is no reduction: either it was freed .*, or it was"),
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
        "an array to scatter in equal parts",
        lambda: mpixla.scatter(np.ones((4 * SIZE, 3)), MPI.COMM_WORLD.rank),
        ValueError,
        rf"has shape \({4 * SIZE}, 3\)\. x\.reshape\({SIZE}, -1, 3\) has an equal part of it for each rank\."
        if SIZE > 1
        else "has an equal part",
    ),
    (
        "no topology",
        lambda: mpixla.halo_exchange(X, MPI.COMM_WORLD),
        TypeError,
        r"'MPI_COMM_WORLD' has no Cartesian topology\. Make a communicator that has one, comm\.Create_cart\(dims,",
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
        "x a text",
        lambda: mpixla.bcast("hello", 0),
        TypeError,
        r"is a str\. Python objects go through mpi4py's comm\.bcast, outside of jitted functions\.",
    ),
    (
        "x nothing",
        lambda: mpixla.bcast(None, 0),
        TypeError,
        r"is None\. A rank that only receives passes an array .*\. Python objects go through mpi4py's comm\.bcast",
    ),
    (
        "x an array of objects",
        lambda: mpixla.allgather(np.array([None, 1])),
        TypeError,
        "has dtype object, .* Python objects go through mpi4py's comm.allgather",
    ),
    (
        "a leaf a text",
        lambda: mpixla.bcast({"lr": 0.1, "name": "run1"}, 0),
        TypeError,
        r"^x\['name'\] of bcast must be an array or a number, but is a str\. Python objects go",
    ),
    ("a leaf of a message", lambda: mpixla.isend([X, "q"], 0), TypeError, r"^x\[1\] of isend .* mpi4py's comm\.isend"),
    ("a leaf of two", lambda: mpixla.sendrecv({"a": "q"}, {"a": X}, 0, 0), TypeError, r"^sendbuf\['a'\] of sendrecv"),
    ("a leaf of parts", lambda: mpixla.allgatherv([X, "q"], [3] * SIZE), TypeError, r"^x\[1\] of allgatherv must"),
    (
        "a leaf of slices",
        lambda: mpixla.reduce_scatter({"w": "q"}, MPI.SUM),
        TypeError,
        r"(?m)^x\['w'\] of reduce_scatter must be .* is a str\.$",
    ),
    ("a leaf of a vector", lambda: mpixla.vdot({"a": "q"}, {"a": X}), TypeError, r"(?m)^x\['a'\] of vdot .* str\.$"),
    ("a leaf that is summed", lambda: mpixla.fsum([X, "q"]), TypeError, r"^x\[1\] of fsum must be"),
    ("a leaf to compare", lambda: mpixla.assert_replicated({"a": "q"}), TypeError, r"^tree\['a'\] of assert_repl"),
    (
        "a leaf of a template",
        lambda: mpixla.allgatherv({"a": X}, [3] * SIZE, capacity=3 * SIZE, template={"a": "q"}),
        TypeError,
        r"^template\['a'\] of allgatherv must be",
    ),
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


def test_mpi_objects_as_arguments_of_jit():
    """JAX says to mark them as static, and then that they cannot be hashed."""
    for jit in (jax.jit, mpixla.jit):
        with pytest.raises(ValueError, match=r"^JAX was given MPI.SUM") as raised:
            jit(mpixla.allreduce)(X, MPI.SUM)
        assert str(raised.value) == (
            "JAX was given MPI.SUM, an mpi4py.MPI.Op, as an array: as an argument of a function under jax.jit, for "
            "example. MPI's objects have no hash, so they cannot be static arguments of jax.jit either. Close over the "
            "object, or bind it first: jax.jit(functools.partial(mpixla.allreduce, op=MPI.SUM))."
        )

    def total(x, comm):
        return mpixla.allreduce(x, MPI.SUM, comm=comm)

    with pytest.raises(
        ValueError, match=r"given an mpi4py.MPI.Intracomm, as .* jax\.jit\(functools\.partial\(f, comm="
    ):
        jax.jit(total)(X, MPI.COMM_WORLD)
    with pytest.raises(TypeError, match=r"Error interpreting argument to .* type <class 'str'>"):
        jax.jit(total)(X, "of another kind")
    np.testing.assert_array_equal(jax.jit(functools.partial(total, comm=MPI.COMM_WORLD))(X), SIZE * X)


def test_export_without_its_checks():
    program = jax.jit(lambda x: mpixla.allreduce(x, MPI.SUM))
    with pytest.raises(ValueError, match=r"disabled_checks=mpixla\.export_checks\(\)"):
        jax.export.export(program)(X)
    exported = jax.export.export(program, disabled_checks=mpixla.export_checks())(X)
    np.testing.assert_array_equal(exported.call(X), SIZE * X)


def test_a_user_made_reduction_has_the_name_of_its_function():
    def larger(a, b, datatype):
        """Return an operation of no use."""

    op = MPI.Op.Create(larger)
    with pytest.raises(TypeError, match=r"allreduce with op larger \(user-made\) has no derivative"):
        jax.jit(jax.grad(lambda x: mpixla.allreduce(x, op).sum())).lower(X)
    op.Free()


def test_a_second_wait():
    request = mpixla.isend(X, MPI.PROC_NULL)
    mpixla.wait(request)
    with pytest.raises(Exception, match=r"^ABORTED: .* already waited for: .* or start another request"):
        jax.block_until_ready(mpixla.wait(request))


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
            for part in (
                "<- 0 with tag 8 and 3 items of float64",
                "rank 1 of",
                "'MPI_COMM_WORLD'",
                "The message is longer than the template of its receive. With --check",
            ):
                assert part in str(raised.value)
    comm.Barrier()
    still_works(comm, size)
