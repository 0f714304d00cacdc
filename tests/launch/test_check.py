"""Checked mode: every call that does not fit raises, and names the line of each rank.

A collective call raises on all ranks, a message where it is received; the ranks stay in step."""

import ast
import re
import textwrap
from typing import NamedTuple

import pytest

from jobs import all_ended, together
from mpixla.checks import agreement

PREAMBLE = """
import sys
import jax, jax.numpy as jnp, mpixla, numpy as np
from mpi4py import MPI
rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
comm = MPI.COMM_WORLD.Dup()
ring = MPI.COMM_WORLD.Create_cart([size], periods=[True])
x = jnp.arange(12.0)
odd = rank == 1
mpixla.barrier(comm=comm)

def run(f, how):
    f = {"eager": lambda f: f, "jit": jax.jit, "sealed": mpixla.jit}[how](f)
    return jax.block_until_ready(f(x))

def right(x):
    assert (mpixla.allreduce(jnp.ones(3), MPI.SUM, comm=comm) == size).all()
    assert (mpixla.wait(mpixla.iallreduce(jnp.ones(3), MPI.SUM, comm=comm)) == size).all()
    below, above = (rank - 1) % size, (rank + 1) % size
    assert (mpixla.sendrecv(jnp.full(4, rank), jnp.zeros(4, int), below, above, comm=comm) == below).all()
    assert mpixla.halo_exchange(jnp.full(6, rank), ring)[0] == below
"""


class Wrong(NamedTuple):
    """A call that does not fit, as a function body with the marks #A and #B in the lines of each kind of rank."""

    body: str
    differ: str
    raises: tuple[int, ...] = (0, 1, 2)


SAME = "return {}  #A #B"

