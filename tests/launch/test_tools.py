"""Tools that intercept MPI's functions (PMPI), and were preloaded: they see mpixla's calls as they see mpi4py's."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MPIRUN = shutil.which(os.environ.get("MPIRUN", "mpirun"))
MPICC = MPIRUN and Path(MPIRUN).with_name("mpicc")

pytestmark = pytest.mark.skipif(
    not (MPICC and MPICC.exists()),
    reason=f"mpicc, which compiles a tool for an MPI, is not beside {MPIRUN or 'mpirun'}, so no tool is tried",
)

COUNTER = """
#include <mpi.h>
int allreduces, floats_received;
int MPI_Allreduce(const void *s, void *r, int n, MPI_Datatype t, MPI_Op op, MPI_Comm comm) {
    allreduces++;
    return PMPI_Allreduce(s, r, n, t, op, comm);
}
int MPI_Recv(void *b, int n, MPI_Datatype t, int source, int tag, MPI_Comm comm, MPI_Status *status) {
    floats_received += t == MPI_FLOAT ? n : 0;
    return PMPI_Recv(b, n, t, source, tag, comm, status);
}
"""

PROGRAM = """
import ctypes, os, sys
rank = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
if rank in {ranks} and not os.environ.get("LD_PRELOAD"):
    os.execve(sys.executable, [sys.executable, *sys.argv], {{**os.environ, "LD_PRELOAD": sys.argv[1]}})
import jax.numpy as jnp
import mpixla
from mpi4py import MPI

def count(name):
    return ctypes.c_int.in_dll(ctypes.CDLL(None), name).value if rank in {ranks} else 0

before = count("allreduces")
for i in range(3):
    total = mpixla.allreduce(jnp.ones(4), op=MPI.SUM)
line = [rank, total[0], count("allreduces") - before >= 3]
x = jnp.arange(6.0)
if rank == 0:
    mpixla.send(x, dest=1)
else:
    line.append(mpixla.recv(x * 0, source=0)[5])
tool = mpixla.mpi.native.lib.mpixla_mpi_tool().decode()
print(*line, count("floats_received"), os.path.basename(tool) or "no tool", flush=True)
"""


@pytest.fixture(scope="module")
def counter(tmp_path_factory):
    """Return a tool that counts calls: a shared library that was linked with MPI."""
    file = tmp_path_factory.mktemp("tool") / "counter.so"
    source = file.with_suffix(".c")
    source.write_text(COUNTER)
    subprocess.run([MPICC, "-shared", "-fPIC", "-o", file, source], check=True)
    return file


@pytest.mark.parametrize("ranks", [(0, 1), (1,)])
def test_tool_sees_each_call(job, counter, ranks):
    """Also if it is on one rank alone: then no rank makes its part of a call without MPI."""
    done = job(2, PROGRAM.format(ranks=ranks), counter, timeout=100)
    first, second = sorted(done.stdout.splitlines())
    assert first == ("0 2.0 True 0 counter.so" if 0 in ranks else "0 2.0 False 0 no tool"), done.stderr
    assert second == "1 2.0 True 5.0 6 counter.so"


def test_memory_that_ranks_share_may_be_asked_for(job, counter):
    done = job(2, PROGRAM.format(ranks=(0, 1)), counter, timeout=100, MPIXLA_LOCAL="1", MPIXLA_CHECK="0")
    assert sorted(done.stdout.splitlines()) == ["0 2.0 False 0 counter.so", "1 2.0 False 5.0 6 counter.so"]


def test_another_mpi_that_is_global(job, tmp_path):
    """It has MPI's names for the whole process, and is not the MPI that mpi4py has loaded."""
    (tmp_path / "other.c").write_text("int PMPI_Comm_rank, MPI_Allreduce;\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "other.so", tmp_path / "other.c"], check=True)
    code = """
        import ctypes, sys
        from mpi4py import MPI
        ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
        import jax.numpy as jnp, mpixla
        print(mpixla.allreduce(jnp.ones(()), op=MPI.SUM))
        """
    assert job(2, code, tmp_path / "other.so", timeout=100, MPIXLA_LOCAL="0").stdout.split() == ["2.0", "2.0"]
