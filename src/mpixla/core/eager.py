"""Eager calls: an operation that is called with arrays runs as one compiled program, sealed (seal.py).

A program belongs to a function and to its arguments that are no arrays. JAX distinguishes the types of arrays and the
structures of pytrees. Ranks and tags of messages are one more operand, so all of them share a program. A program is
dropped when its communicator or reduction is freed.

``eager`` makes a program of a whole operation. ``call_eagerly`` makes one of a primitive, where JAX evaluates the rule
of a derivative or of a batch outside of programs, and where an operation has an argument that no program can have, such
as a status object.
"""

import contextlib
import functools
import inspect
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np

from ..base.required import trace_state_clean
from ..base.state import state
from ..base.tracebacks import PACKAGE, explain_error
from ..base.words import refuse_without_hook
from ..checks import sites
from ..jaxprs.spmd import Primitive
from ..mpi.comm import (
    HASHABLE,
    STATUS_RESULT,
    Comm,
    Reduction,
    Shift,
    Status,
    comm_of,
    communicator_of,
    default_of_block,
    is_alive,
    is_default,
    reduction_of,
    refuse_in_fork,
    when_freed,
)
from ..mpi.mpi import MPI
from . import nan
from .seal import computes_results, sealed_p
from .values import as_operand, full_params

F = TypeVar("F", bound=Callable[..., Any])
_Key = tuple[Any, ...]

_LIMIT = 1024  # programs, and operands of ranks and tags: a program has some 1.5 MB
_clock = itertools.count()


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["computed"], meta_fields=["structure", "places", "is_awaited"]
)
@dataclass(frozen=True)
class _PartialResult:
    """The output of a program whose result is not all computed: what is computed, and where each leaf is."""

    computed: list[Any]
    structure: Any
    places: tuple[int, ...]  # an index of ``computed``, or ~i for leaf i of the operands
    is_awaited: bool  # no later use of a result would wait for the call or raise its error

    def join_operands(self, operands: Sequence[Any]) -> Any:
        """Return the operation's pytree of computed arrays and given operands; await the call if nothing else would."""
        if self.is_awaited:
            self.computed[-1].block_until_ready()
        leaves = jax.tree.leaves(operands) if self.places else []
        return jax.tree.unflatten(self.structure, [self.computed[i] if i >= 0 else leaves[~i] for i in self.places])


@jax.tree_util.register_static
@dataclass(frozen=True)
class _RefusedCall:
    """The output of an operation that raises an exception when it is traced: it is to raise it outside of JAX."""


class _Program:
    """The compiled program of a function."""

    def __init__(
        self, name: str, function: Callable[..., Any], owners: Sequence[Comm | Reduction], most: Sequence[int] = ()
    ) -> None:
        def call_sealed(*operands: Any) -> Any:
            """Return the function's sealed result while JAX traces; raise FloatingPointError if rerun for a NaN."""
            if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
                with jax.disable_jit(False):
                    return self.program(*operands)
            if trace_state_clean():  # JAX reruns the function itself, since the program gave a NaN
                raise FloatingPointError(
                    f"the result of {name} has a NaN or an infinity (jax_debug_nans, jax_debug_infs)."
                )
            return _bind_sealed(function, operands)

        call_sealed.__name__ = call_sealed.__qualname__ = name
        self.program = jax.jit(call_sealed)
        self.owners = owners  # the communicators and reductions that must not be freed
        self.most = most  # the greatest rank or tag that each of its numbers may be
        self.last_use = next(_clock)

    def run(self, operands: Sequence[Any], numbers: Sequence[int]) -> Any:
        """Run the program for these arrays, ranks and tags, from the caller's site; return the operation's result."""
        sites.pass_caller_site(operands)
        if numbers:
            on_device = _copy_to_device(*numbers)
            if on_device.is_deleted():  # the user's program has deleted all arrays that it found
                _copy_to_device.cache_clear()
                on_device = _copy_to_device(*numbers)
            result = self.program(*operands, on_device)
        else:
            result = self.program(*operands)
        return result.join_operands(operands) if type(result) is _PartialResult else result


