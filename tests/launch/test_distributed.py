"""JAX's own collectives over MPI: jobs that ``python -m mpixla.distributed`` starts."""

import re
import subprocess
from pathlib import Path

import jaxlib
import pytest

from mpixla.runtime import trampoline

ROOT = Path(__file__).parents[2]
LAUNCHER = ("-m", "mpixla.distributed")

# What every program begins with.
START = """
    import sys
    import jax, jax.numpy as jnp, numpy as np
    from functools import partial
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import mpixla.distributed
    mpixla.distributed.initialize()
    size, rank = jax.process_count(), jax.process_index()
    mesh = Mesh(np.array(jax.devices()), "x")

    def shard(data, spec=P("x"), mesh=mesh):
        return jax.make_array_from_callback(data.shape, NamedSharding(mesh, spec), lambda index: data[index])

    def whole(x):
        return jax.jit(lambda x: x, out_shardings=NamedSharding(x.sharding.mesh, P()))(x).addressable_data(0)

    def check(actual, desired, **options):
        actual = np.asarray(whole(actual))
        assert actual.dtype == desired.dtype, (actual.dtype, desired.dtype)
        np.testing.assert_allclose(actual, desired, **options)
"""


@pytest.fixture
def distributed(job):
    """Runs a program that begins with START, and checks that rank 0 came to its end."""

    def run(n, code, *arguments, **options):
        end = '\nif rank == 0: print("the end")\n'
        done = job(n, START + code + "\n    " + end.strip(), *arguments, python=LAUNCHER, **options)
        if done.returncode == 0:
            assert done.stdout.endswith("the end\n"), done.stdout + done.stderr
        return done

    return run


@pytest.mark.parametrize("n", [1, 2, 3])
def test_unmodified_program(job, n):
    """What a user of jax.distributed has, with nothing of mpixla's in it."""
    code = """
        import jax, numpy as np
        jax.distributed.initialize()
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        n = jax.process_count()
        mesh = Mesh(np.array(jax.devices()), "x")
        data = np.arange(6.0 * n * n, dtype=np.float32).reshape(2 * n, 3 * n) % 7
        x = jax.make_array_from_callback(data.shape, NamedSharding(mesh, P("x")), lambda index: data[index])
        square = jax.jit(lambda a: a @ a.T, out_shardings=NamedSharding(mesh, P()))(x)
        np.testing.assert_array_equal(square.addressable_data(0), data @ data.T)
        total = jax.shard_map(lambda a: jax.lax.psum(a.sum(), "x"), mesh=mesh, in_specs=P("x"), out_specs=P())(x)
        np.testing.assert_array_equal(total.addressable_data(0), data.sum())
        if jax.process_index() == 0:
            print(n, "processes,", len(jax.devices()), "devices, collectives:",
                  jax.config.jax_cpu_collectives_implementation)
    """
    assert job(n, code, python=LAUNCHER).stdout == f"{n} processes, {n} devices, collectives: mpi\n"


def test_names_are_those_that_jaxlib_looks_up():
    """MPItrampoline has variables of these names; it ends the process if a library lacks one."""
    (library,) = Path(jaxlib.__file__).parent.glob("libjax_common.so")
    symbols = subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout
    variables = set(re.findall(r" [bBdD] (MPIX?(?:ABI)?_\w+)$", symbols, re.MULTILINE))
    functions = {name for name in variables if re.match("MPIX?ABI_", name)}
    wanted = functions | {re.sub("^(MPIX?)_", r"\1ABI_", name) for name in variables - functions}
    table = (ROOT / "native/tables/trampoline.def").read_text()
    rows = re.findall(r"^MPIXLA_ABI_(\w+)\((\w+)", table, re.MULTILINE)
    assert len(wanted) > 600
    assert {name for _, name in rows} == wanted
    assert {name for kind, name in rows if kind in ("CALL", "UNCALLED")} == functions
    exported = subprocess.run(
        ["nm", "-D", "--defined-only", trampoline.LIBRARY],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert wanted <= set(re.findall(r" [A-Za-z] (\w+)$", exported, re.MULTILINE))
