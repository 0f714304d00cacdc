"""Sites: the lines of the user's source that calls come from, so that reports can name them.

A traced call carries its site as a number in the program, for which the C library gets the text (native/call/site.h)
each time the program is lowered. The number is a hash of the file's name, the function, and the place of the
instruction within the function. So it is the same on every rank and in every run, and does not change if only comments
and lines do: JAX's compilation cache, which finds programs by their text, finds this one.
"""

import contextlib
import functools
import hashlib
import os
import re
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import jax

from ..base.required import is_user_filename, register_exclusion
from ..base.state import state
from ..mpi import native

# Eager calls of one kind share a program, which takes its site from the thread that runs it. If the operands are not
# ready, XLA runs it in another thread, where the site is not known. So a thread's first calls, which are compared
# between the ranks, wait for their operands; and if a rank asks for reports, each line has a program of its own
# (`state.reports`).
_OF_THREAD = -1  # the value in include/mpixla.h
_first_calls = native.lib.mpixla_check_first_calls()
# The size of the caches of files and lines. Each cell of a notebook is a file.
_LIMIT = 4096

register_exclusion(str(Path(__file__).parents[1]) + os.sep)


class _ThreadSite(threading.local):
    text = ""
    is_eager = False  # True while a shared program of eager calls is lowered
    calls = 0
    told: tuple[CodeType, int, str] | None = None  # the caller that the C library has for this thread


_part = _ThreadSite()
_is_users_file = functools.lru_cache(_LIMIT)(is_user_filename)
_INSTALLED = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))
_SCOPE = re.compile(r"mpi\[([^\]]*)\]")
REVERSE = "in reverse mode"  # the part of a call that is its transpose


@contextlib.contextmanager
def annotate_calls(text: str) -> Iterator[None]:
    """Add a text, such as "leaf 2 of 3", to the sites of calls that are traced or made in the with body."""
    before, _part.text = _part.text, text
    try:
        with jax.named_scope(f"mpi[{text}]"):
            yield
    finally:
        _part.text = before


@contextlib.contextmanager
def use_thread_site(is_eager: bool) -> Iterator[None]:
    """Give calls lowered in the with body the running thread's site, if ``is_eager`` and no rank asks for reports."""
    before, _part.is_eager = _part.is_eager, is_eager and not state.reports
    try:
        yield
    finally:
        _part.is_eager = before


_PACKED = ": "
_NO_NAME = re.compile(r"[^\w.,-]")


def as_name(text: str) -> str:
    """Return a text with all characters replaced that JAX's scopes or this file's separators do not allow in a part."""
    return _NO_NAME.sub("_", text)


def format_packed(text: str, parts: Sequence[Any]) -> str:
    """Return a text for ``annotate_calls``: ``text``, eight packed parts, and the number and hash of further ones."""
    first, rest = parts[:8], parts[8:]
    more = f" and {len(rest)} more ({f'{number_of(repr(rest).encode()):016x}'[-8:]})" if rest else ""
    return text + _PACKED + ", ".join(map(str, first)) + more


def key_of_caller() -> int | str:
    """Return an eager program's part of its key: the call's site if ranks ask for reports, else its packed leaves.

    A program contains the description of its packed leaves, and with reports also its call site.
    """
    if state.reports:
        return site_of_caller()
    text = _part.text
    return text and text.partition(_PACKED)[2]


def packed_of_lowering(ctx: Any) -> dict[str, int]:
    """Return {"packed": a hash of the lowered call's packed parts}, which ranks compare; {} without such parts."""
    parts = _annotation_of(ctx)[0].partition(_PACKED)[2]
    return {native.PACKED: number_of(parts.encode())} if parts else {}


def _annotation_of(ctx: Any) -> tuple[str, str]:
    """Return the lowered call's text of ``annotate_calls``, and ``REVERSE`` in reverse mode; "" where there is none."""
    scopes = _SCOPE.findall(str(ctx.name_stack)) or [_part.text]
    parts = [x for x in scopes if x != REVERSE]
    return parts[-1] if parts else "", REVERSE if REVERSE in scopes else ""