COLLECTIVE = {
    "operation": Wrong(
        """
        if odd:
            return mpixla.bcast(x, 0, comm=comm)  #B
        return mpixla.allreduce(x, MPI.SUM, comm=comm)  #A
        """,
        "the operation and the line",
    ),
    "dtype": Wrong(SAME.format("mpixla.allreduce(x.astype(int) if odd else x, MPI.SUM, comm=comm)"), "the data type"),
    "count": Wrong(SAME.format("mpixla.allreduce(x[:3] if odd else x, MPI.SUM, comm=comm)"), "the count"),
    "reduction": Wrong(SAME.format("mpixla.allreduce(x, MPI.MAX if odd else MPI.SUM, comm=comm)"), "the reduction"),
    "root of bcast": Wrong(SAME.format("mpixla.bcast(x, int(odd), comm=comm)"), "the root"),
    "root of reduce": Wrong(SAME.format("mpixla.reduce(x, MPI.SUM, int(odd), comm=comm)"), "the root"),
    "root of gather": Wrong(SAME.format("mpixla.gather(x, int(odd), comm=comm)"), "the root"),
    "root of scatter": Wrong(
        SAME.format("mpixla.scatter(x[:size] if rank == odd else x[0], int(odd), comm=comm)"), "the root"
    ),
    "count of gather": Wrong(SAME.format("mpixla.gather(x[:2] if odd else x, 0, comm=comm)"), "the count"),
    "count of scatter": Wrong(
        SAME.format("mpixla.scatter(jnp.ones((size, 3)) if rank == 0 else x[: 4 if odd else 3], 0, comm=comm)"),
        "differ in the count",
    ),
    "count of scatter's template": Wrong(
        SAME.format("mpixla.scatter(jnp.ones((size, 3)) if rank == 0 else x[: 2 if odd else 3], 0, comm=comm)"),
        "differ in the count",
    ),
    "direction": Wrong(
        """
        f = lambda x: mpixla.scan(x, MPI.SUM, comm=comm)  #A #B
        return jax.linear_transpose(f, x)(x) if odd else f(x)
        """,
        "the direction",
    ),
    "order": Wrong(
        """
        if odd:
            a = mpixla.allreduce(x, MPI.SUM, comm=comm)  #B
            return a, mpixla.allreduce(2 * x, MPI.SUM, comm=comm)
        b = mpixla.allreduce(2 * x, MPI.SUM, comm=comm)  #A
        return b, mpixla.allreduce(x, MPI.SUM, comm=comm)
        """,
        "the line",
    ),
    "leaves": Wrong(
        """
        trees = [x, x] if odd else [x, x, x]
        return mpixla.allgather(trees, comm=comm)  #A #B
        """,
        "the line",
    ),
    "sizes of leaves": Wrong(
        SAME.format("mpixla.wait(mpixla.iallreduce([x[:4], x] if odd else [x, x[:4]], MPI.SUM, comm=comm))"),
        "the parts and the line",
    ),
    "shape": Wrong(
        SAME.format("mpixla.allreduce(x.reshape(4, 3) if odd else x.reshape(3, 4), MPI.SUM, comm=comm)"),
        r"(?s)of shape \(3, 4\) with op.*of shape \(4, 3\) with op.*differ in the shape\.",
    ),
    "shape of what a root sends": Wrong(
        SAME.format("mpixla.bcast(x if rank == 0 else x.reshape(3, 4), 0, comm=comm)"), "differ in the shape"
    ),
    "shape of what starts": Wrong(
        SAME.format("mpixla.wait(mpixla.iallgather(x.reshape(4, 3) if odd else x, comm=comm))"), "differ in the shape"
    ),
    "shape of parts": Wrong(
        SAME.format("mpixla.scatter(jnp.ones((size, 2, 3)) if rank == 0 else x[:6].reshape(3, 2), 0, comm=comm)"),
        "differ in the shape",
    ),
    "shape of rows": Wrong(
        """
        rows = x.reshape(2, 3, 2) if odd else x.reshape(2, 2, 3)
        return mpixla.allgatherv(rows, [2] * size, comm=comm)  #A #B
        """,
        "differ in the shape",
    ),
    "keys of a pytree": Wrong(
        SAME.format("mpixla.allreduce({'b': x, 'c': x[:3]} if odd else {'a': x, 'b': x[:3]}, MPI.SUM, comm=comm)"),
        r"(?s)float32: a \(12,\), b \(3,\)\).*float32: b \(12,\), c \(3,\)\).*the parts and the line",
    ),
    "keys of a pytree that is moved leaf by leaf": Wrong(
        SAME.format("mpixla.allgather({'b': x, 'c': x} if odd else {'a': x, 'b': x}, comm=comm)"),
        r"(?s)leaf 1 of 2: a\).*leaf 1 of 2: b\).*the parts and the line",
    ),
    "shapes of leaves": Wrong(
        SAME.format("mpixla.bcast([x, x.reshape(4, 3) if odd else x.reshape(3, 4)], 0, comm=comm)"),
        r"(?s)0 \(12,\), 1 \(3, 4\)\).*0 \(12,\), 1 \(4, 3\)\).*the parts and the line",
    ),
    "counts of allgatherv": Wrong(
        """
        counts = [2, 3, 2] if odd else [1, 3, 3]
        return mpixla.allgatherv(x[:counts[rank]], counts[:size], comm=comm)  #A #B
        """,
        "the counts",
    ),
    "rows of alltoallv": Wrong(
        """
        counts = [2] * size if odd else [1] * size
        return mpixla.alltoallv(x[:sum(counts)], counts, [1] * size, comm=comm)  #A #B
        """,
        "rank 1 sends rank 0 2 rows",
    ),
    "blocking": Wrong(
        """
        if odd:
            return mpixla.wait(mpixla.iallreduce(x, MPI.SUM, comm=comm))  #B
        return mpixla.allreduce(x, MPI.SUM, comm=comm)  #A
        """,
        "the operation and the line",
    ),
    "two that start": Wrong(
        """
        if odd:
            return mpixla.wait(mpixla.ibcast(x, 0, comm=comm))  #B
        return mpixla.wait(mpixla.iallreduce(x, MPI.SUM, comm=comm))  #A
        """,
        "the operation and the line",
    ),
    "count of what starts": Wrong(
        SAME.format("mpixla.wait(mpixla.iallreduce(x[:3] if odd else x, MPI.SUM, comm=comm))"), "the count"
    ),
    "barrier": Wrong(
        """
        if odd:
            return mpixla.barrier(comm=comm)  #B
        return mpixla.allgather(x, comm=comm)  #A
        """,
        "the operation and the line",
    ),
    "pairs of other sizes": Wrong(
        """
        places = jnp.ones(x.shape, "int8" if odd else "int32")
        return mpixla.allreduce((x.astype(int), places), MPI.MAXLOC)  #A #B
        """,
        "the data type",
    ),
    "halos of other shapes": Wrong(
        """
        block = jnp.ones((6, 4)) if odd else jnp.ones((6, 5))
        return mpixla.halo_exchange(block, ring, width=(1,))  #A #B
        """,
        r"rank \d sends rank \d \d+ bytes",
    ),
    "halos of other types": Wrong(
        """
        block = jnp.ones((6, 4), int if odd else float)
        return mpixla.halo_exchange(block, ring)  #A #B
        """,
        "the data type",
    ),
    "halos of other widths": Wrong(
        "return mpixla.halo_exchange(jnp.ones(12), ring, width=2 if odd else 1)  #A #B", "the width"
    ),
    "neighbours": Wrong(
        """
        counts = [1, 2] if odd else [1, 1]
        return mpixla.neighbor_alltoallv(x[:sum(counts)], counts, [1, 1], comm=ring)  #A #B
        """,
        r"rank 1 sends rank \d",
    ),
    "values": Wrong(
        "return mpixla.assert_replicated(x + rank, comm=comm)  #A",
        r"r\d \| assert_replicated: the array of shape .* is not the same",
    ),
    "a loop that ranks leave by norms of their own": Wrong(
        """
        return jax.lax.while_loop(  #A
            lambda y: jnp.linalg.norm(y) > 1, lambda y: y / 4 + 0 * mpixla.allreduce(y, MPI.SUM, comm=comm), x * 4**rank
        )
        """,
        r"(?s)r\d \| MPIXLA_CHECK: whether a loop goes on .a norm or an inner product of this rank's part\? "
        r".*rank \d differs from rank",
    ),
    "a loop that ranks leave at different times": Wrong(
        """
        return jax.lax.while_loop(  #A
            lambda s: s[1] < 2 + rank, lambda s: (mpixla.allreduce(s[0], MPI.SUM, comm=comm), s[1] + 1), (x, 0)
        )
        """,
        r"(?s)whether a loop goes on .*rank \d differs from rank \d in 1 of 1 entries: (True|False), where",
    ),
    "a loop whose reductions are only started": Wrong(
        """
        return jax.lax.while_loop(  #A
            lambda y: jnp.linalg.norm(y) > 1,
            lambda y: y / 4 + 0 * mpixla.wait(mpixla.iallreduce(y, MPI.SUM, comm=comm)),
            x * 4**rank,
        )
        """,
        "whether a loop goes on",
    ),
}


