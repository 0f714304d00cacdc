"""Without options, ranks that disagree and waits that cannot end are reported, and right programs print nothing."""

import re

import pytest

from jobs import all_ended, together

BEGINNING = """
    import sys, time
    from mpi4py import MPI
    import jax, jax.numpy as jnp, numpy as np
    import mpixla
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    odd = rank == 1
    x = jnp.arange(4.0)
"""

DISAGREE = {
    "data type": ("x.astype(int) if odd else x", "mpixla.allreduce(x, op=MPI.SUM)", "the data type"),
    "shape": ("x[:3] if odd else x", "mpixla.allreduce(x, op=MPI.SUM)", "the count"),
    "root of gather": ("x", "mpixla.gather(x, rank)", "the root"),
    "order": ("x", "(mpixla.bcast(x, 0) if odd else mpixla.allreduce(x, op=MPI.SUM))", "the operation"),
    "start": ("x[:3] if odd else x", "mpixla.wait(mpixla.iallreduce(x, op=MPI.SUM))", "the count"),
    "leaves": ("[x[:1], x] if odd else [x, x[:1]]", "mpixla.bcast(x, 0)", "differ in the parts"),
    "many leaves": ("[x] * 9 + ([x, x[:1]] if odd else [x[:1], x])", "mpixla.bcast(x, 0)", "differ in the parts"),
    "exact sums": ("x.astype('bfloat16') if odd else x", "mpixla.fsum(x)", "differ in the parts"),
    "exact kinds": ("x", "(mpixla.vdot(x, x, exact=True) if odd else mpixla.fsum(x))", "differ in the parts"),
    "neighbours": (
        "x",
        "mpixla.alltoallv(x[:2], [1, 1], [2, 1] if odd else [1, 1])",
        "Each rank must expect the messages that the others send to it",
    ),
}


@pytest.mark.parametrize("wrap", ["", "jax.jit"], ids=["eager", "jit"])
def test_ranks_that_disagree(job, wrap, tmp_path):
    """Every rank raises, and says what each wanted, and where; then all go on."""
    code, lines = BEGINNING, {}
    for name, (given, call, _) in DISAGREE.items():
        lines[name] = code.count("\n") + 3
        code += f"""
    try:
        print({wrap}(lambda x: {call})({given}))
    except Exception as e:
        open(f"{name} on {{rank}}", "w").write(str(e))
"""
    assert not job(2, code).stdout
    for name, (_, _, differ) in DISAGREE.items():
        for rank in (0, 1):
            said = (tmp_path / f"{name} on {rank}").read_text()
            assert differ in said
            ranks = re.findall(rf"^  ranks? (\d)\D.* at script\.py:{lines[name]}\b", said, re.MULTILINE)
            assert {"0", "1"} <= set(ranks), said


MESSAGES = {
    "send and recv": ("mpixla.send({int}, dest=1)", "mpixla.recv({float}, source=0)"),
    "any source": ("mpixla.send({int}, dest=1, tag=3)", "mpixla.recv({float}, tag=3)"),
    "sendrecv": ("mpixla.sendrecv({int}, {int}, 1, 1)", "mpixla.sendrecv({int}, {float}, 0, 0)"),
    "started": ("mpixla.wait(mpixla.isend({int}, 1))", "mpixla.wait(mpixla.irecv({float}, 0))"),
    "one that is shorter": ("mpixla.send({int}[:2], dest=1)", "mpixla.recv({float}, source=0)"),
    "in a compiled program": ("jax.jit(lambda y: mpixla.send(y, 1))({int})", "jax.jit(mpixla.recv)({float}, source=0)"),
}


def test_messages_of_another_type(job, tmp_path):
    """The receiver says what each wanted, and where; then both go on, and what mpi4py sends is not compared."""
    code, lines = BEGINNING, {}
    for name, calls in MESSAGES.items():
        sends, receives = (call.format(int="jnp.arange(4)", float="jnp.zeros(4)") for call in calls)
        lines[name] = code.count("\n") + 4, code.count("\n") + 6
        code += f"""
    try:
        if rank == 0:
            print({sends})
        else:
            jax.block_until_ready({receives})
    except Exception as e:
        open({name!r}, "w").write(str(e))
    assert (mpixla.sendrecv(x, x + 1, 1 - rank, 1 - rank) == x).all()
"""
    job(2, code.replace("jax.jit(mpixla.recv)", "jax.jit(mpixla.recv, static_argnames='source')"))
    for name, (sent_at, received_at) in lines.items():
        said = (tmp_path / name).read_text()
        assert "r1 | MPIXLA_CHECK: a message from rank 0 to rank 1 of communicator 'mpixla default' with tag" in said
        assert re.search(rf"^  rank 0 sends \d items of int32, at script\.py:{sent_at}\b", said, re.M), said
        assert re.search(rf"^  rank 1 receives 4 items of float32, at script\.py:{received_at}\b", said, re.M), said
        assert "They differ in the data type" in said


