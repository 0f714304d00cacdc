"""Eager calls: an operation that is called with arrays runs as one compiled program, sealed (seal.py).

A program belongs to a function and to its arguments that are no arrays. JAX distinguishes the types of arrays and the
structures of pytrees. Ranks and tags of messages are one more operand, so all of them share a program. A program is
dropped when its communicator or reduction is freed.

``eager`` makes a program of a whole operation. ``call_eagerly`` makes one of a primitive, where JAX evaluates the rule
of a derivative or of a batch outside of programs, and where an operation has an argument that no program can have, such
as a status object.
"""

import functools
import inspect
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import jax
import numpy as np

from ..base.required import trace_state_clean
from ..base.state import state
from ..base.tracebacks import PACKAGE, explain_error
from ..base.words import refuse_without_hook
from ..checks import sites
from ..jaxprs.rewrite import lower_loops
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
from .values import CACHED_CALLS, as_operand, full_params

F = TypeVar("F", bound=Callable[..., Any])
_Key = tuple[Any, ...]

_clock = itertools.count()


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["computed"], meta_fields=["structure", "places", "is_awaited"]
)
@dataclass(frozen=True)
class _PartialResult:
    """The output of a program without the result's leaves that are operands: the computed leaves, and all places."""

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
        self,
        name: str,
        function: Callable[..., Any],
        owners: Sequence[Comm | Reduction],
        most: Mapping[str, int] = MappingProxyType({}),
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
        self.numbers = tuple(most)  # the ranks and tags that are its last operand, by name
        self.most = tuple(most.values())  # the greatest that each of them may be
        self.last_use = next(_clock)

    def run(self, operands: Sequence[Any], numbers: Sequence[int]) -> Any:
        """Run the program for these arrays, ranks and tags, from the caller's site; return the operation's result.

        NotImplemented for a rank or tag that is too large.
        """
        sites.pass_caller_site(operands)
        if numbers:
            on_device = _copy_to_device(self.most, *numbers)
            if on_device is None:
                return NotImplemented
            try:
                result = self.program(*operands, on_device)
            except RuntimeError:
                if not on_device.is_deleted():
                    raise
                _copy_to_device.cache_clear()  # the user's program has deleted all arrays that it found
                result = self.program(*operands, _copy_to_device(self.most, *numbers))
        else:
            result = self.program(*operands)
        return result.join_operands(operands) if type(result) is _PartialResult else result


def _bind_sealed(function: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """Trace a function, bind its jaxpr by ``sealed_p``, and return its pytree of results, or a _PartialResult.

    A _PartialResult if one of the results is an operand itself, which the caller puts into its place, or if no result
    is computed, so that the caller must wait for the call. A _RefusedCall if the trace has returned one.
    """
    jaxpr, result = jax.make_jaxpr(function, return_shape=True)(*operands)
    if isinstance(result, _RefusedCall):
        return result
    jaxpr = lower_loops(jaxpr)
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


@functools.lru_cache(CACHED_CALLS)
def _copy_to_device(most: Sequence[int], *numbers: int) -> jax.Array | None:
    """Return the numbers as one int32 array, kept for later calls; None if one is above its bound in ``most``."""
    if any(map(operator.gt, numbers, most)):
        return None
    with jax.transfer_guard_host_to_device("allow"), jax.disable_jit(False):  # these are no arrays of the user's
        return _copy(np.array(numbers, np.int32))


# All programs by key. Several threads use it at once, so _copy_programs comes before a loop over them.
_programs: dict[_Key, _Program] = {}


def _copy_programs() -> dict[_Key, _Program]:
    """Return a copy of ``_programs``; copy again if another thread has changed it meanwhile.

    A dict that has gaps is copied item by item, and the garbage collector may let another thread run between two.
    """
    while True:
        try:
            return _programs.copy()
        except RuntimeError:
            continue


def _find_program(key: _Key) -> _Program | None:
    """Return a key's program, now the last used; None if there is none, or an owner of it was freed: then drop it."""
    program = _programs.get(key)
    if program is not None:
        if program.owners and not all(map(is_alive, program.owners)):
            _programs.pop(key, None)
            return None
        program.last_use = next(_clock)
    return program


def _add_program(key: _Key, program: _Program) -> _Program:
    """Add a program unless the key has one, drop the least recently used beyond a limit; return the key's program."""
    while key not in _programs and len(_programs) >= CACHED_CALLS:
        oldest, _ = min(_copy_programs().items(), key=lambda item: item[1].last_use)
        _programs.pop(oldest, None)
    return _programs.setdefault(key, program)


def _forget_freed() -> None:
    for key, program in _copy_programs().items():
        if not all(map(is_alive, program.owners)):
            _programs.pop(key, None)


when_freed.append(_forget_freed)


# Operations


_INTEGERS = {int, np.int32, np.int64}


def _key_entries(values: Any) -> tuple[Any, ...]:
    """Return a sequence's items as entries of a key; raise KeyError for an item of a further type."""
    if _INTEGERS.issuperset(map(type, values)):
        return tuple(map(int, values))
    return tuple((type(x), x if type(x) is int else _ENTRIES[type(x)][1](x)) for x in values)


# By the type of an argument: the type that its entry in a key has with it, and the function from argument to entry.
# There are also integers, and arrays of integers in the place of a list. An operation with further types of arguments
# has no program.
_ENTRIES: dict[type, tuple[type, Callable[[Any], Any]]] = {
    type(None): (type(None), bool),
    **{kind: (kind, kind) for kind in (bool, float, str)},
    **dict.fromkeys((list, tuple), (list, _key_entries)),
    Shift: (Shift, _key_entries),
    MPI.Op: (MPI.Op, MPI._handleof),
    **dict.fromkeys(HASHABLE, (MPI.Comm, lambda comm: None if is_default(comm) else MPI._handleof(comm))),
    # communicator_of refuses one that was freed, whose handle another may have.
    **dict.fromkeys(
        HASHABLE.values(),
        (MPI.Comm, lambda comm: None if is_default(comm) else MPI._handleof(communicator_of(comm))),
    ),
}
# Ranks and tags, in the order that primitives give them in their operand (values.py).
_NUMBERS = dict.fromkeys(("dest", "recvtag", "tag", "sendtag", "source"))
# From an operation's result, and its ranks and tags, where these were operands, to the result.
Finish = Callable[..., Any]


_array_types: set[type] = set()  # since isinstance takes longer


def _is_operand(x: Any) -> bool:
    """Return True for a JAX array, whose type it notes, or a hashable pytree of one or more leaves, all JAX arrays."""
    if isinstance(x, jax.Array):
        _array_types.add(type(x))
        return True
    leaves, structure = jax.tree.flatten(x)
    try:
        hash(structure)
    except TypeError:
        return False
    return bool(leaves) and all(isinstance(leaf, jax.Array) for leaf in leaves)


def _program_of(function: Callable[..., Any], given: dict[str, Any], names: Sequence[str]) -> _Program:
    """Return a new program of an operation: its ranks and tags ``names`` are one operand, other arguments constants."""
    others = {name: value for name, value in given.items() if name not in names}
    owners = list[Comm | Reduction]()
    for value in (*others.values(), default_of_block.value):
        if isinstance(value, MPI.Comm) and not is_default(value):
            owners.append(comm_of(value))
        elif isinstance(value, MPI.Op) and (op := reduction_of(value)).is_user_made:
            owners.append(op)
    most = dict[str, int]()
    for name in names:
        is_tag = "tag" in name
        most[name] = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) if is_tag else comm_of(others.get("comm")).size - 1  # type: ignore[assignment]

    def call_operation(*operands: Any) -> Any:
        """Return the operation's result for arrays and then an array of ranks and tags; a _RefusedCall if it raises."""
        arrays, numbers = (operands[:-1], operands[-1]) if names else (operands, ())
        try:
            return function(*arrays, **others, **{name: numbers[i] for i, name in enumerate(names)})
        except Exception:
            return _RefusedCall()

    return _Program(function.__name__, call_operation, owners, most)


