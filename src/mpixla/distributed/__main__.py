"""``python -m mpixla.distributed script.py arguments``, also ``-m module`` and ``-c code`` in place of the script."""

import os
import sys

import jax

from ..base import jax_settings
from ..base.command_line import program_of
from ..base.program import run_program
from ..extend import own_process, print_and_exit
from . import _trampoline
from ._initialize import initialize, wrap_make_mesh

_USAGE = (
    "usage: mpirun -n N python -m mpixla.distributed (script.py | -m module | -c code) [arguments...]\n"
    "Runs a program on N processes, with JAX's own collectives between them over MPI. The program calls "
    "mpixla.distributed.initialize() or jax.distributed.initialize() before it uses JAX.\n"
)


def _main(words: list[str]) -> None:
    """Set JAX up for collectives over MPI, and run the command line's program; print usage or why not, and exit."""
    if words[:1] in (["-h"], ["--help"]):
        print_and_exit(0, _USAGE)
    if not (program := program_of(words)):
        print_and_exit(2, _USAGE)
    if _trampoline.why_not:
        print_and_exit(1, f"python -m {_trampoline.LAUNCHER}: {_trampoline.why_not}.\n")
    _trampoline.forget_variables()
    if not os.environ.get("JAX_CPU_COLLECTIVES_IMPLEMENTATION"):
        # JAX's default is gloo: once it is replaced, only the program itself can ask for gloo (initialize).
        jax.config.update("jax_cpu_collectives_implementation", "mpi")
    jax.distributed.initialize = initialize  # type: ignore[assignment]
    jax.make_mesh = wrap_make_mesh(jax.make_mesh)
    jax_settings.note_environment(_trampoline.LAUNCHER)
    own_process()
    run_program(program)


_main(sys.argv[1:])
