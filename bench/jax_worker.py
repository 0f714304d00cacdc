"""The contenders mpixla and mpi4jax: one program for both, since their functions have the same signatures.

python bench/jax_worker.py SOCKET mpixla|mpi4jax [EXAMPLE], under mpirun. EXAMPLE is mpi4jax's shallow-water model.
"""

import ctypes
import functools
import importlib
import importlib.metadata
import math
import os
import platform
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from mpi4py import MPI

import hlo
import models
from worker import repeat, serve

library = importlib.import_module(sys.argv[2])
if os.environ.get("MPIXLA_GPU_TRANSPORT"):  # the benchmarks of GPUs
    library.select_local_gpu()
comm = MPI.COMM_WORLD.Dup()  # of the barriers, so that they never meet the library's messages
rank, size = comm.rank, comm.size
DTYPES = {"f64": np.float64, "f32": jnp.float32, "f16": jnp.float16, "bf16": jnp.bfloat16}


def allgather(x: Any) -> Any:
    """Gather; the result is larger, so the next call depends on it without a slice, which would be a copy."""
    return lax.optimization_barrier((x, library.allgather(x)))[0]


def barrier(x: Any) -> Any:
    library.barrier()
    return x


def sendrecv(x: Any) -> Any:
    """Send around the ring of all ranks."""
    return library.sendrecv(x, x, source=(rank - 1) % size, dest=(rank + 1) % size)


@functools.cache
def ring() -> MPI.Cartcomm:
    return comm.Create_cart([size], [True])


def halo_exchange(x: Any) -> Any:
    """Exchange the halos of blocks, their first and last rows."""
    return library.halo_exchange(x, ring())


@functools.cache
def in_pieces(piece: int) -> MPI.Intracomm:
    """Return a communicator whose large calls go through the host in pieces of this size, once its ranks agree."""
    from mpixla.mpi import native

    before = native.lib.mpixla_gpu_piece_set(piece)
    made = comm.Dup()
    jax.block_until_ready(library.allreduce(jnp.ones(1), op=MPI.SUM, comm=made))
    native.lib.mpixla_gpu_piece_set(before)
    return made


@functools.cache
def register_nothing() -> None:
    """Register bench/nothing.c with XLA; the runner says where its library is."""
    jax.ffi.register_ffi_target("bench_nothing", jax.ffi.pycapsule(ctypes.CDLL(os.environ["BENCH_NOTHING"]).nothing))


def nothing(x: Any) -> Any:
    """Call a function that returns at once, on one operand whose memory its result takes."""
    register_nothing()
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.ffi.ffi_call("bench_nothing", shape, has_side_effect=True, input_output_aliases={0: 0})(x)


def pingpong(x: Any) -> Any:
    """Send there and back between two ranks: two calls."""
    if rank == 0:
        library.send(x, 1)
        return library.recv(x, 1)
    x = library.recv(x, 0)
    library.send(x, 0)
    return x


# From one operand to the next, which has its shape.
OPS: dict[str, Callable[..., Any]] = {
    "allgather": allgather,
    "allreduce": lambda x, **on: library.allreduce(x, op=MPI.SUM, **on),
    "allreduce_max": lambda x: library.allreduce(x, op=MPI.MAX),
    "alltoall": lambda x: library.alltoall(x),
    "assert_replicated": lambda x: library.assert_replicated(x),
    "barrier": barrier,
    "bcast": lambda x, **on: library.bcast(x, 0, **on),
    "halo_exchange": halo_exchange,
    "nothing": nothing,
    "pingpong": pingpong,
    "reduce": lambda x: library.reduce(x, MPI.SUM, 0),
    "scan": lambda x: library.scan(x, MPI.SUM),
    "sendrecv": sendrecv,
    # A pytree of 100 equal leaves. Without the barrier XLA sees that joining what was just cut apart changes nothing.
    "tree": lambda x: lax.optimization_barrier(library.allreduce(x, op=MPI.SUM)),
}

CALLS = {"pingpong": 2}  # of one operation, where it is not one


def step_of(op: str) -> Callable[[Any], Any]:
    """Return the step of OP, or of OP@BYTES: through the host in pieces of this size."""
    name, _, piece = op.partition("@")
    return functools.partial(OPS[name], comm=in_pieces(int(piece))) if piece else OPS[name]


