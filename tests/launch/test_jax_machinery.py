"""JAX's own machinery takes programs that communicate: cache on disk, export, profiler, compilation ahead of time."""

import gzip
import json
import re

import jax
import jax.numpy as jnp
import pytest
from mpi4py import MPI

import mpixla
from reference import ROWS, operands

pytestmark = pytest.mark.any_mpi

PREAMBLE = """
import json, sys
import jax, jax.numpy as jnp, mpixla
from mpi4py import MPI
rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
other = (rank + 1) % size
x = jnp.arange(3.0) + rank
def right(y, expected):
    assert jnp.array_equal(y, expected), (y, expected)
"""

CACHED = f"""
import jax
jax.config.update("jax_compilation_cache_dir", __import__("sys").argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event.split("/")[-1]))
{PREAMBLE}
halves = MPI.COMM_WORLD.Split(0, -rank)
largest = MPI.Op.Create(lambda a, b, _: b.__setitem__(slice(None), max(bytes(a), bytes(b))), commute=True)
status = MPI.Status()

def program(x):
    y = mpixla.allreduce(x, op=MPI.SUM)
    mpixla.send(x, MPI.PROC_NULL)
    y = jax.lax.fori_loop(0, 4, lambda i, y: mpixla.sendrecv(y, y, other, other, comm=halves), y)
    y = mpixla.recv(y, MPI.PROC_NULL, status=status)
    request = mpixla.isendrecv(y, y, other, other)
    mpixla.barrier()
    return mpixla.wait(request)

right(jax.jit(program)(x), 2 * jnp.arange(3.0) + 1)
right(mpixla.jit(program)(x), 2 * jnp.arange(3.0) + 1)
right(jax.jit(jax.grad(lambda x: mpixla.allreduce(x * rank, op=MPI.SUM).sum()))(x), jnp.full(3, rank))
right(mpixla.bcast(x, 1), jnp.arange(3.0) + 1)
mpixla.allreduce(jnp.zeros(1, jnp.uint8), op=largest)
if rank == 0:
    mpixla.send(x, 1)
else:
    right(mpixla.recv(x, 0), jnp.arange(3.0))
counts = {{name: events.count(name) for name in ("compile_requests_use_cache", "cache_hits", "cache_misses")}}
sys.stdout.write(json.dumps({{"rank": rank, **counts}}) + "\\n")
"""


def test_second_run_compiles_nothing(job, tmp_path):
    """On each rank every program comes from the cache on disk, and does what it did."""
    runs = []
    for _ in range(2):
        ranks = [json.loads(line) for line in job(2, CACHED, tmp_path / "cache").stdout.splitlines()]
        runs.append(sorted(ranks, key=lambda counts: counts["rank"]))
    for first, second in zip(*runs, strict=True):
        assert first["compile_requests_use_cache"] > 6
        assert first["cache_hits"] < first["compile_requests_use_cache"]
        assert second["compile_requests_use_cache"] == first["compile_requests_use_cache"]
        assert second["cache_hits"] == second["compile_requests_use_cache"]
        assert second["cache_misses"] == 0


EXPORT = f"""{PREAMBLE}
from jax import export
reverse = MPI.COMM_WORLD.Split(0, -rank)

def program(x):
    y = mpixla.scan(x, op=MPI.SUM, comm=reverse)
    request = mpixla.iallreduce(y, op=MPI.SUM)
    total, (y, half) = mpixla.overlap(request, lambda y: mpixla.allreduce([y, y / 2], op=MPI.SUM), y)
    y = jax.lax.fori_loop(0, 3, lambda i, y: mpixla.sendrecv(y + half, y, other, other), y)
    return total + y

y, gradient = jax.value_and_grad(lambda x: program(x).sum())(x)
for name, platforms in {{"here": None, "everywhere": ["cpu", "cuda", "rocm"]}}.items():
    exported = export.export(jax.jit(program), platforms=platforms, disabled_checks=mpixla.export_checks())(x)
    with open(f"{{name}}-{{rank}}", "wb") as file:
        file.write(exported.serialize(vjp_order=1))
sys.stdout.write(json.dumps([rank, y.tolist(), gradient.tolist()]) + "\\n")
"""

