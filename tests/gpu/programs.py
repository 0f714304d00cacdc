"""The programs of tests/gpu/check.py: python tests/gpu/programs.py NAME, under mpirun.

One that ends without an exception has found nothing wrong. One that cannot be run on this machine says why.
"""

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "examples")]
jax.config.update("jax_enable_x64", True)

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
FAKE = os.environ.get("MPIXLA_FAKE_DEVICE", "0") not in ("", "0")
PROGRAMS: dict[str, Callable[[], None]] = {}


class SkippedError(Exception):
    """Why a program cannot be run on this machine: the same on all ranks."""


def program(fun: Callable[[], None]) -> Callable[[], None]:
    PROGRAMS[fun.__name__] = fun
    return fun


def mpixla() -> Any:
    """Import mpixla for a program, after that has set its environment."""
    import mpixla

    return mpixla


def use_gpu() -> None:
    """Check that JAX has not fallen back to the CPU."""
    platform = jax.devices()[0].platform
    assert FAKE or platform == "gpu", f"JAX uses {platform}"


def total(x: Any, comm: MPI.Comm | None = None) -> Any:
    return jax.block_until_ready(mpixla().allreduce(x, MPI.SUM, comm=comm))


def transport(wanted: str) -> str:
    """Return the transport of collective calls after a first one; it must be the expected one."""
    from mpixla.mpi import gpu

    try:
        total(jnp.ones(1))
    except Exception as e:
        if wanted == "nccl" and "same GPU" in str(e):
            raise SkippedError(f"ranks cannot share the GPU: {e}") from e
        raise
    text = gpu.transport_of(None)
    if RANK == 0:
        print(f"transport: {text}", flush=True)
    assert text.split(":")[0] == wanted, text
    return text


def use_transport() -> None:
    """Check that JAX uses the GPU, and collective calls the transport that the check asks for."""
    use_gpu()
    transport(os.environ["MPIXLA_GPU_TRANSPORT"])


def refusal(call: Callable[[], Any], *parts: str) -> None:
    """Check that the call is refused, in a sentence with all these parts."""
    try:
        result = jax.block_until_ready(call())
    except Exception as e:
        sentence = str(e)
    else:
        raise AssertionError(f"it was not refused, but gave {result}")
    print(f"refused: {sentence}", flush=True)
    for part in parts:
        assert part in sentence, f"the sentence lacks '{part}': {sentence}"


# Values


def compare(dtypes: Iterable[Any], shape: tuple[int, ...], *, all_variants: bool) -> None:
    """Compare every operation with NumPy: all variants that take a type in one program."""
    from reference import ROWS, bits, expected, operands

    done = 0
    for row in ROWS:
        for dtype in map(np.dtype, dtypes):
            variants = [v for v in row.variants(SIZE) if row.takes(dtype, **v)]
            variants = variants if all_variants else variants[:1]
            inputs = [[jnp.asarray(x) for x in operands(row, dtype, shape, RANK, SIZE, **v)] for v in variants]

            def call(inputs: Any, row: Any = row, variants: Any = variants) -> Any:
                return [row.call(*x, comm=WORLD, **v) for x, v in zip(inputs, variants, strict=True)]

            for got, variant in zip(jax.jit(call)(inputs), variants, strict=True):
                want = expected(row, dtype, shape, RANK, SIZE, **variant)
                if want is not None:
                    what = f"{row.name} {variant} of {dtype.name} {shape} on rank {RANK} of {SIZE}"
                    assert (got.shape, got.dtype) == (want.shape, want.dtype), what
                    np.testing.assert_array_equal(bits(got), bits(want), err_msg=what)
                done += 1
    if RANK == 0:
        print(f"{done} results are right on {SIZE} rank(s)", flush=True)


@program
def values() -> None:
    """Compare every operation, every reduction and every element type with NumPy."""
    from reference import DTYPES

    use_transport()
    compare(DTYPES, (2, 3), all_variants=True)


@program
def few_values() -> None:
    """Compare every operation with NumPy once."""
    use_transport()
    compare(["float32"], (3,), all_variants=False)


