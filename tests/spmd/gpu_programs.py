"""XLA's programs for a GPU, compiled without one: `make test-gpu-programs` installs the compiler and runs this.

Nothing communicates here. The programs are compiled for an H200, and read as XLA has optimized and scheduled them.
"""

import ctypes
import itertools
import re
from ctypes import CFUNCTYPE, POINTER, c_int, c_size_t, c_uint32, c_void_p

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import topologies
from mpi4py import MPI

import mpixla
from hlo import Program
from mpixla.compat import _jpi, _mpi4jax
from mpixla.mpi import native
from reference import ROWS, operands

# Without the versions XLA takes the driver for an old one, which cannot capture calls into command buffers.
H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  core_count: 132 fpus_per_core: 128 registers_per_core_limit: 65536 registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 151397597184
  cuda_compute_capability { major: 9 }
  driver_version: "13.0.0" runtime_version: "13.0.0" compile_time_toolkit_version: "13.0.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H200"
"""

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
LAST = SIZE - 1
BELOW, ABOVE = (RANK - 1) % SIZE, (RANK + 1) % SIZE
GRID = WORLD.Create_cart([SIZE, 1], [True, True])

N = 514  # what is communicated has at least N * (N - 2) / 2 elements: smaller copies are nobody's payload
PAYLOAD = N * (N - 2) // 2


@pytest.fixture(scope="module")
def gpu():
    topology = topologies.get_topology_desc(platform="cuda", target_config=H200, topology="1x1x1")
    return jax.sharding.SingleDeviceSharding(topology.devices[0])


def compiled(program, args, sharding=None, **options):
    """Return a jitted function, compiled for the device of the sharding, or for the CPU."""
    types = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), args)
    return Program(program.trace(*types).lower().compile(compiler_options=options or None).as_text())


def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def assert_ordered(program):
    """Check that each call has its token from the call scheduled before it, in every loop and branch."""
    for computation in program.computations.values():
        chain = computation.ordered()
        for earlier, later in itertools.pairwise(chain):
            assert computation.before(later) is earlier
        if chain:
            assert computation.before(chain[0]).opcode in ("parameter", "after-all", "constant")


# Programs.


def chain(x):
    for op in (mpixla.allreduce, mpixla.scan, mpixla.exscan, mpixla.allreduce):
        x = jnp.sin(op(x * 2, MPI.SUM))
    return mpixla.bcast(mpixla.reduce(x, MPI.SUM, LAST), 0)


def messages(x):
    """Send messages that depend on one another by their order alone."""
    mpixla.send(x, ABOVE, tag=1)
    y = mpixla.recv(x, BELOW, tag=1)
    mpixla.barrier()
    z = mpixla.sendrecv(x * 2, y, ABOVE, BELOW)
    mpixla.send(x + 1, ABOVE, tag=2)
    return z, mpixla.recv(x, BELOW, tag=2)


def fold(x):
    """Return a loop whose communication is in place."""
    return lax.fori_loop(0, 5, lambda i, x: mpixla.allreduce(jnp.sin(x), MPI.SUM), x)


def until(x):
    """Return a loop that ends on all ranks at once, by what they communicate."""
    return lax.while_loop(
        lambda x: mpixla.allreduce(jnp.max(jnp.abs(x)), MPI.MAX) > 1, lambda x: mpixla.allreduce(x * 0.5, MPI.SUM), x
    )


def branch(flag, x):
    x = mpixla.scan(x * 2, MPI.SUM)
    x = lax.cond(flag, lambda x: mpixla.allreduce(x, MPI.SUM), lambda x: mpixla.allreduce(x, MPI.MAX) * 2, x)
    return mpixla.exscan(x, MPI.SUM)


def waves(exchange):
    """Advance two fields, each of which changes by the other."""

    def step(fields, _):
        u, v = exchange(fields)
        u = u.at[1:-1, 1:-1].add(0.1 * (v[2:, 1:-1] - v[:-2, 1:-1]))
        v = v.at[1:-1, 1:-1].add(0.1 * (u[1:-1, 2:] - u[1:-1, :-2]))
        return (u, v), None

    return lambda u, v: lax.scan(step, (u, v), length=10)[0]


def decay(exchange):
    """Return one field that changes by its neighbours, in a new array."""

    def step(u, _):
        u = exchange(u)
        return u.at[1:-1, 1:-1].add(0.1 * (u[2:, 1:-1] + u[:-2, 1:-1] - 2 * u[1:-1, 1:-1])), None

    return lambda u: lax.scan(step, u, length=10)[0]


def exchange(fields):
    return mpixla.halo_exchange(fields, GRID)


def periodic(fields):
    """Return the block with ghosts, as one rank alone exchanges them."""
    return jax.tree.map(lambda u: u.at[0].set(u[-2]).at[-1].set(u[1]), fields)


def gradient(f):
    return lambda *xs: jax.grad(lambda xs: sum(y.sum() for y in jax.tree.leaves(f(*xs))))(xs)


def requests(x):
    """Compute while messages are under way."""
    sending = mpixla.isend(x * 2, ABOVE)
    receiving = mpixla.irecv(x, BELOW)
    (sent, received), y = mpixla.overlap([sending, receiving], lambda y: jnp.sin(y) * 2, jnp.cos(x))
    return y, sent, received


def collective_requests(x):
    first, second = mpixla.iallreduce(x, MPI.SUM), mpixla.iallgather(x)
    return mpixla.wait(second).sum(0) + mpixla.wait(first)


def requests_in_a_loop(x):
    def step(x, _):
        request = mpixla.isendrecv(x[0], x[0], ABOVE, BELOW)
        edge, inner = mpixla.overlap(request, lambda x: x.at[1:].multiply(2), x)
        return inner.at[0].set(edge), None

    return lax.scan(step, x, length=4)[0]


def tree(t):
    return mpixla.allreduce(jax.tree.map(lambda x: x * 2, t), MPI.MAX)


MIXED = {"a": array(N, N), "b": array(1000), "c": array(N, N, dtype=jnp.int32), "d": array(3, N, N, dtype=jnp.bfloat16)}


def tokens(x):
    """Return mpi4jax's functions, which pass a token from call to call."""
    mpi4jax = _mpi4jax.make_modules(tokens=True)["mpi4jax"]
    y, token = mpi4jax.allreduce(x, MPI.SUM)
    token = mpi4jax.send(x + 1, ABOVE, token=token)
    z, token = mpi4jax.recv(x, BELOW, token=token)
    w, token = mpi4jax.allreduce(x * 2, MPI.MAX, token=token)
    return w, z, y, token


