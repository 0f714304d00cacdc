"""A program that writes a corpus of exported programs, with the oldest JAX that is supported.

PYTHONPATH=tests:tests/helpers mpirun -n 2 python tests/exports/write.py VERSION

The archive VERSION-FAMILY.tar.xz, where FAMILY is the MPI's, has for each program and rank the exported program, its
operands, and its results, which were compared with the oracle (tests/reference.py) where the oracle has a row for them.
run.py runs them with the mpixla of a later day.
"""

import io
import sys
import tarfile

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax
from mpi4py import MPI

import mpixla
from reference import _CHAINS, _RING, ROWS, expected, operands
from run import add, corpus_path, register_objects

SHAPE = (3,)


def row_programs(comm):
    """Yield name, function, operands and the oracle's result (None if it has none) of each row of the oracle.

    Only `allreduce` has every reduction. A differentiable row is there once more, as its pullback.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    for row in ROWS:
        for variant in row.variants(size):
            op = variant.get("op", "SUM")
            if row.name != "allreduce" and op != "SUM":
                continue
            dtype = np.dtype(np.float32 if row.takes(np.dtype(np.float32), **variant) else np.int32)
            if not row.takes(dtype, **variant):
                continue
            args = operands(row, dtype, SHAPE, rank, size, **variant)

            def call(*args, row=row, variant=variant):
                return row.call(*args, comm=comm, **variant)

            if not args:  # jax.export takes no program with an ordered effect and no operands
                args = [np.zeros(SHAPE, np.float32)]

                def call(x, row=row, variant=variant):
                    row.call(comm=comm, **variant)
                    return x

            name = "-".join([row.name, *(f"{k}={v}" for k, v in variant.items())])
            yield name, call, args, expected(row, dtype, SHAPE, rank, size, **variant)
            if row.reverse and row.differentiable(**variant) and op in ("SUM", "MAX"):
                y = jax.eval_shape(call, *args)
                yield (
                    f"{name}-pullback",
                    lambda *args, call=call: jax.vjp(call, *args[:-1])[1](args[-1]),
                    [*args, np.arange(y.size, dtype=y.dtype).reshape(y.shape)],
                    None,
                )


def other_programs(comm, user_made):
    """Yield name, function and operands of programs that no row of the oracle makes."""
    rank = comm.Get_rank()
    x = np.arange(6, dtype=np.float32).reshape(2, 3) + rank
    y = (x - 2).astype(np.float16)

    def in_a_loop(x):
        return lax.fori_loop(0, 3, lambda i, x: mpixla.allreduce(x, MPI.SUM, comm=comm) * (i + 1), x)

    def overlapping(x):
        return mpixla.overlap(mpixla.iallreduce(x, MPI.SUM, comm=comm), jnp.sin, x)

    def checked(x):
        mpixla.assert_replicated(x, comm=comm)
        return x

    yield "pytree", lambda x, y: mpixla.allreduce({"a": x, "b": y, "c": [x[0]]}, MPI.SUM, comm=comm), [x, y]
    yield "bcast-pytree", lambda x, y: mpixla.bcast({"a": x, "b": y, "c": [x[0]]}, 0, comm=comm), [x, y]
    yield "batched", jax.vmap(lambda x: mpixla.allgather(x, comm=comm), in_axes=1, out_axes=2), [x]
    yield "loop", in_a_loop, [x]
    yield "loop-gradient", jax.grad(lambda x: in_a_loop(x).sum()), [x]
    yield "overlap", overlapping, [x]
    yield "short-floats", lambda y: mpixla.allreduce(y, MPI.SUM, comm=comm), [y]
    yield "short-floats-max", lambda y: mpixla.allreduce(y, MPI.MAX, comm=comm), [y]
    yield "user-made-reduction", lambda x: mpixla.allreduce(x, user_made, comm=comm), [x]
    yield "pairs", lambda x: mpixla.allreduce((x, jnp.full(x.shape, rank)), MPI.MAXLOC, comm=comm), [x]
    yield "fsum", lambda x: mpixla.fsum(x, comm=comm), [x]
    yield "exact-vdot", lambda x: mpixla.vdot(x, x, exact=True, comm=comm), [x]
    yield "norm", lambda x: mpixla.norm(x, comm=comm), [x]
    yield "assert-replicated", checked, [x - rank]
    yield "ragged-all-to-all", _ragged(comm), [np.arange(4, dtype=np.float32) + 4 * rank]


def _ragged(comm):
    two = np.array([2, 2])

    def program(x):
        at = np.array([0, 2])
        landing = np.array([2, 2]) * comm.Get_rank()
        return mpixla.ragged_all_to_all(x, jnp.zeros(4), at, two, landing, two, comm=comm)

    return program


def bytes_of(arrays):
    """Return the arrays as the bytes of a .npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, *(np.asarray(a) for a in arrays))
    return buffer.getvalue()


def main():
    comm = mpixla.get_default_comm()
    rank = comm.Get_rank()
    lines = {periodic: MPI.COMM_WORLD.Create_cart([2], periods=[periodic]) for periodic in (False, True)}
    comm.Set_attr(_RING, lines)  # the oracle's rows take these for what they would make
    for periodic, line in lines.items():
        comm.Set_attr(_CHAINS[periodic], line)
    user_made = MPI.Op.Create(add, commute=True)
    register_objects(lines.values(), [user_made])
    files, targets = {}, set()
    programs = [*row_programs(comm), *((*program, None) for program in other_programs(comm, user_made))]
    for name, call, args, model in programs:
        exported = export.export(jax.jit(call), platforms=["cpu"], disabled_checks=mpixla.export_checks())(*args)
        results = jax.tree.leaves(exported.call(*args))
        if model is not None:
            np.testing.assert_array_equal(results[0], model, err_msg=name)
        targets |= {word for word in exported.mlir_module().replace("(", " ").split() if word.startswith("@mpixla_")}
        files[f"{name}/{rank}.program"] = bytes(exported.serialize())
        files[f"{name}/{rank}.operands.npz"] = bytes_of(args)
        files[f"{name}/{rank}.results.npz"] = bytes_of(results)
    every = MPI.COMM_WORLD.gather((files, targets), root=0)
    if rank == 0:
        known = {check.is_custom_call() for check in mpixla.export_checks()} - {None, "LayoutConstraint"}
        missing = known - {target[1:] for _, targets in every for target in targets}
        assert not missing, f"no program of the corpus calls {sorted(missing)}"
        with tarfile.open(corpus_path(sys.argv[1]), "w:xz", preset=9) as archive:
            for files, _ in every:
                for name, data in files.items():
                    entry = tarfile.TarInfo(name)
                    entry.size = len(data)
                    archive.addfile(entry, io.BytesIO(data))
        print(f"{len(programs)} programs")


if __name__ == "__main__":
    main()
