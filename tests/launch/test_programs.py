"""Properties of several processes.

Programs are the same text in every run, failures name lines, debug lines are whole, and a process has one device."""

import re
import subprocess
import sys

import pytest

from jobs import all_ended, together
from mpixla.base import settings

pytestmark = pytest.mark.any_mpi

LOWER = """
import jax, jax.numpy as jnp, mpixla
from mpi4py import MPI
rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
halves = MPI.COMM_WORLD.Split(rank % 2, rank)
status = MPI.Status()

def program(x):
    x = mpixla.allreduce(x, op=MPI.SUM)
    x = mpixla.scan(x, op=MPI.MAX, comm=halves)
    x = mpixla.bcast(x, 0)
    x = mpixla.gather(x, size - 1)
    x = jax.lax.fori_loop(0, 3, lambda i, x: mpixla.sendrecv(x, x, (rank - 1) % size, (rank + 1) % size), x)
    mpixla.send(x, MPI.PROC_NULL)
    return mpixla.recv(x, MPI.PROC_NULL, status=status), mpixla.barrier(comm=halves)

text = jax.jit(program).lower(jnp.ones((2, 3))).as_text()
open(f"{sys.argv[1]}-{rank}", "w").write(text)
"""


@pytest.mark.long
def test_two_runs_lower_to_the_same_text(job, tmp_path):
    for run in ("first", "second"):
        job(2, "import sys\n" + LOWER, tmp_path / run)
    for rank in range(2):
        first, second = (tmp_path / f"{run}-{rank}" for run in ("first", "second"))
        assert "mpixla_allreduce" in first.read_text()
        assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("how", ["environment", "set_logging"])
def test_debug_lines(job, how):
    done = job(
        2,
        f"""
import jax, jax.numpy as jnp, mpixla
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
{"mpixla.set_logging(True)" if how == "set_logging" else ""}
x = mpixla.allreduce(jnp.arange(3), op=MPI.SUM)
for _ in range(50):
    x = mpixla.sendrecv(x, x, 1 - rank, 1 - rank, sendtag=7)
x.block_until_ready()
try:
    mpixla.set_logging("off")
except TypeError as e:
    assert str(e) == "enabled of set_logging must be True or False, but is 'off'."
else:
    raise AssertionError("a word was taken for a flag")
print(mpixla.set_logging(False))
mpixla.barrier()
""",
        **({"MPIXLA_DEBUG": "1"} if how == "environment" else {}),
    )
    lines = done.stderr.splitlines()
    number = r"r[01] \| [0-9a-f]{4} \| "
    shapes = {
        number + r"MPI_Allreduce with 3 items": 2,
        number + r"MPI_Allreduce done with code 0 \(\d\.\de[+-]\d\ds\)": 2,
        number + r"MPI_Sendrecv -> [01] with tag 7 and 3 items <- [01] with tag any and 3 items": 100,
        number + r"MPI_Sendrecv done with code 0 \(\d\.\de[+-]\d\ds\)": 100,
    }
    for shape, count in shapes.items():
        assert sum(bool(re.fullmatch(shape, line)) for line in lines) == count, shape
    assert "MPI_Barrier" not in done.stderr
    assert done.stdout.split() == ["True", "True"]


def test_several_local_devices(job):
    """More visible devices are fine; a program on more than one is refused in words."""
    job(
        1,
        """
import jax, jax.numpy as jnp, mpixla, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from mpi4py import MPI
jax.config.update("jax_num_cpu_devices", 2)
f = jax.jit(lambda x: mpixla.allreduce(x, op=MPI.SUM))
assert f(jnp.ones(4)).sum() == 4
assert mpixla.allreduce(jax.device_put(jnp.ones(4), jax.devices()[1]), op=MPI.SUM).sum() == 4
sharded = jax.device_put(jnp.ones(4), NamedSharding(Mesh(np.array(jax.devices()), "i"), PartitionSpec("i")))
for call in (f, lambda x: mpixla.allreduce(x, op=MPI.SUM)):
    try:
        call(sharded)
    except NotImplementedError as e:
        assert "2 local devices" in str(e), e
    else:
        raise AssertionError("not refused")
assert f(jnp.ones(4)).sum() == 4
""",
    )