@program
def large() -> None:
    """Exchange arrays that travel in several pieces."""
    use_transport()
    compare(["float32"], (1201, 1103), all_variants=False)


@program
def order() -> None:
    """Check the order of calls and kernels: calls send what kernels wrote, and kernels read what calls received."""
    use_transport()
    below, above = (RANK - 1) % SIZE, (RANK + 1) % SIZE
    steps, programs, length = 20, 5, 1 << 20

    @jax.jit
    def advance(x: Any) -> Any:
        def step(i: Any, x: Any) -> Any:
            x = mpixla().sendrecv(5 * x + i, x, below, above)
            x = 3 * x + total_of(7 * x)
            return mpixla().bcast(x[::-1] * 2, 0) + x

        return jax.lax.fori_loop(0, steps, step, x)

    def total_of(x: Any) -> Any:
        return mpixla().allreduce(x, MPI.SUM)

    x = jnp.arange(length, dtype=jnp.uint32) * (RANK + 1)
    for _ in range(programs):  # nobody waits between them
        x = advance(x)
    ours = np.asarray(x)
    everyone = np.stack([np.arange(length, dtype=np.uint32) * np.uint32(r + 1) for r in range(SIZE)])
    for _ in range(programs):
        for i in range(steps):
            everyone = np.roll(everyone * np.uint32(5) + np.uint32(i), 1, axis=0)
            everyone = everyone * np.uint32(3) + (everyone * np.uint32(7)).sum(0, dtype=np.uint32)
            everyone = everyone[0, ::-1] * np.uint32(2) + everyone
    np.testing.assert_array_equal(ours, everyone[RANK])


@program
def model() -> None:
    """Check that the shallow-water example gives the same on all ranks as on one."""
    import shallow_water

    use_transport()
    whole = shallow_water.simulate(WORLD, 60, 120, 50)
    alone = shallow_water.simulate(MPI.COMM_SELF, 60, 120, 50)
    if whole is not None:
        for name, ours, theirs in zip(whole._fields, whole, alone, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9, err_msg=name)


# What is refused


@program
def one_gpu_for_two() -> None:
    """Ask for NCCL where the ranks share a GPU."""
    use_gpu()
    refusal(lambda: total(jnp.ones(3)), "MPIXLA_GPU_TRANSPORT asks for", "same GPU", "NCCL_MULTI_RANK_GPU_ENABLE=1")
    other = 1 - RANK
    np.testing.assert_array_equal(mpixla().sendrecv(jnp.full(3, RANK), jnp.zeros(3, int), other, other), [other] * 3)


@program
def no_gpus_for_mpi() -> None:
    """Ask for MPI where MPI takes no GPU's memory."""
    if FAKE:
        raise SkippedError("MPI can be given the fake GPU's memory")
    mpixla()  # connects to MPI
    from mpixla.mpi import gpu

    use_gpu()
    why = gpu.mpi_refuses()
    if why is None:
        raise SkippedError("this MPI says that it can be given a GPU's memory")
    refusal(lambda: total(jnp.ones(3)), "MPIXLA_GPU_TRANSPORT=mpi", why)


@program
def different_wishes() -> None:
    """Give each rank its own MPIXLA_GPU_TRANSPORT."""
    use_gpu()
    refusal(lambda: total(jnp.ones(3)), "is host on rank 0, and nccl on rank 1")


@program
def select_late() -> None:
    """Choose a GPU after JAX has started."""
    use_gpu()
    refusal(lambda: mpixla().select_local_gpu(), "after JAX had started")


@program
def select_early() -> None:
    """Give each rank a GPU of its own, which JAX uses."""
    chosen = mpixla().select_local_gpu()
    assert isinstance(chosen, int), chosen
    library = mpixla()
    assert library.has_cuda_support() or library.has_rocm_support() or library.has_sycl_support()
    use_gpu()
    assert FAKE or len(jax.devices()) == 1
    assert total(jnp.ones(())) == SIZE


# What takes another way