def _bind_sealed(function: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """Bind a function's jaxpr by ``sealed_p``; return its results, in a _PartialResult if some are operands."""
    jaxpr, result = jax.make_jaxpr(function, return_shape=True)(*operands)
    if isinstance(result, _RefusedCall):
        return result
    leaves, structure = jax.tree.leaves(operands), jax.tree.structure(result)
    *results, done = sealed_p.bind(*leaves, jaxpr=jaxpr, is_eager=True)
    is_awaited = not computes_results(jaxpr)
    given = {id(v): i for i, v in enumerate(jaxpr.jaxpr.invars)}
    outputs = [id(v) for v in jaxpr.jaxpr.outvars]
    if not is_awaited and given.keys().isdisjoint(outputs):
        return jax.tree.unflatten(structure, results)
    computed = [x for v, x in zip(outputs, results, strict=True) if v not in given]
    index = itertools.count()
    places = tuple(~given[v] if v in given else next(index) for v in outputs)
    return _PartialResult([*computed, done], structure, places, is_awaited)


_copy = jax.jit(lambda numbers: numbers)  # six times as fast as jax.device_put


@functools.lru_cache(_LIMIT)
def _copy_to_device(*numbers: int) -> jax.Array:
    with jax.transfer_guard_host_to_device("allow"), jax.disable_jit(False):  # these are no arrays of the user's
        return _copy(np.array(numbers, np.int32))


# All programs by key. Several threads use it at once, so what lists them copies it first, which runs no Python: a list
# of items, which are objects of the garbage collector, may let another thread run.
_programs: dict[_Key, _Program] = {}


def _find_program(key: _Key) -> _Program | None:
    """Return a key's program; None if there is none, or its communicator or reduction was freed: then drop it."""
    program = _programs.get(key)
    if program is not None:
        if program.owners and not all(map(is_alive, program.owners)):
            _programs.pop(key, None)
            return None
        program.last_use = next(_clock)
    return program


def _add_program(key: _Key, program: _Program) -> _Program:
    """Add a program unless the key has one, drop the least recently used beyond a limit; return the key's program."""
    while key not in _programs and len(_programs) >= _LIMIT:
        oldest, _ = min(_programs.copy().items(), key=lambda item: item[1].last_use)
        _programs.pop(oldest, None)
    return _programs.setdefault(key, program)


def _forget_freed() -> None:
    for key, program in _programs.copy().items():
        if not all(map(is_alive, program.owners)):
            _programs.pop(key, None)


when_freed.append(_forget_freed)


def _key_of_site() -> Any:
    """Return the part of a key that tells call sites apart: with reports the caller's site, else its packed leaves.

    A program contains the call site that compiled it and the description of packed leaves. So with reports each call
    site has programs of its own.
    """
    return sites.site_of_caller() if state.reports else sites.packed_of_caller()


# Operations


_PLAIN = {type(None), bool, int, float, str}  # the types of arguments that are entries of a key themselves
_INTEGERS = (int, np.int32, np.int64)


def _key_entries(values: Any) -> tuple[Any, ...]:
    taken = [int(x) if type(x) in _INTEGERS else x for x in values]
    return tuple((type(x), x if type(x) in _PLAIN else _STANDS_FOR[type(x)](x)) for x in taken)


# From an argument to its entry, by type; an operation with arguments of further types has no program.
_STANDS_FOR: dict[type, Callable[[Any], Any]] = {
    np.int32: int,
    np.int64: int,
    tuple: _key_entries,
    list: _key_entries,
    Shift: _key_entries,
    MPI.Op: MPI._handleof,
    MPI.Intracomm: lambda comm: None if is_default(comm) else MPI._handleof(comm),
    MPI.Cartcomm: MPI._handleof,
    MPI.Graphcomm: MPI._handleof,
    MPI.Distgraphcomm: MPI._handleof,
    # communicator_of refuses one that was freed, whose handle another may have.
    **dict.fromkeys(HASHABLE.values(), lambda comm: None if is_default(comm) else MPI._handleof(communicator_of(comm))),
}
# Types whose entries mean the same.
_ALIKE = {tuple: list, **dict.fromkeys([*HASHABLE, *HASHABLE.values()], MPI.Intracomm)}
# Ranks and tags, in the order that primitives give them in their operand (values.py).
_NUMBERS = ("dest", "recvtag", "tag", "sendtag", "source")
# From an operation's result, and its ranks and tags, where these were operands, to the result.
Finish = Callable[..., Any]


def _has_only_arrays(x: Any) -> bool:
    """Return True if a pytree can be a program's operand: JAX arrays alone, at least one, in a hashable structure."""
    leaves, structure = jax.tree.flatten(x)
    with contextlib.suppress(TypeError):
        hash(structure)
        return bool(leaves) and all(isinstance(leaf, jax.Array) for leaf in leaves)
    return False


def _program_of(function: Callable[..., Any], given: dict[str, Any], names: Sequence[str]) -> _Program:
    """Return a new program of an operation: its arguments ``names`` are one operand, the others are constants."""
    others = {name: value for name, value in given.items() if name not in names}
    owners = list[Comm | Reduction]()
    for value in (*others.values(), default_of_block.value):
        if isinstance(value, MPI.Comm) and not is_default(value):
            owners.append(comm_of(value))
        elif isinstance(value, MPI.Op) and (op := reduction_of(value)).is_user_made:
            owners.append(op)
    most = list[int]()
    for name in names:
        is_tag = "tag" in name
        most.append(MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) if is_tag else comm_of(others.get("comm")).size - 1)  # type: ignore[arg-type]

    def call_operation(*operands: Any) -> Any:
        """Return the operation's result for arrays and then an array of ranks and tags; a _RefusedCall if it raises."""
        arrays, numbers = (operands[:-1], operands[-1]) if names else (operands, ())
        try:
            return function(*arrays, **others, **{name: numbers[i] for i, name in enumerate(names)})
        except Exception:
            return _RefusedCall()

    return _Program(function.__name__, call_operation, owners, most)