def jpi_tokens(x):
    y, token = _jpi.allreduce(x * 2, _jpi.gen_token(), MPI.SUM)
    _, token = _jpi.send(x, token, ABOVE)
    z, token = _jpi.recv(x, token, BELOW)
    return z, y, token


def batch(x):
    return jax.vmap(lambda x: mpixla.alltoall(mpixla.allreduce(x, MPI.SUM)))(x)


# The names of the custom calls, without the prefix and without the helpers, which are in no order; and the function.
PROGRAMS = {
    "chain": (["allreduce", "scan", "exscan", "allreduce", "reduce", "bcast"], chain, [array(N, N)]),
    "messages": (["send", "recv", "barrier", "sendrecv", "send", "recv"], messages, [array(N, N)]),
    "fold": (["allreduce"], fold, [array(N, N)]),
    "gradient of fold": (["allreduce"], gradient(fold), [array(N, N)]),
    "until": (["allreduce", "allreduce", "allreduce"], until, [array(N, N)]),
    "branch": (["scan", "allreduce", "allreduce", "exscan"], branch, [array(dtype=jnp.bool_), array(N, N)]),
    "waves": (["halo_exchange"], waves(exchange), [array(N, N), array(N, N)]),
    "decay": (["halo_exchange"], decay(exchange), [array(N, N)]),
    "requests": (["isend", "irecv", "wait_send", "wait_recv"], requests, [array(N, N)]),
    "collective requests": (["iallreduce", "iallgather", "wait", "wait"], collective_requests, [array(N, N)]),
    "requests in a loop": (["isendrecv", "wait_recv"], requests_in_a_loop, [array(N, N)]),
    "tree": (["allreduce", "allreduce", "allreduce"], tree, [MIXED]),
    "batch": (["allreduce", "alltoall"], batch, [array(8, SIZE, N, N)]),
    "gradient of requests": (
        ["isend", "irecv", "wait_send", "wait_recv", "isend", "irecv", "wait_send", "wait_recv"],
        gradient(requests),
        [array(N, N)],
    ),
    "tokens of compat": (["allreduce", "send", "recv", "allreduce"], tokens, [array(N, N)]),
    "tokens of JPI": (["allreduce", "isend", "wait_send", "recv"], jpi_tokens, [array(N, N)]),
}