def eager(arrays: int, finish: Finish | None = None) -> Callable[[F], F]:
    """Return a decorator: eager calls run kept compiled programs, with the first ``arrays`` arguments as operands."""

    def decorate(function: F) -> F:
        """Return the operation: a call runs a kept compiled program, or ``function`` itself if JAX traces it."""
        code: Any = inspect.unwrap(function).__code__  # inspect.signature would take a while
        names = code.co_varnames[arrays : code.co_argcount + code.co_kwonlyargcount]

        def call_program(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            """Return an eager call's result by a kept compiled program; NotImplemented if traced, or if it has none."""
            if len(args) < arrays or not trace_state_clean() or nan.refuses_calls():
                return NotImplemented
            operands = args[:arrays]
            for x in operands:
                if type(x) not in _array_types and not _is_operand(x):
                    return NotImplemented
            given = kwargs
            if len(args) > arrays:
                given = dict(zip(names, args[arrays:]), **kwargs)  # noqa: B905  # strict takes longer
                if len(given) < len(args) - arrays + len(kwargs):  # an argument too many, or given twice
                    return NotImplemented
            parts: list[Any] = [function, sites.key_of_caller(), default_of_block.value, *given]
            numbers: dict[str, int] = {}
            try:
                for name, value in given.items():
                    kind = type(value)
                    if kind in _ENTRIES:
                        stands_for, entry = _ENTRIES[kind]
                        parts += (stands_for, entry(value))
                    elif kind in _INTEGERS:
                        if name == "capacity":  # then counts are operands
                            return NotImplemented
                        if name in _NUMBERS and value >= 0:
                            numbers[name] = int(value)
                            parts.append(None)
                        else:
                            parts += (int, int(value))
                    elif isinstance(value, np.ndarray | jax.Array) and value.ndim == 1 and value.dtype.kind in "iu":
                        parts += (list, _key_entries(value.tolist()))
                    else:
                        return NotImplemented
            except KeyError:  # of an item
                return NotImplemented
            key = tuple(parts)
            program = known = _find_program(key)
            if program is None:
                program = _program_of(function, given, [name for name in _NUMBERS if name in numbers])
            values = [*map(numbers.get, program.numbers)] if numbers else ()
            result = program.run(operands, values)  # type: ignore[arg-type]  # all are there
            if known is None:
                _add_program(key, program)
            if result is NotImplemented or type(result) is _RefusedCall:
                return NotImplemented
            return finish(result, *values) if finish and values else result

        @functools.wraps(function)
        def call_eager(*args: Any, **kwargs: Any) -> Any:
            """Run the call's compiled program, or else ``function``; pass exceptions through ``explain_error``."""
            try:  # which costs nothing
                if state.is_forked:
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
    """Run a primitive outside of a trace by a kept compiled program, fill its status object, and return its results.

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
    key = primitive, sites.key_of_caller(), *params.items()
    program = _find_program(key)
    if program is None:
        program = _add_program(
            key, _Program(primitive.name, functools.partial(primitive.bind, **params), _owners_of(params))
        )
    return program.run(operands, numbers)