def test_messages_are_compared_at_first_only(job):
    done = job(
        2,
        BEGINNING
        + """
    for i in range(100):
        try:
            y = mpixla.send(jnp.arange(4), 1, tag=i) if rank == 0 else mpixla.recv(x, 0, tag=i).block_until_ready()
        except Exception:
            print("refused")
    """,
    )
    assert done.stdout.count("refused") == 64
    assert done.stderr == ""


def test_each_eager_line_is_named_though_all_share_a_program(job):
    done = job(
        2,
        BEGINNING
        + """
    big = jax.jit(lambda a: a @ a @ a)(jnp.ones((1000, 1000)))  # still computes when it is sent
    mpixla.allreduce(big, op=MPI.SUM)
    if odd:
        mpixla.allreduce(big[:3], op=MPI.SUM)
    else:
        mpixla.allreduce(big[:4], op=MPI.SUM)
    """,
        check=False,
    )
    line = BEGINNING.count("\n") + 5
    assert re.search(rf"^  rank 0: .* at script\.py:{line + 2}\n  rank 1: .* at script\.py:{line}\n", done.stderr, re.M)


IN_VAIN = {
    "collective": "if rank == 0: print(mpixla.allreduce(x, op=MPI.SUM))",
    "receive": "if rank == 0: print(mpixla.recv(x, source=1))",
    "send": "if rank == 0: mpixla.send(jnp.ones(1 << 22), dest=1)",
    "started": "if rank == 0: print(mpixla.wait(mpixla.iallreduce(x, op=MPI.SUM)))",
    "sub-communicator": """
    pair = world.Split(rank // 2)
    if odd: sys.exit()
    print(mpixla.allreduce(x, op=MPI.SUM, comm=pair))
    """,
}


@pytest.mark.parametrize("name", IN_VAIN)
def test_waiting_for_a_rank_that_has_ended(job, name):
    done = job(2, BEGINNING + f"\n    mpixla.barrier()\n    {IN_VAIN[name]}\n", check=False, timeout=100)
    assert done.returncode != 0
    assert not done.stdout
    assert done.stderr.count("so the whole job ends") == 1, done.stderr
    assert re.search(
        r"rank 0 has waited .* for a rank that is at the end of its script.*\n  It waits in MPI_.* at "
        r"script\.py:\d+.*\.\n  Rank 1 has not come: it is at the end of its script\.",
        done.stderr,
    ), done.stderr


RIGHT = {
    "between start and wait": """
    for i in range(9):
        request = mpixla.ireduce_scatter(jnp.stack([x] * 2), MPI.MAX)
        assert (mpixla.allreduce(x, op=MPI.SUM) == 2 * x).all()
        assert (mpixla.wait(request) == x).all()
    """,
    "works on": """
    pair = MPI.COMM_SELF.Dup()
    for i in range(8 * odd):
        time.sleep(1)
        mpixla.allreduce(x, op=MPI.SUM, comm=pair)
    """,
    "a refused call": """
    gone = MPI.COMM_SELF.Dup()
    f = jax.jit(lambda x: mpixla.allreduce(x, op=MPI.SUM, comm=gone))
    f(x)
    gone.Free()
    step = jax.jit(lambda x: mpixla.allreduce(x, op=MPI.SUM))
    y = x
    for i in range(140):    # who catches what a call was refused for is not one call ahead of the others
        if odd and i % 3 == 0:
            try:
                jax.block_until_ready(f(y))
            except Exception:
                pass
            else:
                raise AssertionError("a freed communicator was used")
        y = step(y) / size
    np.testing.assert_array_equal(y, np.arange(4.0))
    """,
    "mpi4py's messages beside ours": """
    other = world.Dup()
    if odd:
        assert (mpixla.recv(jnp.zeros(3, int), 0, comm=other) == jnp.arange(3)).all()
        assert (mpixla.recv(jnp.zeros(6, jnp.bfloat16), 0) == 1).all()
        assert (mpixla.recv(jnp.zeros(3), 0, comm=other) == 2).all()
        buffer = np.empty(3, np.float32)
        other.Recv(buffer, 0)
        assert (buffer == 3).all()
    else:
        other.Send(np.arange(3, dtype=np.int32), 1)
        mpixla.send(jnp.ones(6, jnp.bfloat16), 1)
        mpixla.send(jnp.full(3, 2.0), 1, comm=other)
        mpixla.send(jnp.full(3, 3.0), 1, comm=other)
    """,
    "other shapes of as many items": """
    assert mpixla.allreduce(jnp.ones((2, 3)[::-1] if odd else (2, 3)), MPI.SUM).sum() == 6 * size
    assert mpixla.sendrecv(jnp.ones((2, 3)), jnp.zeros((3, 2)), 1 - rank, 1 - rank).sum() == 6
    mpixla.allreduce({"a": x, "b": x} if odd else {"b": x, "c": x}, MPI.SUM)
    """,
    # Rank 0 then ends long before rank 1.
    "last messages": """
    if rank == 0:
        requests = [mpixla.isend(jnp.full(1 << 20, 7.0), dest=1), world.isend("hello", dest=1)]
        mpixla.wait(requests[0])
    else:
        time.sleep(6)
        assert (mpixla.recv(jnp.zeros(1 << 20), source=0) == 7).all()
        assert world.recv(source=0) == "hello"
        time.sleep(2)
    """,
}
EXIT_HANDLERS = """
    mpixla.barrier()
    if odd:
        time.sleep(1)
        assert mpixla.recv(x, source=0, comm=world)[3] == 3
        world.send("and back", dest=0)
"""