def eager(arrays: int, finish: Finish | None = None) -> Callable[[F], F]:
    """Return a decorator by which eager calls, whose first ``arrays`` arguments are data, run compiled programs."""

    def decorate(function: F) -> F:
        """Return the operation: a call runs a kept compiled program, or ``function`` itself if JAX traces it."""
        code: Any = inspect.unwrap(function).__code__  # inspect.signature would take a while
        names = code.co_varnames[arrays : code.co_argcount + code.co_kwonlyargcount]
        places = {name: i for i, name in enumerate(_NUMBERS)} if set(_NUMBERS) & {*names, "more"} else {}

        def call_program(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            """Return an eager call's result by a kept compiled program; NotImplemented if traced, or if it has none."""
            if len(args) < arrays or not trace_state_clean() or nan.refuses_calls():
                return NotImplemented
            operands = args[:arrays]
            for x in operands:
                if not isinstance(x, jax.Array) and not _has_only_arrays(x):
                    return NotImplemented
            parts: list[Any] = [function, _key_of_site(), default_of_block.value]
            numbers: list[tuple[int, int]] = []
            for name, value in itertools.chain(zip(names, args[arrays:], strict=False), kwargs.items()):
                kind = type(value)
                if name in places and kind in _INTEGERS and value >= 0:
                    parts.append(name)
                    numbers.append((places[name], int(value)))
                elif kind in _PLAIN:
                    parts += (name, kind, value)
                    if name == "capacity" and value is not None:  # then counts are operands
                        return NotImplemented
                elif kind in _STANDS_FOR:
                    try:
                        parts += (name, _ALIKE.get(kind, kind), _STANDS_FOR[kind](value))
                    except KeyError:  # of an item
                        return NotImplemented
                elif isinstance(value, np.ndarray | jax.Array) and value.ndim == 1 and value.dtype.kind in "iu":
                    parts += (name, list, _key_entries(value.tolist()))
                else:
                    return NotImplemented
            key, values = tuple(parts), [value for _, value in sorted(numbers)] if numbers else ()
            program = known = _find_program(key)
            if program is None:
                others = {**dict(zip(names, args[arrays:], strict=False)), **kwargs}
                if len(others) < len(args) - arrays + len(kwargs):  # an argument too many, or given twice
                    return NotImplemented
                program = _program_of(function, others, [_NUMBERS[place] for place, _ in sorted(numbers)])
            if numbers and not all(map(operator.le, values, program.most)):
                return NotImplemented  # the operation refuses them
            result = program.run(operands, values)
            if known is None:
                _add_program(key, program)
            if type(result) is _RefusedCall:
                return NotImplemented
            return finish(result, *values) if finish and values else result

        @functools.wraps(function)
        def call_eager(*args: Any, **kwargs: Any) -> Any:
            """Run the call's compiled program, or else ``function``; pass exceptions through ``explain_error``."""
            try:  # which costs nothing
                refuse_in_fork()
                result = call_program(args, kwargs)
                return function(*args, **kwargs) if result is NotImplemented else result
            except Exception as e:
                explain_error(e, function.__name__, kwargs)
                raise

        call_eager.__module__ = PACKAGE
        return call_eager  # type: ignore[return-value]

    return decorate


# Primitives


def _owners_of(params: dict[str, Any]) -> list[Comm | Reduction]:
    """Return the communicators and user-made reductions among a primitive's parameters."""
    return [
        x for x in full_params(params).values() if isinstance(x, Comm) or (isinstance(x, Reduction) and x.is_user_made)
    ]


def call_eagerly(primitive: Primitive, *operands: Any, **params: Any) -> list[Any]:
    """Run a primitive outside of a trace, by a compiled program that is kept; fill its status object.

    Raises:
        FloatingPointError: in JAX's search for a NaN, which would make the call on one rank alone.
    """
    status = params.get("status")
    if isinstance(status, Status) and status.object is not None:
        # A status object is no part of the program: its content is one more result.
        *results, content = call_eagerly(primitive, *operands, **{**params, "status": STATUS_RESULT})
        status.fill_object(np.asarray(content).tobytes())
        return results
    if nan.refuses_calls():
        if state.nan is None:
            refused = (
                f"{primitive.name} is called outside of a compiled program while jax_debug_nans or jax_debug_infs is "
                "set. JAX makes such calls again on one rank to find a NaN, and mpixla cannot tell which"
            )
            advice = "Call it inside jax.jit, or turn the search off."
            raise FloatingPointError(refuse_without_hook("nan", refused, advice))
        raise FloatingPointError(
            "a result has a NaN or an infinity. Because jax_debug_nans or jax_debug_infs is set, JAX runs the function "
            f"again on this rank alone, operation by operation, to find it. {primitive.name} is not made again: the "
            "other ranks would take it for their next call. What the function computes before it has no fault; look at "
            "its result, and at what comes after it, with jax.debug.print."
        )
    refuse_in_fork()
    params, numbers = as_operand(params)
    key = primitive, _key_of_site(), *params.items()
    program = _find_program(key)
    if program is None:
        program = _add_program(
            key, _Program(primitive.name, functools.partial(primitive.bind, **params), _owners_of(params))
        )
    return program.run(operands, numbers)