@functools.lru_cache(_LIMIT)
def _place_of(code: CodeType, instruction: int) -> str:
    """Return the index of an instruction's position in a function, as text; for a lambda with a hash of its code.

    Python compiles some expressions twice, such as the condition of a loop: the place is that of the first one. Of a
    function without a name, a lambda above all, the place has a hash of its code.
    """
    positions = list(code.co_positions())
    place = str(positions.index(positions[instruction // 2]))  # an instruction has two bytes
    return f"{place}:{number_of(_text_of(code).encode()):x}" if code.co_name in _NAMELESS else place


_NAMELESS = ("<lambda>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


def _text_of(constant: Any) -> str:
    """Return a constant of code as a text that is the same in every process."""
    if isinstance(constant, CodeType):
        names = constant.co_names, constant.co_varnames, constant.co_freevars
        return f"{constant.co_code!r} {names} {[_text_of(x) for x in constant.co_consts]}"
    if isinstance(constant, frozenset):
        return f"{sorted(map(_text_of, constant))}"
    return f"({', '.join(map(_text_of, constant))})" if isinstance(constant, tuple) else ascii(constant)


class _SourceLine(NamedTuple):
    """A line of the user's source, and an instruction in it."""

    file: str
    function: str
    place: str  # in the function
    line: int

    @classmethod
    def from_instruction(cls, code: CodeType, instruction: int, line: int) -> "_SourceLine":
        return cls(code.co_filename, code.co_qualname, _place_of(code, instruction), line)

    @property
    def name(self) -> str:
        """The file, the function and the place in it."""
        return f"{os.path.basename(self.file)}:{self.function}:{self.place}"


_lines: dict[int, _SourceLine] = {}


def number_of(name: bytes) -> int:
    """Return a 63-bit hash of a name, never 0, which is the same on every rank and in every run."""
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1 or 1


@functools.lru_cache(_LIMIT)
def _register_line(line: _SourceLine, note: str, caller: _SourceLine | None = None) -> int:
    """Return the number (a hash) of a source line with its note and caller; pass the text to the C library, once."""
    name = f"{line.name}:{note}" + (f":{caller.name}" if caller else "")
    number = number_of(name.encode(errors="surrogateescape"))
    # Only lines distinguish functions of one name with the same code, or of files with the same name.
    if _lines.setdefault(number, line) != line:
        number = number_of(f"{name}:{line.line}".encode(errors="surrogateescape"))
    native.check_result(
        native.lib.mpixla_site_name(number, _describe_line(line, note, caller).encode(errors="surrogateescape"))
    )
    return number


def short_name(file: str) -> str:
    """Return a file's path, relative to the current directory if the file is below it."""
    with contextlib.suppress(ValueError, OSError):
        return str(Path(file).relative_to(Path.cwd()))
    return file


def _describe_line(line: _SourceLine, note: str, caller: _SourceLine | None) -> str:
    where = "" if line.function == "<module>" else f" in {line.function.rpartition('.')[2]}"
    notes = ", ".join(filter(None, [caller and f"called at {short_name(caller.file)}:{caller.line}", note]))
    return f"{short_name(line.file)}:{line.line}{where}" + (f" ({notes})" if notes else "")


def _lines_of(traceback: Any) -> Iterator[_SourceLine]:
    """Yield the user's lines in JAX's traceback of a traced call, the innermost one first."""
    if traceback is not None:
        for code, instruction in zip(*traceback.raw_frames(), strict=True):
            if _is_users_file(code.co_filename):
                yield _SourceLine.from_instruction(code, instruction, traceback.code_addr2line(code, instruction))


def _line_of_caller() -> _SourceLine | None:
    """Return the innermost line of the user's source on this thread's stack; None without one."""
    frame: Any = sys._getframe(1)
    while frame is not None and not _is_users_file(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else _SourceLine.from_instruction(frame.f_code, frame.f_lasti, frame.f_lineno)


def site_of_lowering(ctx: Any) -> int | str:
    """Return the lowered call's site: a number, 0 if unknown, -1 for the running thread's; for an export a string."""
    if _part.is_eager:
        return _OF_THREAD
    users = _lines_of(ctx.traceback)
    # If mpixla itself traces, for an eager call, the user's line is the one that waits for the program.
    line = next(users, None) or _line_of_caller()
    if line is None:
        return 0
    # A line in an installed library gets its caller's line, too; in a library's derivative rule JAX has no caller.
    caller = None
    if line.file.startswith(_INSTALLED):
        caller = next((user for user in users if not user.file.startswith(_INSTALLED)), None)
    note = ", ".join(filter(None, _annotation_of(ctx)))
    number = _register_line(line, note, caller)
    return (
        f"{number:016x} {_describe_line(line, note, caller)}"
        if ctx.module_context.lowering_parameters.for_export
        else number
    )


def site_of_caller() -> int:
    """Return the site of the operation that is being called; 0 if no frame is the user's."""
    line = _line_of_caller()
    return 0 if line is None else _register_line(line, _part.text)


_told: dict[tuple[CodeType, int, str], int] = {}


def pass_caller_site(operands: Sequence[Any]) -> None:
    """Pass the site of this thread's next eager call to the C library; in its first calls wait for the operands."""
    part = _part
    if part.calls < _first_calls:
        part.calls += 1
        # A deleted array is left to the program, which JAX refuses with its own message.
        arrays = [x for x in jax.tree.leaves(operands) if isinstance(x, jax.Array)]
        jax.block_until_ready([x for x in arrays if not x.is_deleted()])
    try:
        frame: Any = sys._getframe(4)  # of an operation's caller
    except ValueError:  # there is none, as at the end of the process
        return
    while not _is_users_file(frame.f_code.co_filename):
        frame = frame.f_back
        if frame is None:
            return
    key = frame.f_code, frame.f_lasti, part.text
    if key == part.told:
        return
    site = _told.get(key)
    if site is None:
        if len(_told) >= _LIMIT:
            _told.clear()
        site = _told[key] = _register_line(
            _SourceLine.from_instruction(frame.f_code, frame.f_lasti, frame.f_lineno), part.text
        )
    part.told = key
    native.lib.mpixla_site_call(site)