# Another process, which has not used the default communicator before, and uses the second one without communicating.
LOAD = f"""{PREAMBLE}
from jax import export
reverse = MPI.COMM_WORLD.Split(0, -rank)
jax.eval_shape(lambda: mpixla.barrier(comm=reverse))
for name in ("here", "everywhere"):
    with open(f"{{name}}-{{rank}}", "rb") as file:
        program = export.deserialize(file.read())
    y, gradient = jax.value_and_grad(lambda x: program.call(x).sum())(x)
    sys.stdout.write(json.dumps([rank, y.tolist(), gradient.tolist()]) + "\\n")
"""


@pytest.mark.long
def test_exported_program_runs_elsewhere(job):
    """Exported for several platforms, too, whether this machine has them or not."""
    first = sorted(job(2, EXPORT).stdout.splitlines())
    second = sorted(job(2, LOAD).stdout.splitlines())
    assert len(first) == 2
    assert sorted(2 * first) == second


def test_export_with_symbolic_shapes():
    """Where the call's own operands are static."""
    from jax import export

    (n,) = export.symbolic_shape("n")

    def exported(f):
        program = export.export(jax.jit(f), disabled_checks=mpixla.export_checks())
        return program(jax.ShapeDtypeStruct((n,), jnp.float32))

    program = exported(lambda x: mpixla.allreduce(x.sum(), MPI.SUM))
    assert [program.call(jnp.ones(size)) for size in (2, 5)] == [2, 5]
    for of in (lambda x: x, lambda x: {"a": x, "b": x}):
        with pytest.raises(NotImplementedError, match="allreduce was used in an export with symbolic shapes, "):
            exported(lambda x, of=of: mpixla.allreduce(of(x), MPI.SUM))
    grid = MPI.COMM_SELF.Create_cart([1])
    with pytest.raises(NotImplementedError, match="halo_start was used in an export with symbolic shapes, "):
        exported(lambda x: mpixla.wait(mpixla.halo_start(x, grid)))
    grid.Free()


def test_export_asks_for_the_checks():
    """Without export_checks the program is refused, and the sentence says how to pass them."""
    from jax import export

    program = jax.jit(lambda x: mpixla.allreduce(x, op=MPI.SUM))
    with pytest.raises(ValueError, match=r"disabled_checks=mpixla\.export_checks\(\)"):
        export.export(program)(jnp.ones(3))
    assert len(mpixla.export_checks()) == len(set(map(repr, mpixla.export_checks()))) > 20


def traced(tmp_path, run) -> list[str]:
    """Return the names of XLA's operations in the profiler's trace, without the numbers that XLA appends."""
    with jax.profiler.trace(str(tmp_path)):
        jax.block_until_ready(run())
    (path,) = tmp_path.glob("**/*.trace.json.gz")
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    return [re.sub(r"\.\d+$", "", e["name"]) for e in events if "hlo_op" in e.get("args", {})]


def test_profiler_shows_calls_by_name(tmp_path):
    def program(x):
        y = mpixla.allreduce(x, op=MPI.SUM)
        y = jax.lax.fori_loop(0, 2, lambda i, y: mpixla.sendrecv(y, y, 0, 0), y)
        request = mpixla.iallgather(y)
        mpixla.barrier()
        return mpixla.wait(request)

    for number, how in enumerate((jax.jit(program), mpixla.jit(program), program)):
        how(jnp.ones(3)).block_until_ready()  # compiles
        names = traced(tmp_path / str(number), lambda how=how: how(jnp.ones(3)))
        calls = [name for name in names if name in ("allreduce", "sendrecv", "iallgather", "barrier", "wait")]
        assert calls == ["allreduce", "sendrecv", "sendrecv", "iallgather", "barrier", "wait"], names


