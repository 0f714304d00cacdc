"""``python -m mpixla run``: this process executes the launcher in its own place.

It is not the launcher's parent, so signals, the terminal, standard input and the exit status are the launcher's own.
"""

import os
import shlex
from argparse import Namespace
from collections.abc import Mapping
from math import ceil
from typing import NoReturn

from ..base import program, settings, started
from ..base.cores import find_cores
from ..base.speaker import print_message
from . import launchers, rank, slurm
from .library import CannotStartError, Library, find_library
from .options import explain_misplaced_ranks, parse_options

_BASE = os.path.dirname(program.__file__)  # the folder base/, of which rank.py executes files
_WRONG = 2  # exit status where nothing was started

# Prefixes of the variables to pass to ranks on other hosts.
_OURS = ("MPIXLA_", "JAX_", "XLA_", "TF_CPP_", "MPI4PY_", "PYTHON", "LD_", "CUDA_", "NCCL_", "UCX_", "OMP_")
_OF_A_SHELL = ("PATH", "VIRTUAL_ENV", "NPROC")


def run(arguments: list[str], python: list[str]) -> NoReturn:
    """Execute the launcher of the MPI that mpi4py loads in place of this process, or print why not and exit.

    Args:
        arguments: the words after ``run`` on the command line.
        python: the Python and its own options with which each rank is started.
    """
    options = parse_options(arguments)
    if others := started.detect_launcher():
        _refuse_command(
            f"this process is one of {others[2]} that {others[1]} has started. python -m mpixla run starts the ranks "
            "itself: start it once, without a launcher; or, if a rank has started this process, without the variables "
            "PMI* and OMPI_*, which it has inherited."
        )
    try:
        command, environment = _start_command(options, find_library(), python)
    except CannotStartError as e:
        _refuse_command(str(e))
    if options.dry_run:
        changed = [f"{name}={value}" for name, value in environment.items() if os.environ.get(name) != value]
        print(shlex.join(["env", *changed, *command] if changed else command))
        raise SystemExit(0)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as e:
        _refuse_command(f"{command[0]} cannot be started: {e.strerror}.")


def _refuse_command(sentence: str) -> NoReturn:
    print_message(f"python -m mpixla run: {sentence}\n")
    raise SystemExit(_WRONG)


def _start_command(options: Namespace, library: Library, python: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command line and environment that start the ranks, by srun or MPI's launcher; exit if impossible."""
    kind = launchers.kind_of(library)
    asked = _environment_of(options)
    started = [*python, *_runner_arguments(options), *options.program]
    speaks = None if options.launcher or options.hosts else slurm.srun_plugin(kind.srun)
    if speaks:
        environment = {**kind.environment_between_hosts, **os.environ, **asked}
        return [*slurm.srun_command(speaks, options), *options.launcher_args, *started], environment
    options.ranks = options.ranks or slurm.task_count()
    if not options.ranks:
        cores = len(find_cores())
        hint = explain_misplaced_ranks(options.program) or "Say it with -n."
        _refuse_command(f"how many ranks? {hint} (This machine has {cores} core{'s' * (cores > 1)}.)")
    if options.threads and options.no_pin:
        _refuse_command(
            "--threads says how many cores each rank gets, and --no-pin that it has all. Leave one of them out."
        )
    launcher = options.launcher or launchers.find_launcher(kind, library)
    between_hosts = kind.environment_between_hosts if options.hosts else {}
    environment = {**kind.environment_unpinned, **between_hosts, **launchers.environment_with_folder(launcher), **asked}
    # Not under srun (above), which pins ranks itself, and reports the signal that has ended one.
    share = rank.ALL if options.no_pin else str(options.threads or rank.AUTO)
    head = [
        str(launcher),
        *(kind.as_root if os.geteuid() == 0 else ()),
        *kind.unpinned,
        *_host_options(options, kind, environment),
        *(kind.label if options.label else ()),
        *options.launcher_args,
        "-n",
        str(options.ranks),
    ]
    return [*head, python[0], "-I", "-S", rank.__file__, _BASE, share, *started], environment


def _runner_arguments(options: Namespace) -> list[str]:
    """Return Python's arguments for the runner that reports the program's failure; [] for mpixla's own commands."""
    if options.distributed:
        return ["-m", "mpixla.distributed"]
    is_own = options.program[0] == "-m" and options.program[1].split(".")[0] == "mpixla"
    return [] if is_own else [program.__file__]


def _environment_of(options: Namespace) -> dict[str, str]:
    """Return the environment variables that the options set."""
    asked = {
        settings.TIMEOUT: str(options.timeout).removesuffix(".0") if options.timeout else None,
        settings.CHECK: "1" if options.check else None,
        settings.TRACE: str(options.trace.absolute()) if options.trace else None,
    }
    return {name: value for name, value in asked.items() if value is not None}


def _host_options(options: Namespace, kind: launchers.LauncherKind, environment: Mapping[str, str]) -> list[str]:
    """Return the launcher's options for hosts and ranks on each; without hosts, for more ranks than cores if needed."""
    if not options.hosts:
        return list(kind.crowded) if options.ranks > len(find_cores()) else []
    each = ceil(options.ranks / len(options.hosts))
    if kind.passes_environment:
        return ["-hosts", ",".join(options.hosts), "-ppn", str(each)]
    passed = [name for name in sorted(environment) if name in _OF_A_SHELL or name.startswith(_OURS)]
    return [
        "--host",
        ",".join(f"{host}:{each}" for host in options.hosts),
        *(word for name in passed for word in ("-x", name)),
    ]