def operand(op: str, dtype: str, size_in_bytes: int) -> Any:
    """Return ones, in memory that was written, of this size.

    An alltoall has at least one number for each rank; in a halo exchange each row has this size.
    """
    count = max(1, size_in_bytes // np.dtype(DTYPES[dtype]).itemsize)
    if op == "tree":
        return [jnp.full(count // 100, 1, DTYPES[dtype]) + 0 for _ in range(100)]
    shape = {"alltoall": (size, max(1, count // size)), "halo_exchange": (10, count)}.get(op, (count,))
    return jax.block_until_ready(jnp.full(shape, 1, DTYPES[dtype]) + 0)


def run(program: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    return lambda: jax.block_until_ready(program(*args))


@functools.cache
def chain_program(op: str, dtype: str, size_in_bytes: int, length: int) -> tuple[Any, Any]:
    """Return a compiled program of ``length`` operations, each of the last one's result, and its operand."""

    step = step_of(op)

    def chain(x: Any) -> Any:
        for _ in range(length):
            x = step(x)
        return x

    x = operand(op, dtype, size_in_bytes)
    program = jax.jit(chain).lower(x).compile()
    calls = len(hlo.communications(program.as_text()))
    if calls != length * CALLS.get(op, 1):
        raise RuntimeError(f"XLA made {calls} calls of {length} operations {op}")
    return jax.jit(chain), x


def chain(op: str, dtype: str, size_in_bytes: int, long: int, short: int, times: int) -> list[list[float]]:
    programs = [chain_program(op, dtype, size_in_bytes, length) for length in (long, short)]
    return repeat([run(program, x) for program, x in programs], times, comm.Barrier)


@functools.cache
def loop_program(op: str, size_in_bytes: int) -> tuple[Any, Any]:
    step = OPS[op]
    program = jax.jit(lambda x, n: lax.fori_loop(0, n, lambda _, x: step(x), x))
    return program, operand(op, "f32", size_in_bytes)


def loop(op: str, size_in_bytes: int, long: int, short: int, times: int) -> list[list[float]]:
    program, x = loop_program(op, size_in_bytes)
    return repeat([run(program, x, length) for length in (long, short)], times, comm.Barrier)


def copies(op: str, size_in_bytes: int) -> list[list[int]]:
    length = 8
    program, x = chain_program(op, "f32", size_in_bytes, length)
    lines = hlo.copies(program.lower(x).compile().as_text(), size_in_bytes)
    program, x = loop_program(op, size_in_bytes)
    body = hlo.copies(hlo.loop_body(program.lower(x, 1).compile().as_text()), size_in_bytes)
    return [[len(lines) // length, len(body)]]


def summing(kind: str, dtype: str, count: str, orders: str) -> Callable[[], Any]:
    """Return a sum over all ranks of so many numbers of each, which are spread over so many binary orders."""
    rng, n, half = np.random.default_rng(rank), int(float(count)), int(orders) // 2
    with jax.enable_x64(True):
        x, y = (
            jnp.asarray(np.ldexp(rng.normal(size=n), rng.integers(-half, half + 1, n)), DTYPES[dtype]) for _ in range(2)
        )
        programs: dict[str, Callable[[], Any]] = {
            "fsum": lambda: jax.jit(library.fsum).lower(x).compile(),
            "sum": lambda: jax.jit(lambda x: library.allreduce(jnp.sum(x), op=MPI.SUM)).lower(x).compile(),
            "vdot": lambda: jax.jit(lambda x: library.vdot(x, y)).lower(x).compile(),
            "vdot_exact": lambda: jax.jit(lambda x: library.vdot(x, y, exact=True)).lower(x).compile(),
            "gathered": lambda: lambda x: math.fsum(np.concatenate(comm.allgather(np.asarray(x)))),
        }
        program = programs[kind]()
    return lambda: program(x)


def conjugate_gradients(alone: bool = False) -> Callable[[], Any]:
    """Return a hundred steps on a periodic grid of 100 x 100, of which each rank has some rows: two sums in each.

    ``alone``: each rank computes as if the others were not there.
    """
    ny, nx = 100 // size, 100
    above, below = (rank + 1) % size, (rank - 1) % size

    def from_other(row: Any, source: int, dest: int) -> Any:
        return row if alone else library.sendrecv(row, row, source=source, dest=dest)

    def apply(p: Any) -> Any:
        row_below, row_above = from_other(p[-1], below, above), from_other(p[0], above, below)
        padded = jnp.concatenate([row_below[None], p, row_above[None]])
        return 4.1 * p - padded[:-2] - padded[2:] - jnp.roll(p, 1, 1) - jnp.roll(p, -1, 1)

    def dot(a: Any, b: Any) -> Any:
        product = jnp.vdot(a, b)
        return product if alone else library.allreduce(product, op=MPI.SUM)

    def step(_: Any, state: Any) -> Any:
        x, r, p, rr = state
        q = apply(p)
        alpha = rr / dot(p, q)
        x, r = x + alpha * p, r - alpha * q
        new = dot(r, r)
        return x, r, r + new / rr * p, new

    @jax.jit
    def solve(b: Any) -> Any:
        return lax.fori_loop(0, 100, step, (jnp.zeros_like(b), b, b, dot(b, b)))[0]

    b = jnp.asarray(np.random.default_rng(rank).normal(size=(ny, nx)), jnp.float32)
    return lambda: solve(b)


@functools.cache
def callee(name: str) -> Callable[[], Any]:
    """Return the function to call, without an argument: its call is compared. "KIND:DTYPE:COUNT:ORDERS" is a sum."""
    if ":" in name:
        return summing(*name.split(":"))
    x, tree = operand("allreduce", "f32", 4), operand("tree", "f32", 100 << 10)
    flat = operand("allreduce", "f32", 100 << 10)
    total = functools.partial(library.allreduce, op=MPI.SUM)

    def sealed(argument: Any) -> Callable[[], Any]:
        program = library.jit(lambda x: library.allreduce(x, op=MPI.SUM))
        return lambda: program(argument)

    def compiled(fun: Callable[[Any], Any], argument: Any = x) -> Callable[[], Any]:
        program = jax.jit(fun)
        return lambda: program(argument)

    makers: dict[str, Callable[[], Callable[[], Any]]] = {
        "cg": conjugate_gradients,
        "cg-alone": lambda: conjugate_gradients(alone=True),
        "plain": lambda: compiled(lambda x: x + 1),
        "plain_tree": lambda: compiled(lambda tree: jax.tree.map(lambda x: x + 1, tree), {"a": x, "b": x}),
        "plain_three": lambda: compiled(lambda arrays: arrays[0] + arrays[1] * arrays[2], (x, x, x)),
        "jit": lambda: compiled(total),
        "sealed": lambda: sealed(x),
        "sealed_flat": lambda: sealed(flat),
        "sealed_tree": lambda: sealed(tree),
    }
    return makers[name]() if name in makers else eager(name.removeprefix("eager_"))


def eager(name: str) -> Callable[[], Any]:
    """Return an operation on an array of 4 bytes, or for "NAME_tree" on a pytree of two; a request is waited for."""
    name, is_tree, _ = name.partition("_tree")

    def make(*shape: int) -> Any:
        x = jnp.ones(shape, jnp.float32)
        return {"a": x, "b": x + 1} if is_tree else x

    x, scalar, of_all, pair, block = make(1), make(), make(size), make(2), make(6)
    of_root = of_all if rank == 0 else scalar
    rows_of_root = of_all if rank == 0 else x
    places = jnp.arange(size)
    own_place, ones = jnp.full(size, rank), jnp.ones(size, int)
    above, below = (rank + 1) % size, (rank - 1) % size
    operations: dict[str, Callable[[], Any]] = {
        "allgather": lambda: library.allgather(x),
        "allgatherv": lambda: library.allgatherv(x, [1] * size),
        "allreduce": lambda: library.allreduce(x, op=MPI.SUM),
        "alltoall": lambda: library.alltoall(of_all),
        "alltoallv": lambda: library.alltoallv(of_all, [1] * size, [1] * size),
        "assert_replicated": lambda: library.assert_replicated(x),
        "barrier": lambda: library.barrier(),
        "bcast": lambda: library.bcast(x, 0),
        "exscan": lambda: library.exscan(x, op=MPI.SUM),
        "fsum": lambda: library.fsum(x),
        "gather": lambda: library.gather(x, 0),
        "gatherv": lambda: library.gatherv(x, [1] * size, 0),
        "halo_exchange": lambda: library.halo_exchange(block, ring()),
        "iallgather": lambda: library.wait(library.iallgather(x)),
        "iallreduce": lambda: library.wait(library.iallreduce(x, op=MPI.SUM)),
        "ialltoall": lambda: library.wait(library.ialltoall(of_all)),
        "ialltoallv": lambda: library.wait(library.ialltoallv(of_all, [1] * size, [1] * size)),
        "ibarrier": lambda: library.wait(library.ibarrier()),
        "ibcast": lambda: library.wait(library.ibcast(x, 0)),
        "iexscan": lambda: library.wait(library.iexscan(x, op=MPI.SUM)),
        "igather": lambda: library.wait(library.igather(x, 0)),
        "ireduce": lambda: library.wait(library.ireduce(x, op=MPI.SUM, root=0)),
        "ireduce_scatter": lambda: library.wait(library.ireduce_scatter(of_all, op=MPI.SUM)),
        "iscan": lambda: library.wait(library.iscan(x, op=MPI.SUM)),
        "iscatter": lambda: library.wait(library.iscatter(of_root, 0)),
        "isendrecv": lambda: library.wait(library.isendrecv(x, x, below, above)),
        "neighbor_allgather": lambda: library.neighbor_allgather(x, comm=ring()),
        "neighbor_alltoall": lambda: library.neighbor_alltoall(pair, comm=ring()),
        "neighbor_alltoallv": lambda: library.neighbor_alltoallv(block, [3, 3], [3, 3], comm=ring()),
        "norm": lambda: library.norm(x),
        "ragged_all_to_all": lambda: library.ragged_all_to_all(of_all, of_all, places, ones, own_place, ones),
        "rank": lambda: library.rank(),
        "recv": lambda: library.recv(x, MPI.PROC_NULL),
        "reduce": lambda: library.reduce(x, op=MPI.SUM, root=0),
        "reduce_scatter": lambda: library.reduce_scatter(of_all, op=MPI.SUM),
        "scan": lambda: library.scan(x, op=MPI.SUM),
        "scatter": lambda: library.scatter(of_root, 0),
        "scatterv": lambda: library.scatterv(rows_of_root, [1] * size, 0),
        "send": lambda: library.send(x, MPI.PROC_NULL),
        "sendrecv": lambda: library.sendrecv(x, x, source=below, dest=above),
        "shift": lambda: library.shift(x, 1),
        "vdot": lambda: library.vdot(x, x),
    }
    return operations[name]


def calls_of(call_one: Callable[[], Any], calls: int) -> Callable[[], None]:
    def many() -> None:
        for _ in range(calls - 1):
            call_one()
        jax.block_until_ready(call_one())

    return many


def call(name: str, calls: int, times: int) -> list[list[float]]:
    many = calls_of(callee(name), calls)
    return [[t / calls for t in one] for one in repeat([many], times, comm.Barrier)]


compiled_programs = 0


def count_compilation(event: str, _seconds: float, **_: Any) -> None:
    global compiled_programs
    compiled_programs += event == "/jax/core/compile/backend_compile_duration"


jax.monitoring.register_event_duration_secs_listener(count_compilation)


def resident() -> int:
    """Return bytes of memory that the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def grow(op: str, calls: int) -> list[list[int]]:
    call_one = callee(f"eager_{op}")
    calls_of(call_one, max(3, calls // 10))()  # what is allocated once is there now
    memory, programs = resident(), compiled_programs
    calls_of(call_one, calls)()
    return [[resident() - memory, compiled_programs - programs]]


def lower(name: str, steps: int, times: int) -> list[list[float]]:
    """Return the seconds to lower a program of two equations a step, "with" an allreduce at its end or "without"."""

    def program(x: Any) -> Any:
        for _ in range(steps):
            x = jnp.sin(x) * 1.5
        return library.allreduce(x, op=MPI.SUM) if name == "with" else x

    # JAX keeps what it has lowered, so each is a program of its own.
    traced = [jax.jit(lambda x: program(x)).trace(jnp.ones(3)) for _ in range(times)]
    return repeat([lambda: traced.pop().lower()], times, comm.Barrier)


peer = Path(sys.argv[3]) if len(sys.argv) > 3 else None


@functools.cache
def model_of(name: str, ny: int, nx: int, chunk: int) -> tuple[Callable[[Any], Any], Callable[[], Any]]:
    return models.make(name, library, peer, ny, nx, chunk)


def advance(name: str, ny: int, nx: int, chunk: int, count: int, file: str | None) -> list[list[float]]:
    advance, start = model_of(name, ny, nx, chunk)
    state = start()
    box = [state]

    def steps() -> None:
        for _ in range(count):
            box[0] = jax.block_until_ready(advance(box[0]))

    times = repeat([steps], 1, comm.Barrier)
    if file:
        np.save(f"{file}.{rank}.npy", np.stack([np.asarray(f) for f in jax.tree.leaves(box[0])[:3]]))
    return times


def about() -> dict[str, Any]:
    packages = ("jax", "jaxlib", "mpi4py", sys.argv[2])
    versions = {name: importlib.metadata.version(name) for name in packages}
    mpi = re.split(r"[,\n\0]", MPI.Get_library_version())[0]  # behind it are options of the build and names of machines
    return {"MPI": " ".join(mpi.split()), "Python": platform.python_version(), **versions}


if __name__ == "__main__":
    serve(
        sys.argv[1],
        rank,
        {
            "about": about,
            "call": call,
            "chain": chain,
            "compile": lambda *words: [[models.time_compilation(words[0], library, peer, *words[1:])]],
            "copies": copies,
            "grow": grow,
            "loop": loop,
            "lower": lower,
            "model": lambda *words: advance(*words, file=None),
            "save": advance,
        },
    )
