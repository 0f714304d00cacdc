"""Programs that are not used any more: those of a communicator go with it.

For those of other shapes docs/other_tools.md says what gives their memory back.
"""

import ctypes

import pytest

pytestmark = [
    pytest.mark.any_mpi,
    pytest.mark.skipif(
        not hasattr(ctypes.CDLL(None), "mallinfo2"),
        reason="this C library has no mallinfo2, which says how much memory is allocated",
    ),
]

# What is allocated and not freed, rather than the process's resident memory: how much of that goes back
# to the system is the allocator's business, and differs by more than what six calls keep.
HEAP = """
    import ctypes, gc
    import jax, jax.numpy as jnp, mpixla
    from mpi4py import MPI

    class Heap(ctypes.Structure):
        NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
        _fields_ = [(name, ctypes.c_size_t) for name in NAMES.split()]

    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Heap

    def allocated():
        gc.collect()
        heap = mallinfo2()
        return (heap.uordblks + heap.hblkhd) / 2**20
"""

SHAPES = """
    CALLS = {
        "eager": lambda x: mpixla.allreduce(x, MPI.SUM),
        "jit": jax.jit(lambda x: mpixla.allreduce(x, MPI.SUM) * 2),
        "mpixla.jit": mpixla.jit(lambda x: mpixla.allreduce(x, MPI.SUM) * 2),
        "gradient": jax.grad(lambda x: mpixla.allreduce(x * x, MPI.SUM).sum()),
    }
    lengths = iter(range(1, 10**6))

    def grow(call, clears):
        for _ in range(2):
            for _ in range(6):
                jax.block_until_ready(call(jnp.ones(next(lengths))))
            if clears:
                jax.clear_caches()
        return allocated()

    for name, call in CALLS.items():
        begin = grow(call, True)
        cleared = grow(call, True) - begin
        kept = grow(call, False) - begin
        print(cleared < kept / 4, f"{name}: {cleared:.0f} MiB with jax.clear_caches(), {kept:.0f} MiB without")
        assert float(call(jnp.ones(3))[0]) == float(call(jnp.ones(3))[0])
"""


@pytest.mark.long
def test_clear_caches_releases_memory(job):
    lines = job(1, HEAP + SHAPES).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["True"] * 4, lines


# JAX keeps the types of the operations' results by their parameters, communicators among them: a few KiB each, of 4096
# at most. A program has 1500.
COMMUNICATORS = """
    x = jnp.ones(8)

    def step(comm):
        return lambda x: mpixla.sendrecv(x * mpixla.norm(x, comm=comm), x, 0, 0, comm=comm)

    USES = {
        "eager": lambda comm: mpixla.wait(mpixla.iallreduce(mpixla.norm(x, comm=comm), MPI.SUM, comm=comm)),
        "jit": lambda comm: jax.jit(step(comm))(x),
        "gradient": lambda comm: jax.grad(lambda x: step(comm)(x).sum())(x),
        "grid": lambda comm: mpixla.halo_exchange(x, comm),
    }

    def grow(use):
        for _ in range(15):
            comm = MPI.COMM_WORLD.Create_cart([1], periods=[True])
            jax.block_until_ready(use(comm))
            comm.Free()
        return allocated()

    for name, use in USES.items():
        begin = grow(use)
        each = (grow(use) - begin) * 1024 / 15
        print(each < 50, f"{name}: {each:.0f} KiB of each communicator")
"""


def test_programs_go_with_their_communicator(job):
    lines = job(1, HEAP + COMMUNICATORS).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["True"] * 4, lines


MESSAGES = """
    x = jnp.ones(3)
    CALLS = {
        "sendrecv": lambda tag: mpixla.sendrecv(x, x, 0, 0, sendtag=tag, recvtag=tag),
        "of a pytree": lambda tag: mpixla.sendrecv([x, x], [x, x], 0, 0, sendtag=tag),
        "isendrecv": lambda tag: mpixla.wait(mpixla.isendrecv(x, x, 0, 0, sendtag=tag)),
    }
    for name, call in CALLS.items():
        for tag in range(3):
            jax.block_until_ready(call(tag))
        begin = allocated()
        for tag in range(3, 1003):
            call(tag)
        grown = allocated() - begin
        print(grown < 20, f"{name}: {grown:.1f} MiB")
"""


def test_a_thousand_tags_need_no_programs(job):
    lines = job(1, HEAP + MESSAGES).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["True"] * 3, lines