def make_pair(sends: str, receives: str, differ: str, raises: tuple[int, ...] = (1,)) -> Wrong:
    """Make the case of a message that rank 0 sends to rank 1."""
    return Wrong(f"if rank == 0:\n    return {sends}  #A\nif rank == 1:\n    return {receives}  #B\n", differ, raises)


MESSAGES = {
    "on a communicator that is new": Wrong(
        """
        fresh = MPI.COMM_WORLD.Dup()
        if rank == 0:
            return mpixla.send(x.astype(int), 1, comm=fresh)  #A
        if rank == 1:
            return mpixla.recv(x, 0, comm=fresh)  #B
        """,
        "the data type",
        (1,),
    ),
    "too small": make_pair("mpixla.send(x, 1, comm=comm)", "mpixla.recv(x[:3], 0, comm=comm)", "the count"),
    "too large": make_pair("mpixla.send(x[:3], 1, tag=5, comm=comm)", "mpixla.recv(x, comm=comm)", "the count"),
    "another type": make_pair(
        "mpixla.send(x.astype(int), 1, comm=comm)", "mpixla.recv(x, 0, tag=0, comm=comm)", "the data type"
    ),
    "another type and count": make_pair(
        "mpixla.sendrecv(x.astype(int), x[:2], 1, 1, comm=comm)",
        "mpixla.sendrecv(x[:2], x[:5], 0, 0, comm=comm)",
        "the data type and the count",
    ),
    "of mpi4py's, of which nobody knows the type": Wrong(
        """
        fresh = MPI.COMM_WORLD.Dup()
        if rank == 0:
            return fresh.Send(np.arange(3, dtype=np.int32), 1)
        if rank == 1:
            return mpixla.recv(x, 0, comm=fresh)  #B
        """,
        r"rank 0 sends 12 bytes, at an unknown line\n  rank 1 receives 12 items of float32, at script\.py:",
        (1,),
    ),
    "zeros of another type": make_pair(
        "mpixla.send(jnp.zeros(12, int), 1)", "mpixla.recv(x, 0)", "differ in the data type"
    ),
    "another kind of integer": make_pair(
        "mpixla.send(x.astype('uint32'), 1)", "mpixla.recv(x.astype(int), 0)", "differ in the data type"
    ),
    "another shape": make_pair(
        "mpixla.send(x.reshape(3, 4), 1)",
        "mpixla.recv(x.reshape(4, 3), 0)",
        r"(?s)12 items of float32 of shape \(3, 4\), at .*12 items of float32 of shape \(4, 3\), at .*in the shape\.",
    ),
    "started, another shape": make_pair(
        "mpixla.wait(mpixla.isend(x.reshape(3, 4), 1))",
        "mpixla.wait(mpixla.irecv(x.reshape(4, 3), 0))",
        "differ in the shape",
    ),
    "started, too small": make_pair(
        "mpixla.wait(mpixla.isend(x, 1, comm=comm))", "mpixla.wait(mpixla.irecv(x[:3], 0, comm=comm))", "the count"
    ),
    "started, another type": make_pair(
        "mpixla.wait(mpixla.isend(x.astype(int), 1, tag=3, comm=comm))",
        "mpixla.wait(mpixla.irecv(x, MPI.ANY_SOURCE, tag=3, comm=comm))",
        "the data type",
    ),
    "started, both ways": make_pair(
        "mpixla.wait(mpixla.isendrecv(x, x[:4], 1, 1, comm=comm))",
        "mpixla.wait(mpixla.isendrecv(x[:3], x, 0, 0, comm=comm))",
        "the count",
        (0,),
    ),
    # An exception for the first leaf leaves the message of the second behind.
    "other leaves": make_pair(
        "mpixla.send({'a': x, 'b': x + 1}, 1)",
        "mpixla.recv({'b': x, 'c': x}, 0)",
        r"(?s)leaf \d of 2: [ab]\).*leaf \d of 2: [bc]\).*differ in the leaves of their pytrees",
    ),
}