HELPERS = [target.removeprefix("mpixla_") for target in native.HELPER_TARGETS]


def calls(program):
    return [name for name in program.calls("mpixla_") if name not in HELPERS]


@pytest.mark.parametrize("how", ["jax.jit", "mpixla.jit"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, how, gpu):
    """Calls in the order of the program; nothing is copied in loops, and elsewhere no more than on a CPU."""
    expected, fun, args = PROGRAMS[name]
    program = jax.jit(fun) if how == "jax.jit" else mpixla.jit(fun)._sealed
    on_gpu, on_cpu = compiled(program, args, gpu), compiled(program, args)
    assert calls(on_gpu) == expected
    assert_ordered(on_gpu)
    copies = on_gpu.copies(PAYLOAD)
    assert [copy for loops, copy in copies if loops > 0] == []
    assert len(copies) <= len([copy for loops, copy in on_cpu.copies(PAYLOAD) if loops == 0])
    opcodes = {instruction.opcode for _, _, instruction in on_gpu.running()}
    assert not opcodes & {"infeed", "outfeed", "send", "recv", "copy-start"}  # nothing goes to the host and back


@pytest.mark.parametrize("name", ["fold", "gradient of fold", "waves", "decay", "requests in a loop"])
def test_loops_of_known_length(name, gpu):
    """XLA need not read a condition from the device in each step."""
    _, fun, args = PROGRAMS[name]
    loops = [x for _, _, x in compiled(jax.jit(fun), args, gpu).running() if x.opcode == "while"]
    assert loops
    assert all('"known_trip_count"' in x.attributes for x in loops)


@pytest.mark.parametrize("name", ["fold", "until", "waves", "decay"])
def test_calls_in_loops_are_in_place(name, gpu):
    _, fun, args = PROGRAMS[name]
    running = compiled(jax.jit(fun), args, gpu).running()
    in_loops = [x for loops, _, x in running if loops > 0 and x.target and x.size >= PAYLOAD]
    assert in_loops
    assert all("output_to_operand_aliasing" in x.attributes for x in in_loops)


@pytest.mark.parametrize("model", [waves, decay])
def test_gradients_of_exchanges(model, gpu):
    """The loop of a gradient copies what it would copy if it did not communicate.

    A kernel that reads the neighbours of what it computes cannot write in place, so XLA copies the new fields into
    the arrays that a loop carries.
    """
    args = [array(N, N)] * (2 if model is waves else 1)
    on_gpu, alone = (compiled(jax.jit(gradient(model(f))), args, gpu) for f in (exchange, periodic))
    # The gradient does not need the values, but other ranks count on the exchanges of them.
    assert calls(on_gpu) == ["halo_exchange", "halo_transpose"]
    assert_ordered(on_gpu)
    in_loops, alone_in_loops = ([x for loops, x in p.copies(PAYLOAD) if loops > 0] for p in (on_gpu, alone))
    assert len(in_loops) <= len(alone_in_loops)


def test_copies_are_found(gpu):
    """What the tests above look for is there where it must be: an array that is used again after a call in place."""

    def program(x):
        y = jnp.sin(x)
        return mpixla.allreduce(y, MPI.SUM) + y, jnp.swapaxes(mpixla.scan(y, MPI.SUM), 0, 1)

    def loop(x):
        return lax.fori_loop(0, 3, lambda i, x: mpixla.scan(x, MPI.SUM)[::-1] + x, x)

    assert {loops for loops, _ in compiled(jax.jit(program), [array(N, N)], gpu).copies(PAYLOAD)} == {0}
    assert {loops for loops, _ in compiled(jax.jit(loop), [array(N, N)], gpu).copies(PAYLOAD)} == {0, 1}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_operation(row, gpu):
    """XLA compiles it for the GPU and leaves its calls in the order that they have for a CPU."""
    for variant in row.variants(SIZE)[:2]:
        dtype = jnp.dtype(jnp.float32)
        if not row.takes(dtype=dtype, **variant):
            continue
        args = [jnp.asarray(x) for x in operands(row, dtype, (3, 4), RANK, SIZE, **variant)]
        program = jax.jit(lambda *xs, variant=variant: row.call(*(x * 2 for x in xs), WORLD, **variant))
        on_gpu = compiled(program, args, gpu)
        assert_ordered(on_gpu)
        assert calls(on_gpu) == calls(compiled(program, args))
        assert calls(on_gpu) or row.name == "pvary"


# Command buffers: XLA records kernels, and calls whose handlers allow it, as CUDA graphs.

_COMPATIBLE = 1  # the trait with which a handler allows it


class _Metadata(ctypes.Structure):
    _fields_ = (("struct_size", c_size_t), ("api_version", c_size_t * 3), ("traits", c_uint32))


class _Extension(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("type", c_int),
        ("next", c_void_p),
        ("metadata", POINTER(_Metadata)),
    )


class _Frame(ctypes.Structure):
    _fields_ = (("struct_size", c_size_t), ("extension", POINTER(_Extension)))


_Handler = CFUNCTYPE(c_void_p, POINTER(_Frame))


@pytest.fixture(scope="module")
def capturable():
    """Return the target of a handler like ours, but with the trait."""
    ours = native.ops["barrier"].device_handler

    @_Handler
    def handler(frame):
        result = _Handler(ours)(frame)
        frame.contents.extension.contents.metadata.contents.traits |= _COMPATIBLE
        return result

    pointer = ctypes.cast(handler, c_void_p).value
    jax.ffi.register_ffi_target("capturable_call", jax.ffi.pycapsule(pointer), platform="CUDA")
    return handler  # to keep it alive


def captured(call, gpu, folder):
    """Return for each call, in the program and in a loop, whether XLA puts it into a command buffer."""

    def kernels(x):
        for _ in range(4):
            x = jnp.sin(x @ x)
        return x

    def program(x):
        x = kernels(call(kernels(x)))
        return lax.fori_loop(0, 3, lambda i, x: kernels(call(kernels(x))), x)

    compiled(jax.jit(program), [array(128, 128)], gpu, xla_dump_to=str(folder))
    (file,) = folder.glob("*thunk_sequence_after_thunk_passes.txt")
    buffer, kernels_in_buffers, places = None, 0, []  # how far the command buffer is indented that a line may be in
    for line in file.read_text().splitlines():
        found = re.match(r"( *)\d+: (k\w+)", line)
        if not found:
            buffer = None
            continue
        indent, kind = len(found[1]), found[2]
        if buffer is not None and indent <= buffer:
            buffer = None
        if kind == "kCommandBuffer":
            buffer = indent
        elif kind == "kCustomCall":
            places.append(buffer is not None)
        else:
            kernels_in_buffers += buffer is not None
    assert kernels_in_buffers >= 4 * 4  # else this would show nothing
    return places


OURS = {
    "allreduce": lambda x: mpixla.allreduce(x, MPI.SUM),
    "halo_exchange": exchange,
    "pack": lambda x: sum(mpixla.bcast([x, x[0]], 0)),
    "sendrecv": lambda x: mpixla.sendrecv(x, x, ABOVE, BELOW),
    "wait": lambda x: mpixla.wait(mpixla.iallreduce(x, MPI.SUM)),
}


@pytest.mark.parametrize("name", OURS)
def test_no_call_is_captured(name, gpu, tmp_path):
    places = captured(OURS[name], gpu, tmp_path)
    assert len(places) >= 2
    assert not any(places)


def test_calls_with_the_trait_are_captured(gpu, capturable, tmp_path):
    def call(x):
        return jax.ffi.ffi_call("capturable_call", jax.ShapeDtypeStruct(x.shape, x.dtype), has_side_effect=True)(x)

    assert captured(call, gpu, tmp_path) == [True, True]
