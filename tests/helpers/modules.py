"""A site's environment modules, which documentation pages load."""

import sys
from pathlib import Path

import pytest

# Of Debian's package environment-modules.
BASH = Path("/usr/share/modules/init/bash")


def make(folder, mpi):
    """Return the variables of shells that know the modules `python`, this one, and `openmpi`, an MPI in a folder.

    Shells that are not interactive read the file that BASH_ENV names. Where there are no modules the test is skipped.
    """
    if not BASH.exists():
        pytest.skip(f"there are no modules here, {BASH} is missing (on Debian: apt-get install environment-modules)")
    (folder / "python").write_text(f"#%Module\nprepend-path PATH {sys.base_prefix}/bin\n")
    (folder / "openmpi").write_text(f"#%Module\nprepend-path PATH {mpi}/bin\nprepend-path LD_LIBRARY_PATH {mpi}/lib\n")
    return {"BASH_ENV": str(BASH), "MODULEPATH": str(folder)}
