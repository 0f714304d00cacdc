"""The packages that use mpixla, and without which it works: run, compat, distributed, trace and tools.

Importing mpixla imports one of them only here, and only if the command line or the environment asks for it.
"""

import sys
from importlib import import_module


def module_run() -> tuple[str, list[str]] | None:
    """Return the module of ``-m`` whose package Python is importing, and Python's options before it; else None.

    Until Python has found the module, ``sys.argv`` is ``-m`` and the words after the module, for example of
    ``-X dev -um mpixla run -n 4``.
    """
    words = sys.orig_argv[: len(sys.orig_argv) + 1 - len(sys.argv)]
    if sys.argv[:1] != ["-m"] or len(words) < 2:
        return None
    *options, module = words
    if module.startswith("-"):  # in one word: -ummpixla
        flags, _, module = module.partition("m")
    else:
        flags = options.pop().removesuffix("m")
    return module, [*options[1:], *([flags] if flags != "-" else [])]


def own_process() -> None:
    """Install what a process gets that mpixla runs (run/process.py). All ranks must call it."""
    import_module(".run.process", __package__).install()


# While Python looks for the module of -m it imports this package, before anything has imported JAX.
_module, _options = module_run() or ("", [])
if _module == "mpixla" and sys.argv[1:2] == ["run"]:  # the process becomes MPI's launcher here
    import_module(".run.start", __package__).run(sys.argv[2:], [sys.executable, *_options])
elif _module == "mpixla.distributed":
    import_module(".distributed._trampoline", __package__).prepare_jaxlib()