def program(cases, how):
    """Return a script that makes each wrong call, prints its exception, and makes right calls; and where marks are."""
    lines = PREAMBLE.strip("\n").split("\n")
    places = {}
    for number, (name, wrong) in enumerate(cases.items()):
        lines.append(f"def wrong{number}(x):")
        body = [line for line in wrong.body.split("\n") if line.strip()]
        indent = len(body[0]) - len(body[0].lstrip())
        for line in body:
            for mark in "AB":
                if f"#{mark}" in line:
                    places[name, mark] = f"script.py:{len(lines) + 1} in "
            lines.append("    " + line[indent:])
        lines += [
            "try:",
            f"    run(wrong{number}, {how!r})",
            "except Exception as e:",
            f"    print(f'<<{number} {{rank}} {{str(e)!r}}>>', flush=True)",
            f"run(right, {how!r}) if {how!r} == 'eager' else right(x)",
        ]
    lines.append("print('ended', rank, flush=True)")
    return "\n".join(lines) + "\n", places


def raised_in(done, number):
    """Return the exception of each rank. Texts of several lines travel as one line, so that ranks do not mix them."""
    found = re.findall(rf"<<{number} (\d) (.*)>>", done.stdout)
    return {int(rank): ast.literal_eval(text) for rank, text in found}


@pytest.mark.parametrize(
    ("how", "size"),
    [
        ("eager", 2),
        ("jit", 2),
        ("sealed", 2),
        pytest.param("jit", 3, marks=[pytest.mark.long, pytest.mark.any_mpi]),
    ],
)
def test_calls_that_do_not_fit(job, how, size):
    cases = {**COLLECTIVE, **MESSAGES}
    code, places = program(cases, how)
    done = job(size, code, MPIXLA_CHECK="1", timeout=200)
    for number, (name, wrong) in enumerate(cases.items()):
        raised = raised_in(done, number)
        assert set(raised) == {rank for rank in wrong.raises if rank < size}, (name, raised)
        for text in raised.values():
            assert re.search(wrong.differ, text), (name, text)
            for (of, _), place in places.items():
                assert of != name or place in text, (name, place, text)
    assert sorted(re.findall(r"ended (\d)", done.stdout)) == [str(rank) for rank in range(size)]


