"""A cache of eager calls: a repeated call goes straight to the program of the first.

The work of an operation before it calls its program (checks, numbers for communicators) depends only on the types of
its arrays and on its other arguments. So where a call turns out to be one program applied to its arrays, the program is
remembered under these, and the next call like it costs hardly more than the program. The call returns a pytree, such as
a request, of the program's results and of the arrays.
"""

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np

from ..base.required import trace_state_clean
from ..base.state import state
from ..checks import sites
from ..mpi import native
from ..mpi.comm import Comm, Reduction, Shift, is_default, refuse_in_fork, when_freed
from ..mpi.mpi import MPI
from .nan import refuses_calls
from .tracebacks import explain

F = TypeVar("F", bound=Callable[..., Any])

# From an argument to its entry in a key, by type; calls with arguments of other types are not remembered.
_STANDS_FOR: dict[type, Callable[[Any], Any]] = {
    type(None): lambda x: x,
    int: lambda x: x,
    np.int32: int,
    np.int64: int,
    str: lambda x: x,
    Shift: lambda x: x if type(x.direction) is int and type(x.disp) is int else repr(x),
    MPI.Op: MPI._handleof,
    MPI.Intracomm: lambda comm: None if is_default(comm) else MPI._handleof(comm),
    MPI.Cartcomm: MPI._handleof,
    MPI.Graphcomm: MPI._handleof,
    MPI.Distgraphcomm: MPI._handleof,
}

_LIMIT = 4096  # calls that one operation remembers, and programs of all of them

T = TypeVar("T")
_clock = itertools.count()


class Recent(dict[tuple[Any, ...], list[Any]], Generic[T]):
    """A table of limited size: values, each with the time of its last use, by key. Several threads may use it at once.

    Not an OrderedDict: while one thread lists its keys, another one must not move a key to its end.
    """

    def use(self, key: tuple[Any, ...]) -> T | None:
        """Return the value of a key, or None."""
        entry = self.get(key)
        if entry is None:
            return None
        entry[1] = next(_clock)
        value: T = entry[0]
        return value

    def add(self, key: tuple[Any, ...], value: T) -> T:
        """Add a value, unless the key has one; return the key's value. A full table evicts the least recently used."""
        if len(self) >= _LIMIT:
            for old, _ in sorted(list(self.items()), key=lambda item: item[1][1])[: _LIMIT // 8]:
                self.pop(old, None)
        added: T = self.setdefault(key, [value, next(_clock)])[0]
        return added


class Program(NamedTuple):
    """A program that an eager call ran."""

    run: Callable[..., Any]
    operands: tuple[Any, ...]
    numbers: np.ndarray | None  # one more operand, the last: ranks and tags
    results: list[Any]  # empty if the call was waited for
    owners: tuple[Comm | Reduction, ...]  # must not be freed


# From a program's results and its operands to the call's result.
_Collect = Callable[[Any, Sequence[Any]], Any]


def _first(results: Sequence[Any], operands: Sequence[Any]) -> Any:
    return results[0]


def _wait_for(done: Any, operands: Sequence[Any]) -> None:
    jax.block_until_ready(done)


@dataclass(slots=True)
class _Known:
    """A remembered call."""

    program: Callable[..., Any]
    numbers: np.ndarray | None  # the operand behind the arrays: ranks and tags
    collect: _Collect
    checks: tuple[tuple[Any, int], ...]  # of ``_check``, for communicator and reduction
    on_device: jax.Array | None = None  # the numbers, from the second call on

    def run(self, operands: Sequence[Any]) -> Any:
        """Make the call for these arrays."""
        if self.numbers is None:
            return self.program(*operands)
        if self.on_device is None or self.on_device.is_deleted():
            with jax.transfer_guard_host_to_device("allow"):  # these are no arrays of the user's
                self.on_device = jax.device_put(self.numbers)
        return self.program(*operands, self.on_device)


class _Recorder(threading.local):
    programs: list[Program] | None = None


recorder = _Recorder()


def remembers(arguments: int) -> Callable[[F], F]:
    """Return a decorator by which a function of ``arguments`` arrays, and of further arguments, remembers its calls."""

    def decorate(function: F) -> F:
        known = Recent[_Known]()

        def forget_freed() -> None:
            for key, (call, _) in list(known.items()):
                if not all(is_alive(number) for is_alive, number in call.checks):
                    known.pop(key, None)

        when_freed.append(forget_freed)

        def key_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
            if len(args) < arguments or not trace_state_clean() or refuses_calls():
                return None
            key: list[Any] = [sites.of_caller()] if state.reports else []
            for x in args[:arguments]:
                if not isinstance(x, jax.Array):
                    return None
                key.append(x.aval)
            for value in (*args[arguments:], *kwargs.values()):
                kind = type(value)
                stand_in = _STANDS_FOR.get(kind)
                if stand_in is None:
                    return None
                key.append(kind)
                key.append(stand_in(value))
            return (*key, *kwargs)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:  # which costs nothing
                key = key_of(args, kwargs)
                if key is None:
                    refuse_in_fork()
                    return function(*args, **kwargs)
                found = known.use(key)
                if found is not None:
                    for is_alive, number in found.checks:
                        if not is_alive(number):
                            break
                    else:
                        operands = args[:arguments]
                        sites.tell_caller(operands)
                        return found.collect(found.run(operands), operands)
                    known.pop(key, None)
                return learn(key, args, kwargs)
            except Exception as e:
                explain(e, function.__name__, kwargs)
                raise

        def learn(key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            refuse_in_fork()
            before, recorder.programs = recorder.programs, []
            try:
                result = function(*args, **kwargs)
                programs = recorder.programs
            finally:
                recorder.programs = before
            if len(programs) == 1 and (collect := _collect_of(programs[0], args[:arguments], result)):
                run, _, numbers, _, owners = programs[0]
                known.add(key, _Known(run, numbers, collect, tuple(map(_check, owners))))
            return result

        call.hides_own_frames = True  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


def _check(owner: Comm | Reduction) -> tuple[Any, int]:
    """Return the C function that tells whether an owner is alive, and the owner's number, its argument."""
    lib = native.lib
    return lib.mpixla_comm_is_alive if isinstance(owner, Comm) else lib.mpixla_reduction_is_alive, owner.id


def _collect_of(program: Program, arrays: tuple[Any, ...], result: Any) -> _Collect | None:
    """Return the function from the program's results to the call's, or None if the call did more than run it."""
    if not program.owners or len(program.operands) != len(arrays):
        return None
    if any(x is not y for x, y in zip(program.operands, arrays, strict=True)):
        return None
    if not program.results:
        return _wait_for if result is None else None
    if result is program.results[0]:
        return _first
    leaves, structure = jax.tree.flatten(result)
    at = {id(x): i for i, x in enumerate((*program.results, *arrays))}
    if not leaves or any(id(x) not in at for x in leaves):
        return None
    places = [at[id(x)] for x in leaves]
    return lambda results, operands: jax.tree.unflatten(structure, [(*results, *operands)[i] for i in places])
