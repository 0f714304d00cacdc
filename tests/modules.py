"""A site's environment modules, which documentation pages load."""

from pathlib import Path

import pytest

# Of Debian's package environment-modules.
BASH = Path("/usr/share/modules/init/bash")


def make(folder, **modules):
    """The variables of shells that know these modules, from names to the variables to which they add a folder.

    Shells that are not interactive read the file that BASH_ENV names. Where there are no modules the test is skipped.
    """
    if not BASH.exists():
        pytest.skip(f"there are no modules here, {BASH} is missing (on Debian: apt-get install environment-modules)")
    for name, added in modules.items():
        lines = [f"prepend-path {variable} {value}" for variable, value in added.items()]
        (folder / name).write_text("\n".join(["#%Module", *lines, ""]))
    return {"BASH_ENV": str(BASH), "MODULEPATH": str(folder)}