@pytest.mark.parametrize("how", ["eager", "jit"])
def test_a_rank_may_make_more_calls_than_another(job, how):
    """Its other calls are of the same lines as the other ranks'."""
    code = f"""{PREAMBLE}
def step(x):
    total = lambda x: mpixla.allreduce(x, MPI.SUM, comm=comm)
    if odd:
        x = (lambda x: mpixla.allreduce(x, MPI.SUM, comm=MPI.COMM_SELF))(x)
        x = mpixla.allreduce(x, MPI.SUM, comm=MPI.COMM_SELF)
    for _ in range(2):
        x = total(x)
    n = 0
    while True:  # rank 1 comes to the condition a second time where rank 0 does so for the first
        while mpixla.allreduce(x, MPI.SUM, comm=comm) is not None and n < 2 * odd:
            n += 1
        n += 1
        if n > 2:
            return x

for _ in range(2):
    assert (run(step, {how!r}) == 4 * x).all()
print("right")
"""
    assert job(2, code, MPIXLA_CHECK="1").stdout.split() == ["right"] * 2


def test_lines_may_differ_where_only_calls_are_compared(job):
    code = f"""{PREAMBLE}
if rank == 0:
    y = mpixla.bcast(x, 0)
else:
    y = mpixla.bcast(jnp.zeros(12), 0)
assert (y == x).all()
try:
    mpixla.bcast(x[:2] if rank else x, 0).block_until_ready()
except Exception as e:
    print(f"<<0 {{rank}} {{str(e)!r}}>>", flush=True)
"""
    assert set(raised_in(job(2, code, MPIXLA_CHECK="calls"), 0)) == {0, 1}
    done = job(2, code, MPIXLA_CHECK="1", check=False)
    assert done.returncode != 0
    assert (
        "They differ in the line. If ranks are meant to make one call in different lines, set MPIXLA_CHECK=calls"
        in (done.stderr)
    )


def test_started_on_two_communicators_and_waited_for_in_crossed_order(job):
    """Each rank waits for what the other one has started and does not wait for yet."""
    code = f"""{PREAMBLE}
ours = [MPI.COMM_WORLD.Dup() for _ in range(2)]
a = mpixla.iallreduce(x[: 3 + rank], MPI.SUM, comm=ours[0])
b = mpixla.iallreduce(x[: 5 + rank], MPI.SUM, comm=ours[1])
for number in (1, 0) if odd else (0, 1):
    try:
        mpixla.wait([a, b][number]).block_until_ready()
    except Exception as e:
        print(f"<<{{number}} {{rank}} {{str(e)!r}}>>", flush=True)
right(x)
"""
    done = job(2, code)
    for number, start in enumerate(["a = ", "b = "]):
        (line,) = [i for i, text in enumerate(code.splitlines(), 1) if text.startswith(start)]
        raised = raised_in(done, number)
        assert set(raised) == {0, 1}
        for text in raised.values():
            for rank in (0, 1):
                items = 3 + 2 * number + rank
                assert re.search(rf"rank {rank}: MPI_Iallreduce of {items} items .* at script\.py:{line}\b", text)