# None of these ends the job, so they share a start.
PROGRAMS = {
    "doubles from NumPy become floats, as everywhere in JAX": """
y = mpixla.allreduce(np.arange(3.0), op=MPI.SUM)
assert y.dtype == np.float32 and list(y) == [0, 2, 4]
""",
    "without jit": """
with jax.disable_jit():
    y = jax.jit(lambda x: mpixla.allreduce(x + 1, op=MPI.SUM))(jnp.ones(3))
assert list(y) == [4, 4, 4]
""",
    "threads, each with a communicator of its own": """
comms = [MPI.COMM_WORLD.Clone() for _ in range(4)]
wrong = []
def work(comm, i):
    f = jax.jit(lambda x: mpixla.allreduce(x, op=MPI.SUM, comm=comm))
    for k in range(100):
        if int(f(jnp.int32(k + i))) != 2 * (k + i):
            wrong.append((i, k))
threads = [threading.Thread(target=work, args=(c, i)) for i, c in enumerate(comms)]
for t in threads: t.start()
for t in threads: t.join()
assert not wrong
""",
    "ahead of time, more than once: later calls take another way than the first": """
x = jnp.arange(3.0) + MPI.COMM_WORLD.rank
for jit in (jax.jit, mpixla.jit):
    compiled = jit(lambda x: mpixla.allreduce(x, op=MPI.SUM)).lower(x).compile()
    for _ in range(3):
        assert list(compiled(x)) == [1, 3, 5]
    assert "mpixla_allreduce" in compiled.as_text()
""",
}


def test_programs(job):
    begin = "import jax, jax.numpy as jnp, mpixla, numpy as np, threading\nfrom mpi4py import MPI\n"
    assert all_ended(job(2, together(PROGRAMS, begin)), PROGRAMS, 2)


FREED = """
import sys, jax, jax.numpy as jnp, mpixla
from mpi4py import MPI
comm = MPI.COMM_SELF.Dup()

def alone(x):
    return mpixla.allreduce(x, op=MPI.SUM, comm=comm)

def fails(call):
    try:
        jax.block_until_ready(call())
    except Exception as e:
        print(str(e).splitlines()[-1], flush=True)
"""
EXPORT = """
exported = jax.export.export(jax.jit(alone), disabled_checks=mpixla.export_checks())(jnp.ones(3))
open(sys.argv[1], "wb").write(exported.serialize())
"""
RUN_EXPORTED = """
import sys, jax, jax.numpy as jnp, mpixla
exported = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
try:
    jax.block_until_ready(exported.call(jnp.ones(3)))
except jax.errors.JaxRuntimeError as e:
    print(e)
"""


def test_an_exported_program_has_its_lines(job, tmp_path):
    """A process that has not traced it names them."""
    job(1, FREED + EXPORT, tmp_path / "program")
    seen = job(1, RUN_EXPORTED, tmp_path / "program").stdout
    assert "is not registered in this process; a program that was exported " in seen
    assert "as docs/other_tools.md says (at " in seen
    assert "script.py:7 in alone" in seen


TWO_LINES = """
calls = [
    lambda: mpixla.allreduce(jnp.ones(3), op=MPI.SUM, comm=comm),
    lambda: mpixla.allreduce(jnp.ones(3), op=MPI.SUM, comm=comm),
]
for call in calls:
    call()
from mpixla.core import eager
programs = [known.program for known in eager._programs.values()]
comm.Free()
for program in programs:
    fails(lambda: program(jnp.ones(3)))
"""


@pytest.mark.parametrize("reports", [True, False])
def test_eager_calls_have_lines_where_reports_are_asked_for(job, reports):
    """Else two lines share one program, whose line is that of the thread."""
    seen = job(1, FREED + TWO_LINES, **({"MPIXLA_TRACE": "traces"} if reports else {})).stdout
    assert ("script.py:16 in <lambda>" in seen) == reports
    assert "script.py:17 in <lambda>" in seen


@pytest.mark.parametrize(
    ("variable", "value"), [("MPIXLA_CHECK", "1"), ("MPIXLA_TIMEOUT", "60"), ("MPIXLA_TRACE", "t")]
)
def test_variables_ask_for_reports(monkeypatch, variable, value):
    for name in ("MPIXLA_CHECK", "MPIXLA_TIMEOUT", "MPIXLA_TRACE"):
        monkeypatch.delenv(name, raising=False)
    assert not settings.asks_for_reports()
    monkeypatch.setenv(variable, value)
    assert settings.asks_for_reports()


def test_script_from_a_pipe(tmp_path):
    """It is read once, and whole."""
    script = "".join(f"print({i})\n" for i in range(3000))
    (tmp_path / "script.py").write_text(script)
    command = f"cat script.py | {sys.executable} -m mpixla.compat mpi4jax /dev/stdin"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [str(i) for i in range(3000)]
