"""Programs of shapes that are not used any more: what docs/jax.md says gives their memory back."""

import textwrap

import pytest

pytestmark = pytest.mark.any_mpi

CODE = """
    import gc, re
    import jax, jax.numpy as jnp, mpixla
    from mpi4py import MPI

    def resident():
        return int(re.search(r"VmRSS:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) / 1024

    CALLS = {
        "eager": lambda x: mpixla.allreduce(x, MPI.SUM),
        "jit": jax.jit(lambda x: mpixla.allreduce(x, MPI.SUM) * 2),
        "mpixla.jit": mpixla.jit(lambda x: mpixla.allreduce(x, MPI.SUM) * 2),
        "gradient": jax.grad(lambda x: mpixla.allreduce(x * x, MPI.SUM).sum()),
    }
    call = CALLS[KIND]
    lengths = iter(range(1, 10**6))

    def grow(clears):
        for _ in range(2):
            for _ in range(6):
                jax.block_until_ready(call(jnp.ones(next(lengths))))
            if clears:
                jax.clear_caches()
                gc.collect()
        return resident()

    begin = grow(True)
    cleared = grow(True) - begin
    kept = grow(False) - begin - cleared
    print(cleared < kept / 4, f"{cleared:.0f} MiB with jax.clear_caches(), {kept:.0f} MiB without")
    assert float(call(jnp.ones(3))[0]) == float(call(jnp.ones(3))[0])
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["eager", "jit", "mpixla.jit", "gradient"])
def test_clear_caches_gives_it_back(job, kind):
    (line,) = job(1, f"KIND = {kind!r}\n" + textwrap.dedent(CODE), timeout=180).stdout.splitlines()
    assert line.startswith("True"), line