# Programs that are right, whatever they rely on.
RIGHT = {
    "loops that all ranks leave together": """
        jax.lax.while_loop(lambda y: mpixla.norm(y, comm=comm) > 1, lambda y: y / 2, x + rank)
        jax.lax.while_loop(
            lambda s: s[1] > 1, lambda s: (s[0] / 2, mpixla.norm(s[0], comm=comm)), (x + rank, jnp.float32(9))
        )
        """,
    "a batch of loops, which all ranks leave together one by one": """
        def steps(y):
            return jax.lax.while_loop(
                lambda s: s[1] > 1, lambda s: (s[0] / 2, mpixla.norm(s[0], comm=comm), s[2] + 1), (y, jnp.float32(9), 0)
            )[2]
        batch = 0.5, 3.0, 100.0
        want = [1 + sum(y * size**0.5 > 2**i for i in range(9)) for y in batch]
        assert jax.jit(jax.vmap(steps))(jnp.array(batch)).tolist() == want
        """,
    "a loop of messages, each rank with a limit of its own": """
        jax.lax.while_loop(
            lambda s: s[1] < 1.5 + rank / 4,
            lambda s: (mpixla.sendrecv(s[0], s[0], 1 - rank, 1 - rank, comm=comm), s[1] + 1),
            (x, jnp.float32(0)),
        )
        """,
    "receives that are waited for in another order": """
        a, c, b = (mpixla.irecv(x, 1 - rank, tag=tag, comm=comm) for tag in (3, 5, MPI.ANY_TAG))
        for tag, n in ((5, 0), (3, 1), (9, 2)):
            mpixla.send(x + n, 1 - rank, tag=tag, comm=comm)
        assert (mpixla.wait(c) == x).all() and (mpixla.wait(a) == x + 1).all() and (mpixla.wait(b) == x + 2).all()
        """,
    "receives of one tag": """
        first, second = mpixla.irecv(x, 1 - rank, comm=comm), mpixla.irecv(x.astype(int), 1 - rank, comm=comm)
        sends = [mpixla.isend(x, 1 - rank, comm=comm), mpixla.isend(x.astype(int) + 1, 1 - rank, comm=comm)]
        assert (mpixla.wait(second) == x + 1).all() and (mpixla.wait(first) == x).all()
        mpixla.waitall(sends)
        """,
    "receives from anybody": """
        requests = [mpixla.irecv(x, comm=comm) for _ in range(3)]
        exact = mpixla.irecv(x.astype(int), 1 - rank, tag=7, comm=comm)
        for n in range(3):
            mpixla.send(x + n, 1 - rank, tag=n, comm=comm)
        got = [mpixla.wait(r) for r in requests]
        assert all((y == x + n).all() for n, y in enumerate(got))
        mpixla.send(x.astype(int), 1 - rank, tag=7, comm=comm)
        mpixla.wait(exact)
        """,
    "messages to oneself": """
        mpixla.send(x, rank, tag=4, comm=comm)
        r = mpixla.isend(x + 1, rank, tag=4, comm=comm)
        assert (mpixla.recv(x, rank, comm=comm) == x).all()
        mpixla.wait(r)
        assert (mpixla.recv(x, comm=comm) == x + 1).all()
        """,
    "both send first": """
        mpixla.send(x, 1 - rank, comm=comm)
        mpixla.send(x, 1 - rank, comm=comm)
        assert (mpixla.recv(x, 1 - rank, comm=comm) == x).all()
        assert (mpixla.recv(x, 1 - rank, comm=comm) == x).all()
        """,
    "a start that somebody waits for before the other goes on": """
        fresh = MPI.COMM_WORLD.Dup()
        request = mpixla.iallreduce(x, MPI.SUM, comm=fresh)
        if rank == 0:
            mpixla.recv(x, 1, comm=comm)
            y = mpixla.wait(request)
        else:
            y = mpixla.wait(request)
            mpixla.send(x, 0, comm=comm)
        assert (y == size * x).all()
        """,
    "messages from before the first collective call": """
        fresh = MPI.COMM_WORLD.Dup()
        request = mpixla.isend(x, 1 - rank, tag=1, comm=fresh)
        mpixla.barrier(comm=fresh)
        other = mpixla.isend(x.astype(int), 1 - rank, tag=1, comm=fresh)
        assert (mpixla.recv(x, 1 - rank, comm=fresh) == x).all()
        assert (mpixla.recv(x.astype(int), 1 - rank, comm=fresh) == x).all()
        mpixla.waitall([request, other])
        """,
    "a short message, with a status": """
        status = MPI.Status()
        if rank == 0:
            mpixla.send(x[:3], 1, comm=comm)
        else:
            assert (mpixla.recv(x + 1, 0, comm=comm, status=status)[3:] == x[3:] + 1).all()
            assert status.Get_count(MPI.FLOAT) == 3
        """,
    "nobody": """
        mpixla.send(x, MPI.PROC_NULL, comm=comm)
        mpixla.wait(mpixla.irecv(x, MPI.PROC_NULL, comm=comm))
        mpixla.sendrecv(x, x, MPI.PROC_NULL, MPI.PROC_NULL, comm=comm)
        """,
    "a communicator that goes": """
        for _ in range(5):
            fresh = MPI.COMM_WORLD.Dup()
            mpixla.allreduce(x, MPI.SUM, comm=fresh)
            mpixla.sendrecv(x, x, 1 - rank, 1 - rank, comm=fresh)
            fresh.Free()
        """,
    "mpi4py receives what has as many bytes as the next message": """
        fresh = MPI.COMM_WORLD.Dup()
        mpixla.barrier(comm=fresh)
        if rank == 0:
            mpixla.send(x.astype(int), 1, comm=fresh)
            mpixla.send(x, 1, comm=fresh)
        else:
            buffer = np.empty(12, np.int32)
            fresh.Recv(buffer, 0)
            assert (mpixla.recv(x + 1, 0, comm=fresh) == x).all()
        """,
    # Types are not compared any more once mpi4py has sent something.
    "mpi4py sends what has as many bytes as the next message": """
        fresh = MPI.COMM_WORLD.Dup()
        mpixla.barrier(comm=fresh)
        if rank == 1:
            fresh.Send(np.arange(12, dtype=np.int32), 0)
            mpixla.send(x, 0, comm=fresh)
        else:
            assert (mpixla.recv(x.astype(int) + 1, 1, comm=fresh) == x).all()
            assert (mpixla.recv(x + 1, 1, comm=fresh) == x).all()
        """,
    "mpi4py sends on another communicator what has as many bytes": """
        other = MPI.COMM_WORLD.Dup()
        for same in (np.arange(1, 4), np.zeros(3)):
            if rank == 0:
                other.Send(same.astype(np.int32), 1)
                mpixla.send(jnp.ones(6, jnp.bfloat16), 1)
                mpixla.send(jnp.asarray(same, "uint32"), 1)
            else:
                assert (mpixla.recv(jnp.ones(3, int), 0, comm=other) == same).all()
                assert (mpixla.recv(jnp.zeros(6, jnp.bfloat16), 0) == 1).all()
                assert (mpixla.recv(jnp.ones(3, "uint32"), 0) == same).all()
        """,
    "many messages of mpi4py's and ours, of mixed types": """
        fresh = MPI.COMM_WORLD.Dup()
        mpixla.barrier(comm=fresh)
        for i in range(200):
            dtype = ["int32", "float32", "uint32"][i % 3]
            value = np.full(3, i // 3 % 5, dtype)
            if rank == 0 and i % 4 == 0:
                fresh.Send(value, 1)
            elif rank == 0:
                mpixla.send(jnp.asarray(value), 1, comm=fresh)
            elif i % 7 == 0:
                fresh.Recv(buffer := np.empty(3, dtype), 0)
                assert (buffer == value).all()
            else:
                assert (mpixla.recv(jnp.full(3, 9, dtype), 0, comm=fresh) == value).all()
        """,
    "axes of length 1, and containers of other kinds": """
        mpixla.allreduce(x[None] if odd else x, MPI.SUM, comm=comm)
        mpixla.allreduce((x, x[:, None]) if odd else [x[None], x], MPI.SUM, comm=comm)
        mpixla.sendrecv(x[None] if odd else x, x[:, None], 1 - rank, 1 - rank)
        """,
    "parts that differ in their rows": """
        mpixla.allgatherv(jnp.ones((1 + rank, 2, 3)), [1, 2], comm=comm)
        mpixla.alltoallv(jnp.ones((3, 2)), [2, 1], [1, 1] if odd else [2, 2], comm=comm)
        """,
    "mpi4py sends and receives": """
        if rank == 0:
            comm.Send(np.arange(3, dtype=np.int32), 1)
            mpixla.send(x, 1, comm=comm)
            buffer = np.empty(12, np.float32)
            comm.Recv(buffer, 1)
            assert (buffer == np.arange(12)).all()
        else:
            assert (mpixla.recv(jnp.zeros(3, int), 0, comm=comm) == np.arange(3)).all()
            assert (mpixla.recv(x, 0, comm=comm) == x).all()
            mpixla.send(x, 0, comm=comm)
        """,
}


