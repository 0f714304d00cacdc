"""Runs a corpus of exported programs: `mpirun -n 2 python tests/exports/run.py VERSION`.

A program must give the bits that it gave when it was written; programs that do not are printed.
"""

import io
import sys
import tarfile
from pathlib import Path

import jax
import numpy as np
from jax import export
from mpi4py import MPI

import mpixla


def corpus_path(version):
    """Return the archive of a version for this MPI: programs contain the number that is PROC_NULL."""
    family = "openmpi" if "Open MPI" in MPI.Get_library_version() else "mpich"
    return Path(__file__).parent / f"{version}-{family}.tar.xz"


def register_objects(communicators, reductions):
    """Pass the objects to operations in this order, by which programs number them (docs/other_tools.md, Export)."""
    for comm in communicators:
        jax.eval_shape(lambda comm=comm: mpixla.barrier(comm=comm))
    for op in reductions:
        jax.eval_shape(lambda op=op: mpixla.allreduce(np.float32(0), op))


def add(a, b, datatype):
    """Add float32 numbers: a reduction made by MPI.Op.Create."""
    total = np.frombuffer(b, np.float32)
    total += np.frombuffer(a, np.float32)


def differences(files, comm):
    """Yield the names of programs whose results on this rank have other bits, with both results."""
    rank = comm.Get_rank()
    for name in sorted({path.rpartition("/")[0] for path in files}):
        operands, results = (
            list(np.load(io.BytesIO(files[f"{name}/{rank}.{which}.npz"])).values()) for which in ("operands", "results")
        )
        program = export.deserialize(bytearray(files[f"{name}/{rank}.program"]))
        given = [np.asarray(y) for y in jax.tree.leaves(program.call(*operands))]
        if [(y.dtype, y.shape, y.tobytes()) for y in given] != [(y.dtype, y.shape, y.tobytes()) for y in results]:
            yield f"{name} on rank {rank}: {given}, not {results}"


def main():
    comm = mpixla.get_default_comm()
    lines = [MPI.COMM_WORLD.Create_cart([2], periods=[periodic]) for periodic in (False, True)]
    register_objects(lines, [MPI.Op.Create(add, commute=True)])
    with tarfile.open(corpus_path(sys.argv[1])) as archive:
        files = {entry.name: archive.extractfile(entry).read() for entry in archive}
    wrong = list(differences(files, comm))
    for line in wrong:
        print(line, flush=True)
    if comm.Get_rank() == 0:
        print(f"{len({path.partition('/')[0] for path in files})} programs ran", flush=True)


if __name__ == "__main__":
    main()
