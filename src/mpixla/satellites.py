"""The packages that use mpixla, and without which it works: run, compat, distributed, trace and tools.

Importing mpixla imports one of them only here, and only if the command line or the environment asks for it.
"""

import sys
from importlib import import_module

from .base.command_line import module_run


def own_process() -> None:
    """Install what a process gets that mpixla runs (run/process.py). All ranks must call it."""
    import_module(".run.process", __package__).install()


# While Python looks for the module of -m it imports this package, before anything has imported JAX.
_module, _options = module_run() or ("", [])
if _module == "mpixla" and sys.argv[1:2] == ["run"]:  # the process becomes MPI's launcher here
    import_module(".run.start", __package__).run(sys.argv[2:], [sys.executable, *_options])
elif _module == "mpixla.distributed":
    import_module(".distributed._trampoline", __package__).prepare()