def test_right_programs(job):
    """None is refused, and none waits for ever."""
    programs = {name: f"{textwrap.dedent(body)}right(x)\n" for name, body in RIGHT.items()}
    assert all_ended(job(2, together(programs, PREAMBLE), MPIXLA_CHECK="calls"), programs, 2)


def test_numbers_by_which_a_loop_ends_may_differ(job):
    """A limit of each rank's own is told once, and no error; so are inner products of parts while all ranks go on."""
    code = f"""{PREAMBLE}
def count(x, limit):
    step = lambda s: (mpixla.allreduce(s[0], MPI.SUM, comm=comm), s[1] + 1)
    return jax.lax.while_loop(lambda s: s[1] < limit, step, (x, 0.0))
for _ in range(3):
    assert jax.jit(count)(x, 2.25 + 0.5 * odd)[1] == 3
jax.scipy.sparse.linalg.cg(lambda y: y + mpixla.allreduce(y, MPI.SUM, comm=comm), x + rank, maxiter=3)
right(x)
"""
    err = job(2, code, MPIXLA_CHECK="1").stderr
    told = re.findall(
        r"mpixla: r0 \| MPIXLA_CHECK: number \d by which a loop ends .* is not the same .*\n(.*)\n((?:Arrays .*\n)?.*)",
        err,
    )
    assert len(told) == err.count("MPIXLA_CHECK: ") == 2
    assert all("This is no error while all ranks go on" in last for _, last in told)
    assert re.search(r"rank 1 differs from rank 0 in 1 of 1 entries: 2\.75, where rank 0 has 2\.25", told[0][0])