@program
def mixed_ranks() -> None:
    """Call on ranks of which the last has no GPU."""
    if RANK < SIZE - 1:
        use_gpu()
    else:
        assert not FAKE
        assert jax.devices()[0].platform == "cpu"
    compare(["float32", "int32"], (5,), all_variants=False)
    if RANK == 0:
        text = transport("host")
        assert f"rank {SIZE - 1} calls with the host's memory" in text, text
    else:
        total(jnp.ones(1))


@program
def mixed_arrays() -> None:
    """Call with the last rank's arrays in the host's memory, and then in the GPU's."""
    if FAKE:
        raise SkippedError("the fake GPU takes the arrays of all devices")
    use_gpu()
    x = np.arange(1e6)
    last = RANK == SIZE - 1
    for device in (jax.devices("cpu")[0] if last else None, None):
        with jax.default_device(device):
            y = jnp.asarray(x)
            assert not (device and y.devices() != {device})
            np.testing.assert_array_equal(total(y), SIZE * x)
            below, above = (RANK - 1) % SIZE, (RANK + 1) % SIZE
            np.testing.assert_array_equal(mpixla().sendrecv(y + RANK, y, below, above), x + below)


@program
def own_reduction() -> None:
    """Reduce with a function of the user's own, which NCCL and the GPU cannot run."""
    use_transport()

    def larger(a: MPI.buffer, b: MPI.buffer, dtype: MPI.Datatype) -> None:
        ours, theirs = (np.frombuffer(x, np.int32) for x in (a, b))
        theirs[:] = np.maximum(ours, theirs)

    op = MPI.Op.Create(larger, commute=True)
    got = mpixla().allreduce(jnp.array([RANK, -RANK], jnp.int32), op)
    np.testing.assert_array_equal(got, [SIZE - 1, 0])
    op.Free()


# Errors, and ends


def fail_on_rank_1() -> Any:
    """Send a message that is too long for its receiver. Return the result of the call that fails."""
    if RANK == 0:
        mpixla().send(jnp.zeros(50), 1, tag=8)
    if RANK == 1:

        @jax.jit
        def receive(x: Any) -> Any:
            x = jax.lax.fori_loop(0, 5, lambda i, x: x @ x, x)
            return mpixla().recv(x[0, :3], 0, tag=8)

        return receive(jnp.zeros((600, 600)))
    return None


@program
def failing_call() -> None:
    """Check that a failing call raises, and that later calls work."""
    use_transport()
    for _ in range(3):
        if RANK == 1:
            refusal(fail_on_rank_1, "r1 | MPI_Recv returned error code", "with tag 8 and 3 items of float64")
        else:
            fail_on_rank_1()
        WORLD.Barrier()
        assert total(jnp.ones(())) == SIZE


@program
def freed_communicator() -> None:
    """Run a program on a communicator that was freed since."""
    use_transport()
    comm = WORLD.Dup()
    run = jax.jit(lambda x: mpixla().allreduce(x, MPI.SUM, comm=comm))
    assert run(jnp.ones(())) == SIZE
    comm.Free()
    refusal(lambda: run(jnp.ones(())), "freed after this program was traced")
    assert total(jnp.ones(())) == SIZE


@program
def pending() -> None:
    """End the process right after dispatching."""
    use_transport()

    def busy(x: Any) -> Any:
        return jax.lax.fori_loop(0, 20, lambda i, x: x @ x, x)

    @jax.jit
    def run(x: Any) -> Any:
        x = mpixla().allreduce(busy(x), MPI.SUM)
        return mpixla().sendrecv(busy(x), x, (RANK - 1) % SIZE, (RANK + 1) % SIZE)

    run(jnp.ones((500, 500)) / 500)
    print(f"dispatched {RANK}", flush=True)


@program
def uncaught() -> None:
    """End one rank with an exception while the others wait for it."""
    use_transport()
    if RANK == 1:
        raise KeyError("lost on rank 1")
    total(jnp.ones(()))


@program
def unheard() -> None:
    """Make a call that fails, and ignore its result."""
    use_gpu()
    fail_on_rank_1()


def main() -> None:
    try:
        PROGRAMS[sys.argv[1]]()
    except SkippedError as e:
        if RANK == 0:
            print(f"SKIPPED: {e}", flush=True)


if __name__ == "__main__":
    main()
