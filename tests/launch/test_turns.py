"""One compilation cache for all ranks: what another job finds in it, and compiling in turns (MPIXLA_COMPILE_ONCE)."""

import fcntl
import json
import subprocess
import sys

import pytest

from mpixla.hooks import turns

pytestmark = pytest.mark.any_mpi

# Prints what a rank has compiled, of what it has asked for: last of all, after what runs at the end.
COUNT = """
import atexit, json, sys
events = []
@atexit.register
def tell():
    asked, found = (events.count(name) for name in ("compile_requests_use_cache", "cache_hits"))
    sys.stdout.write(json.dumps({"asked": asked, "compiled": asked - found}) + "\\n")
    sys.stdout.flush()
import jax, jax.numpy as jnp
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jax.monitoring.register_event_listener(lambda event, **_: events.append(event.split("/")[-1]))
import mpixla
from mpi4py import MPI
rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
"""
MODEL = f"""{COUNT}
turned = MPI.COMM_WORLD.Split(0, rank * int(sys.argv[2]))
cart = turned.Create_cart([2, size // 2], periods=[False, True])
up, down = mpixla.Shift(0, 1), mpixla.Shift(0, -1)
place = jnp.arange(36.0).reshape(6, 6) + 100 * turned.rank

def step(x):
    x = mpixla.halo_exchange(x, cart)
    x = x + mpixla.sendrecv(x, 2 * x, down, up, comm=cart)
    request = mpixla.isendrecv(x, x, up, down, comm=cart)
    x = mpixla.neighbor_allgather(mpixla.wait(request), comm=cart).sum(0)
    x = mpixla.exscan(x, MPI.SUM, comm=turned) + mpixla.scan(x, MPI.MAX, comm=turned)
    return jnp.sum(mpixla.allgather(x, comm=turned, cotangent="varying") ** 2)

value, slope = jax.value_and_grad(step)(place)
jitted = jax.jit(jax.value_and_grad(step))(place)
assert jnp.allclose(slope, jitted[1]) and jnp.allclose(value, jitted[0])
"""


def ranks_of(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long
def test_another_order_of_ranks_compiles_nothing(job, tmp_path):
    """The second job has the ranks of its communicators, and so their places in the domain, the other way round."""
    first = ranks_of(job(4, MODEL, tmp_path / "cache", 1, timeout=200))
    second = ranks_of(job(4, MODEL, tmp_path / "cache", -1, timeout=200))
    assert len(first) == len(second) == 4
    assert all(rank["asked"] > 10 for rank in first)
    assert sum(rank["compiled"] for rank in first) > 0
    assert [rank["compiled"] for rank in second] == [0, 0, 0, 0]


def test_each_program_is_compiled_once(job, tmp_path):
    """By one rank, whichever comes first."""
    ranks = ranks_of(job(4, MODEL, tmp_path / "cache", 1, timeout=200, MPIXLA_COMPILE_ONCE="1"))
    assert len({rank["asked"] for rank in ranks}) == 1
    kept = [path.name for path in (tmp_path / "cache").iterdir()]
    assert all(name.endswith("-cache") for name in kept)  # no lock is left
    assert sum(rank["compiled"] for rank in ranks) == len(kept)


APART = f"""{COUNT}
def program(n):
    return jax.jit(lambda x: jnp.sin(x * n).sum())

if rank == 0:  # inside a communication, while the other compiles what it will need, and what it never will
    x = mpixla.jit(lambda x: mpixla.recv(x, 1) + 1)(jnp.ones(3))
    for n in range(8):
        program(n)(x)
else:
    for n in reversed(range(16)):
        program(n)(jnp.ones(3))
    mpixla.send(jnp.ones(3), 0)
assert rank == 1 or x[0] == 2
try:  # a compilation that fails
    jax.jit(lambda x: jax.ffi.ffi_call("nobody_has_this", jax.typeof(x))(x))(jnp.ones(3)).block_until_ready()
except Exception as e:
    assert "nobody_has_this" in str(e), e
mpixla.barrier()
"""


def test_ranks_that_compile_different_programs(job, tmp_path):
    ranks = ranks_of(job(2, APART, tmp_path / "cache", MPIXLA_COMPILE_ONCE="1"))
    assert sum(rank["compiled"] for rank in ranks) == len(list((tmp_path / "cache").iterdir())) + 2  # failed on both
    assert not list((tmp_path / "cache").glob("*-turn"))


def test_without_a_cache_it_says_so(job):
    code = "import jax, mpixla, jax.numpy as jnp\nmpixla.allreduce(jnp.ones(3), __import__('mpi4py.MPI').MPI.SUM)"
    seen = job(2, code, MPIXLA_COMPILE_ONCE="1", JAX_COMPILATION_CACHE_DIR="").stderr
    assert seen.count("mpixla: MPIXLA_COMPILE_ONCE has no effect") == 2
    assert seen.count("\n") == 2


# A turn by itself, in this process.

HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("has it", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path, monkeypatch):
    """Another process that compiles the program "key"."""
    monkeypatch.setattr(turns, "_directory", lambda: str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "key-turn")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "has it\n"
        yield process
        process.kill()


def test_who_dies_while_compiling_stops_nobody(holder, monkeypatch):
    naps = []

    def nap(seconds):
        naps.append(seconds)
        if len(naps) == 5:
            holder.kill()
            holder.wait()

    monkeypatch.setattr(turns.time, "sleep", nap)
    assert turns.take("key") is None
    assert len(naps) >= 5


def test_who_is_stopped_while_compiling_is_waited_for_no_longer_than_the_limit(holder, monkeypatch):
    monkeypatch.setattr(turns, "_LIMIT", 0.1)
    assert turns.take("key") is None
    assert holder.poll() is None


def test_other_programs_are_not_waited_for(holder, tmp_path):
    end = turns.take("another key")
    assert (tmp_path / "another key-turn").exists()
    end()
    assert not (tmp_path / "another key-turn").exists()


def test_where_locks_do_not_work_everybody_compiles(tmp_path, monkeypatch):
    monkeypatch.setattr(turns, "_directory", lambda: str(tmp_path))

    def no_locks(file, kind):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    turns.take("key")()
    monkeypatch.setattr(turns, "_directory", lambda: "/proc/nowhere")
    assert turns.take("key") is None
    monkeypatch.setattr(turns, "_directory", lambda: "gs://bucket/cache")
    assert turns.take("key") is None