# Registered before mpixla's own, so it runs after them.
HANDLER = """
    import atexit, time
    from mpi4py import MPI
    import numpy as np

    def at_the_end():
        if MPI.COMM_WORLD.Get_rank() == 0:
            time.sleep(4)
            MPI.COMM_WORLD.Send(np.arange(4, dtype=np.float32), dest=1)
            assert MPI.COMM_WORLD.recv(source=1) == "and back"

    atexit.register(at_the_end)
"""


def test_right_programs(job):
    done = job(2, together(RIGHT, BEGINNING))
    assert all_ended(done, RIGHT, 2)
    assert done.stderr == ""


@pytest.mark.parametrize("options", [{}, {"MPIXLA_CHECK": "0"}], ids=["as it is", "nothing compared"])
def test_communicators_that_ranks_use_in_another_order(job, options):
    """A rank that has made its part of a call and left is not missed in it, if the names do not say which is which."""
    done = job(
        3,
        BEGINNING
        + """
    first, second = world.Dup(), world.Dup()
    if rank > 0:
        mpixla.sendrecv(x, x, 3 - rank, 3 - rank, comm=first)
    for i in range(70):
        mpixla.reduce(x, MPI.SUM, 0, comm=second)
    if rank == 2:
        time.sleep(5)
    print(mpixla.reduce(x, MPI.SUM, 0, comm=second)[1])
    """,
        **options,
    )
    assert sorted(done.stdout.split()) == ["1.0", "1.0", "3.0"]
    assert done.stderr == ""


def test_exit_handlers_that_communicate(job):
    assert job(2, HANDLER + BEGINNING + EXIT_HANDLERS).stderr == ""


@pytest.mark.any_mpi
@pytest.mark.long
def test_long_wait_is_reported_once_by_the_lowest_rank(job):
    """Said once, by the lowest rank that waits, and the job goes on."""
    done = job(
        3,
        BEGINNING
        + """
    mpixla.barrier()
    if rank == 2:
        time.sleep(66)
    print(mpixla.allreduce(x, op=MPI.SUM)[1])
    """,
    )
    assert done.stdout.split() == ["3.0"] * 3
    assert done.stderr.count("goes on waiting") == 1
    assert re.search(r"mpixla: rank 0 has waited for 6\d\.\d s in a call, and goes on waiting", done.stderr)
    assert "Rank 2 has not come: it is in no call of mpixla" in done.stderr
    assert "time.sleep(66)" in done.stderr


@pytest.mark.any_mpi
@pytest.mark.long
def test_time_limit_of_zero_reports_no_wait(job):
    done = job(
        2,
        BEGINNING
        + """
    if odd:
        time.sleep(66)
    mpixla.barrier()
    """,
        MPIXLA_TIMEOUT="0",
    )
    assert done.stderr == ""


def test_another_call_in_memory_that_ranks_share(job):
    """Who looks at it says so, also where calls are not compared before."""
    done = job(
        2,
        BEGINNING
        + """
    mpixla.bcast(x[: 3 + odd], 0)
    """,
        check=False,
        MPIXLA_CHECK="0",
    )
    assert done.returncode != 0
    assert "do not agree" not in done.stderr
    assert "MPI_Bcast: rank 0 of communicator 'mpixla default' makes another call where this rank makes" in done.stderr
    assert "Run the program with MPIXLA_CHECK=1" in done.stderr
    assert f"(at script.py:{1 + BEGINNING.count(chr(10)) + 1}" in done.stderr