@pytest.mark.parametrize("late", [0, 2])
def test_request_never_waited_for_leaves_no_rank_waiting(job, late):
    """A rank that starts a call, forgets it and ends does not leave the others waiting, however late they come."""
    done = job(
        2,
        f"""{PREAMBLE}
import time
if rank == 0:
    mpixla.iallreduce(x, MPI.SUM, comm=comm)
else:
    time.sleep({late})
    try:
        mpixla.allreduce(x, MPI.SUM, comm=comm).block_until_ready()
    except Exception as e:
        print(f"<<0 {{rank}} {{str(e)!r}}>>", flush=True)
""",
        MPIXLA_CHECK="1",
        check=False,
    )
    assert set(raised_in(done, 0)) == {1}
    assert "mpixla: r0 | MPIXLA_CHECK: the ranks of communicator" in done.stderr


def test_long_calls_that_only_one_rank_starts(job):
    """What takes their place on the others must not receive what it has no memory for, nor leave them out of step."""
    done = job(
        3,
        f"""{PREAMBLE}
big = jnp.ones(300_000)
starts = [
    lambda: mpixla.iallreduce(big, MPI.SUM, comm=comm),
    lambda: mpixla.ibcast(big, 0, comm=comm),
    lambda: mpixla.iallgather(big, comm=comm),
]
for number, start in enumerate(starts):
    try:
        if rank == 0:
            mpixla.wait(start())
        else:
            mpixla.allreduce(x, MPI.SUM, comm=comm).block_until_ready()
    except Exception as e:
        print(f"<<{{number}} {{rank}} {{str(e)!r}}>>", flush=True)
    right(x)
    everybody = mpixla.wait(mpixla.iallgather(big * rank, comm=comm))
    assert (everybody == jnp.arange(size)[:, None]).all()
    print("in step", rank, flush=True)
""",
        MPIXLA_CHECK="calls",
    )
    for number in range(3):
        assert set(raised_in(done, number)) == {0, 1, 2}
    assert sorted(re.findall(r"in step (\d)", done.stdout)) == sorted("012" * 3)


def test_environment_must_be_the_same(job):
    code = """
import os
from mpi4py import MPI
os.environ["MPIXLA_CHECK"] = "01"[MPI.COMM_WORLD.rank]
try:
    import mpixla
except RuntimeError as e:
    print(e)
"""
    done = job(2, code)
    assert done.stdout.count("must be the same on all ranks") == 2


def test_unknown_check_mode_is_refused_on_all_ranks(monkeypatch):
    """On one rank: all refuse it."""
    monkeypatch.setenv("MPIXLA_CHECK", "strictly")
    mode = agreement._read_check_mode()
    with pytest.raises(
        ValueError, match="MPIXLA_CHECK is 'strictly' on this rank, and on some rank it is nothing that"
    ):
        agreement._start_checks(["lines", mode])
