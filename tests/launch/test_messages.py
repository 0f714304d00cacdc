"""Random right programs, in which mpixla's messages and mpi4py's go between the same ranks: none is ever refused.

Messages have as many bytes in every type, and few tags and values, so that they are easily taken for each other.
"""

import pytest

PROGRAM = """
import random, sys, threading
import jax, jax.numpy as jnp, mpixla, numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
dice = random.Random(int(sys.argv[1]))  # the same on all ranks
KINDS = [("int32", (4,)), ("uint32", (2, 2)), ("float32", (4,)), ("float32", (2, 2)), ("bfloat16", (8,))]
KINDS += [("int8", (16,)), ("complex64", (2,))]
COMMS = [None, world.Dup(), world.Dup(), world.Split(0, -rank)]
COMMS[3].Set_name("reversed")
if dice.random() < 0.5:
    mpixla.barrier(comm=COMMS[1])

def rank_in(comm, r):
    return size - 1 - r if comm is COMMS[3] else r

def value_of(kind, number):
    dtype, shape = kind
    n = int(np.prod(shape))
    value = [np.zeros(n), np.ones(n), np.arange(n), np.arange(n) + number % 3][number % 4]
    return np.array(jnp.asarray(value.astype(np.float32)).astype(dtype).reshape(shape))

def raw(array):  # what mpi4py has no type for travels as bytes
    return [array.view(np.uint8), MPI.BYTE] if array.dtype.name == "bfloat16" else array

def check(got, message):
    want = value_of(message["kind"], message["number"])
    assert np.array_equal(np.asarray(got), want), (rank, message, got)

def start_send(m):
    comm, to = m["comm"], rank_in(m["comm"], m["to"])
    value = value_of(m["kind"], m["number"])
    if m["sends"] == "mpi4py":
        return comm.Isend(raw(value), to, tag=m["tag"]), value
    if m["sends"] == "send":
        return mpixla.send(jnp.asarray(value), to, tag=m["tag"], comm=comm), None
    return mpixla.isend(jnp.asarray(value), to, tag=m["tag"], comm=comm), "isend"

def end_send(request, kept):
    if isinstance(kept, np.ndarray):
        request.Wait()
    elif kept == "isend":
        jax.block_until_ready(mpixla.wait(request))

def receive(m, is_only):
    comm, source, tag = m["comm"], rank_in(m["comm"], m["of"]), m["tag"]
    template = value_of(m["kind"], 3)
    if m["receives"] == "mpi4py":
        comm.Recv(raw(template), source, tag=tag)
        return template
    if m["receives"] == "any" and is_only:
        status = MPI.Status()
        got = mpixla.recv(jnp.asarray(template), comm=comm, status=status)
        assert (status.Get_source(), status.Get_tag()) == (source, tag)
        return got
    return mpixla.recv(jnp.asarray(template), source, tag=tag, comm=comm)

def start_receive(m):
    comm, source, tag = m["comm"], rank_in(m["comm"], m["of"]), m["tag"]
    template = value_of(m["kind"], 3)
    if m["receives"] == "mpi4py":
        request = comm.Irecv(raw(template), source, tag=tag)
        return lambda: (request.Wait(), template)[1]
    request = mpixla.irecv(jnp.asarray(template), source, tag=tag, comm=comm)
    return lambda: mpixla.wait(request)

def draw(number):
    of = dice.randrange(size)
    comm = dice.choice(COMMS)
    return {
        "number": number, "of": of, "to": dice.choice([r for r in range(size) if r != of]), "comm": comm,
        "tag": dice.choice([0, 0, 5]), "kind": dice.choice(KINDS),
        "sends": dice.choice(["isend", "send", "mpi4py"] if comm else ["isend", "send"]),
        "receives": dice.choice(["recv", "recv", "any", "mpi4py"] if comm else ["recv", "recv", "any"]),
    }

def a_round(number):
    messages = [draw(10 * number + i) for i in range(dice.randrange(1, 7))]
    # Those of one sender, communicator and tag are received in their order, and all others in any.
    order = sorted(messages, key=lambda m: (dice.random(), m["number"]))
    streams = {}
    for m in messages:
        streams.setdefault((m["of"], m["to"], id(m["comm"]), m["tag"]), []).append(m)
    order = [streams[m["of"], m["to"], id(m["comm"]), m["tag"]].pop(0) for m in order]
    starts, shuffled = dice.random() < 0.5, dice.random()
    sends = [start_send(m) for m in messages if m["of"] == rank]
    to_me = [m for m in order if m["to"] == rank]
    if starts:
        waits = [(start_receive(m), m) for m in to_me]
        random.Random(shuffled).shuffle(waits)
        for wait, m in waits:
            check(wait(), m)
    for m in to_me if not starts else ():
        left = [x for x in to_me[to_me.index(m):] if x["comm"] is m["comm"]]
        check(receive(m, len(left) == 1), m)
    for send in sends:
        end_send(*send)
    world.Barrier()  # nothing is under way where a receive is from any

def exchange(number):
    kinds = [dice.choice(KINDS) for _ in range(size)]
    comm, way = dice.choice(COMMS), dice.choice(["mpixla", "mpi4py", "mixed"])
    here, ranks = rank_in(comm, rank), size
    to, of = (here + 1) % ranks, (here - 1) % ranks
    kind_of = kinds[rank_in(comm, of)]
    out, template = value_of(kinds[rank], number), value_of(kind_of, 3)
    if comm is not None and (way == "mpi4py" or (way == "mixed" and rank == 0)):
        comm.Sendrecv(raw(out), to, 0, raw(template), of, 0)
        got = template
    else:
        got = mpixla.sendrecv(jnp.asarray(out), jnp.asarray(template), of, to, comm=comm)
    assert np.array_equal(np.asarray(got), value_of(kind_of, number)), (rank, number)

for number in range(int(sys.argv[2])):
    a_round(number)
    exchange(number)

def in_thread(comm, seed):
    own = random.Random(seed)
    for number in range(8):
        kind = own.choice(KINDS)
        value, template = value_of(kind, number), value_of(kind, 3)
        if rank == 0 and own.random() < 0.5:
            comm.Send(raw(value), 1)
        elif rank == 0:
            mpixla.send(jnp.asarray(value), 1, comm=comm)
        elif rank == 1:
            own.random()
            got = mpixla.recv(jnp.asarray(template), 0, comm=comm)
            assert np.array_equal(np.asarray(got), value), (seed, number)

threads = [threading.Thread(target=in_thread, args=(comm, seed)) for seed, comm in enumerate(COMMS[1:3])]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
world.Barrier()
print("ended", rank, flush=True)
"""


@pytest.mark.parametrize("check", ["", "1"])
@pytest.mark.parametrize(("seed", "size"), [(1, 2), (2, 3)])
def test_right_programs_are_never_refused(job, check, seed, size):
    done = job(size, PROGRAM, str(seed), "12", MPIXLA_CHECK=check)
    assert done.stdout.count("ended") == size
    said = [line for line in done.stderr.splitlines() if "was not sent with mpixla: the data types" not in line]
    assert said == []
    assert check or done.stderr == ""
