"""Reports of waiting ranks and the time limit, ``MPIXLA_TIMEOUT``: the Python part of native/watch/deadline.c."""

import linecache
import os
import platform
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType

from ..base import settings
from ..base.required import is_user_filename
from ..base.speaker import print_message
from ..mpi import clock, native
from ..mpi.comm import channel_of_reports
from ..mpi.mpi import MPI
from .sites import short_name

_LINES = 8  # the most lines of a thread in a report
_WORD = 60.0  # seconds after which a wait is reported if there is no limit, and checked again
# Settings of ranks without a time; the greatest setting of all ranks counts.
_BAD, _OFF, _UNSET = -1.0, 0.0, 1e-9


def read_settings() -> tuple[float, tuple[str, str, int]]:
    """Return MPIXLA_TIMEOUT in seconds (-1: invalid, 0: off, 1e-9: unset), and (host identifier, host name, PID)."""
    wanted = settings.time_limit(otherwise=_UNSET)
    return _BAD if wanted is None else wanted, (
        clock.host_identifier("pid"),
        platform.node() or "an unnamed host",
        os.getpid(),
    )


def start_watchdog(rank_settings: Sequence[tuple[float, tuple[str, str, int]]]) -> None:
    """Start the watchdog's thread, with the greatest limit of all ranks; not if that is 0, or unset with one rank.

    It reports calls that wait for other ranks, and aborts the job after the limit; if no rank sets one, it only
    reports. Collective, since the ranks make a communicator for reports.

    Args:
        rank_settings: the result of ``read_settings`` of each rank, in the order of ranks.

    Raises:
        ValueError: on all ranks, if ``MPIXLA_TIMEOUT`` is no time on one of them.
    """
    times, processes = zip(*rank_settings, strict=True)
    most = max(times)
    if _BAD in times:
        raise ValueError(
            f"{settings.TIMEOUT} must be a number of seconds greater than 0, or 0 for no limit, on every rank; on this "
            f"one it is {os.environ.get(settings.TIMEOUT)!r}."
        )
    if most == _OFF:
        return
    native.lib.mpixla_front_end_set(native.WISH_STACKS, _give_stacks)
    if most == _UNSET and len(times) == 1:
        return
    limit = 0.0 if most == _UNSET else most
    if limit and min(times) != most and MPI.COMM_WORLD.Get_rank() == 0:
        print_message(
            f"mpixla: {settings.TIMEOUT} differs between the ranks: all take the greatest value, {limit:g} s. Let "
            "mpirun pass the variable on to all of them.\n"
        )
    rows = [native.Process(host.encode(), name.encode(), pid) for host, name, pid in processes]
    table = (native.Process * len(rows))(*rows)
    channel = channel_of_reports() if MPI.Query_thread() == MPI.THREAD_MULTIPLE else 0
    native.check_result(native.lib.mpixla_timeout_set(limit, _WORD, channel, table, len(table)))


@native.make_callback
def _give_stacks() -> None:
    frames, own = sys._current_frames(), threading.get_ident()
    active = sum(ident != own and _is_active(frame) for ident, frame in frames.items())
    native.lib.mpixla_timeout_stack_give("\n".join(_format_stacks(frames)).encode(errors="replace"), active)


# JAX's functions that wait for a program; packages whose threads make no calls of the program; and further packages in
# the stacks of these threads.
_WAITS = {"_value", "block_until_ready", "effects_barrier"}
_TOOLS = {"IPython", "debugpy", "ipykernel", "tqdm"}
_OF_TOOLS = _TOOLS | {"tornado", "zmq"}


def _is_active(frame: FrameType) -> bool:
    """Return whether a thread may still make a call: it does not wait for a program, and does not belong to a tool."""
    if (frame.f_code.co_name in _WAITS and _package_of(frame) == "jax") or _is_in_method(frame, "block_until_ready"):
        return False
    packages = [_package_of(frame) for frame, _ in traceback.walk_stack(frame)]
    packages = [package for package in packages if package not in sys.stdlib_module_names]
    return not (packages and packages[-1] in _TOOLS and set(packages) <= _OF_TOOLS)


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_in_method(frame: FrameType, name: str) -> bool:
    """Return whether a frame is calling a method of this name without arguments: methods in C++ have no frame."""
    _, line, _, column = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    text = linecache.getline(frame.f_code.co_filename, line or 0)
    return column is not None and text.encode()[:column].endswith(f".{name}()".encode())


def _format_stacks(frames: dict[int, FrameType]) -> Iterator[str]:
    """Yield a report's lines on all other threads, the main one first: the user's source lines, innermost first."""
    own, main = threading.get_ident(), threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident in sorted(frames, key=lambda ident: ident != main):
        lines = traceback.extract_stack(frames[ident])[::-1]
        users = [at for at in lines if is_user_filename(at.filename) and not at.filename.startswith("<frozen")]
        if ident == own or not (users or ident == main):
            continue
        yield "Python's main thread:" if ident == main else f"Python's thread {names.get(ident, ident)}:"
        for at in (users or lines)[:_LINES]:
            yield f"  {short_name(at.filename)}:{at.lineno} in {at.name}" + (f": {at.line}" if at.line else "")
