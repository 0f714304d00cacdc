"""One compilation cache for all ranks: what another job finds in it, and what ranks find that compile after rank 0."""

import json

import pytest

pytestmark = pytest.mark.any_mpi

PREAMBLE = """
import json, sys
events = []
import jax, jax.numpy as jnp
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jax.monitoring.register_event_listener(lambda event, **_: events.append(event.split("/")[-1]))
import mpixla
from mpi4py import MPI
rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
"""
# Prints the counts of programs that a rank asked for and compiled: last of all, after other exit handlers.
COUNT = f"""
import atexit
@atexit.register
def print_counts():
    asked, found = (events.count(name) for name in ("compile_requests_use_cache", "cache_hits"))
    sys.stdout.write(json.dumps({{"asked": asked, "compiled": asked - found}}) + "\\n")
    sys.stdout.flush()
{PREAMBLE}"""
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


RANK_0_FIRST = f"""{PREAMBLE}
def step(x):
    return mpixla.allreduce(jnp.sin(x) * 2, MPI.SUM)

x, comm = jnp.ones(3), MPI.COMM_WORLD
if comm.Get_rank() > 0:
    comm.Barrier()
before = len(events)
step = jax.jit(step).lower(x).compile()
print(json.dumps([rank, "cache_hits" in events[before:]]))
if comm.Get_rank() == 0:
    comm.Barrier()
assert jnp.allclose(step(x), 6 * jnp.sin(1.0))
"""


def test_a_program_that_rank_0_compiles_first_is_compiled_once(job, tmp_path):
    """The recipe of docs/other_tools.md."""
    found = dict(ranks_of(job(3, RANK_0_FIRST, tmp_path / "cache")))
    assert found == {0: False, 1: True, 2: True}


def test_removed_variable_is_named(job):
    seen = job(2, "import mpixla", MPIXLA_COMPILE_ONCE="1").stderr
    assert seen == (
        "mpixla: MPIXLA_COMPILE_ONCE has no effect any more: have rank 0 compile first, as docs/other_tools.md shows "
        "(The compilation cache).\n"
    )


COMMENTED = f"""{COUNT}
sys.path.insert(0, sys.argv[2])
from model import step
comm = MPI.COMM_WORLD.Dup()
program = jax.jit(lambda x: step(x, comm))
program(jnp.ones(3)).block_until_ready()
comm.Free()
try:
    program(jnp.ones(3)).block_until_ready()
except Exception as e:
    print(str(e).rpartition("(at ")[2].partition(" ")[0].rpartition("/")[2], file=sys.stderr)
"""
SOURCE = """
import mpixla, jax.numpy as jnp
from mpi4py import MPI
def step(x, comm):
    x = jnp.sin(x)
    f = lambda x: 2 * mpixla.allreduce(x, MPI.SUM, comm=comm)
    return f(x)
"""


def test_a_comment_compiles_nothing(job, tmp_path):
    """The messages of a program that comes from the cache have the lines of now."""
    lines = []
    for source in (SOURCE, SOURCE.replace("    x = jnp", "    # more\n    x = jnp"), "# more\n" * 3 + SOURCE):
        (tmp_path / "model.py").write_text(source)
        done = job(2, COMMENTED, tmp_path / "cache", tmp_path)
        assert all(rank["compiled"] == 0 for rank in ranks_of(done)) == bool(lines)
        lines.append(set(done.stderr.split()))
    assert lines == [{"model.py:6"}, {"model.py:7"}, {"model.py:9"}]