def test_large_constants_as_arguments(job):
    """Where JAX makes them arguments of a program, which is sealed all the same."""
    job(
        2,
        f"""{PREAMBLE}
import numpy as np
w = jnp.arange(100.0)
k = np.arange(100.0, dtype=np.float32)
sums = {{
    "one": lambda x: mpixla.allreduce(x * w, op=MPI.SUM),
    "twice": lambda x: mpixla.allreduce(x * w, op=MPI.SUM) + 0 * w,
    "of NumPy": jax.jit(lambda x: mpixla.allreduce(x * k, op=MPI.SUM)),
    "reverse mode": jax.grad(lambda x: mpixla.allreduce((x * w * rank).sum(), op=MPI.SUM)),
    "loop": lambda x: jax.lax.scan(lambda c, _: (mpixla.allreduce(c * w, op=MPI.SUM), None), x, None, length=1)[0],
}}
for name, f in sums.items():
    for jit in (jax.jit, mpixla.jit):
        right(jit(f)(jnp.ones(100)), w * (rank if name == "reverse mode" else 2))
""",
        JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS="1",
    )


def test_next_checkpoint():
    """What it would make calls again in is refused, and says where the checkpoint is."""
    jax.config.update("jax_remat3", True)
    try:

        @jax.checkpoint
        def communicates(x):
            return jnp.sin(mpixla.allreduce(jnp.sin(x), op=MPI.SUM)).sum()

        assert float(communicates(jnp.zeros(3))) == 0
        for derive in (jax.grad, jax.value_and_grad):
            with pytest.raises(
                NotImplementedError, match=r"jax.checkpoint of communicates at .*test_jax_machinery.py:\d"
            ):
                derive(communicates)(jnp.ones(3))
        jax.grad(jax.checkpoint(lambda x: jnp.sin(x).sum()))(jnp.ones(3))
    finally:
        jax.config.update("jax_remat3", False)


def test_next_scan():
    """It keeps calls in place, and has no reverse mode yet: once it has one, that needs a rule of its own."""
    jax.config.update("jax_scan3", True)
    try:

        def total(x):
            def body(a, _):
                return a * mpixla.allreduce(jnp.ones(3), op=MPI.SUM), None

            return jax.lax.scan(body, x, None, length=3)[0].sum()

        before, _, looped = str(jax.make_jaxpr(total)(jnp.ones(3))).partition("Scan3[")
        assert "allreduce[" in looped
        assert "allreduce[" not in before
        assert float(jax.jit(total)(jnp.ones(3))) == 3
        with pytest.raises(NotImplementedError, match="Scan3.*must implement `vjp_fwd`"):
            jax.grad(total)(jnp.ones(3))
    finally:
        jax.config.update("jax_scan3", False)


def test_jaxprs_are_for_reading():
    """Communicators by their names, MPI's special values by theirs, and no attribute that says nothing."""
    comm = MPI.COMM_WORLD.Clone()
    comm.Set_name("atmosphere")
    status = MPI.Status()

    def program(x):
        y = mpixla.allreduce(x, op=MPI.SUM)
        y = mpixla.reduce(y, op=MPI.MAX, root=0, comm=comm)
        mpixla.send(y, MPI.PROC_NULL, tag=7, comm=comm)
        y = mpixla.recv(y, MPI.ANY_SOURCE, comm=comm, status=status)
        request = mpixla.isendrecv(y, y, 0, MPI.PROC_NULL, sendtag=3, comm=comm)
        return mpixla.wait(request)

    text = re.sub(r"\s+", " ", str(jax.make_jaxpr(program)(jnp.ones(3))))
    text = text.replace("[ ", "[").replace(" ]", "]")  # line breaks of long ones
    called = "call=isendrecv of float32[3] -> PROC_NULL with tag 3 <- 0 with tag ANY_TAG, on atmosphere"
    assert "allreduce[comm=mpixla default cotangent=replicated op=SUM]" in text
    assert "reduce[comm=atmosphere op=MAX root=0]" in text
    assert "send[comm=atmosphere dest=PROC_NULL sendtag=7]" in text
    assert re.search(r"recv\[comm=atmosphere recvtag=ANY_TAG source=ANY_SOURCE status=given\]", text)
    assert f"start[batch=() {called}]" in text
    assert f"wait[{called} status=none]" in text
    comm.Free()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_no_jaxpr_has_an_address(row):
    comm = MPI.COMM_WORLD
    for variant in row.variants(1):
        xs = map(jnp.asarray, operands(row, jnp.dtype("int32"), (2,), 0, 1, **variant))
        text = str(jax.make_jaxpr(lambda *xs, variant=variant: row.call(*xs, comm, **variant))(*xs))
        assert "0x" not in text
        assert "object at" not in text
