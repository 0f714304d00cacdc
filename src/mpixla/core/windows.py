"""Windows: messages that are boxes of arrays, read where they lie and written where they belong.

Programs take a slice, send it, and put the message that comes into an array (``x.at[0].set(received)``). For each of
these XLA has a small kernel, and a copy. So, when a program is sealed, such a slice becomes a part of the call that
sends it, and such an update a part of the call that receives it: the handler takes the whole array, and the box. The
calls stay the same, and in the same order; so the other ranks need not do likewise.

A window must never cost anything. A box is sent as a window only from an array that is in memory anyway, and stays
there: an argument, the result of a call or a loop, or an array that something behind the message uses as a whole. A
message is received in place only if nothing needs the array as it was, and the array is kept afterwards
(``Graph.kept``). All other slices and updates stay as they are.

A message that is only sent has its array as a result, too, which all that is behind it uses: else XLA may compute with
the array first, since a send has no result that anything waits for, and the rank that receives waits for that.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import mlir

from ..base import settings
from ..base.state import state
from ..jaxprs.boxes import LOOPS, Box, Graph, has_same_items, is_view, writes_box, written_value
from ..jaxprs.effect import ordered
from ..jaxprs.rewrite import is_literal, map_jaxprs, replace_parts, scan_counts
from ..jaxprs.spmd import Primitive
from ..mpi import native
from ..mpi.comm import NO_STATUS
from .primitive import call_handler
from .values import OPERAND, has_values, status_types

_FILL_BYTES = 16  # of the attribute "fill"
_USERS = 256  # equations that use one array: of more the arrays of a message are not looked at, which would take long

# For each primitive of a message the primitive of the same message with windows. Its operands are the arrays, the
# numbers at run time if it has any, and the indices of boxes that are known at run time only: None in its parameters.
_windowed: dict[Any, Primitive] = {}
_BEGINS = ("recvbegin", "sendbegin")


class _WindowedOperands(NamedTuple):
    arrays: list[Any]
    numbers: list[Any]  # at run time: none, or one operand
    begins: list[Any]  # of both boxes


def _split_operands(operands: Sequence[Any], params: dict[str, Any]) -> _WindowedOperands:
    """Return a windowed message's operands as arrays, numbers known at run time, and first indices of boxes."""
    begins = sum(i is None for name in _BEGINS for i in params.get(name, ()))
    arrays = len(operands) - begins - has_values(params)
    return _WindowedOperands(
        [*operands[:arrays]], [*operands[arrays : len(operands) - begins]], [*operands[arrays + has_values(params) :]]
    )


def _abstract_eval(*operands: ShapedArray, gives: bool, **params: Any) -> tuple[list[ShapedArray], set[Any]]:
    if not gives:
        return [], {ordered}
    into = _split_operands(operands, params).arrays[-1]
    return [into, *status_types(into, params.get("status", NO_STATUS))], {ordered}


def _join_numbers(params: dict[str, Any], numbers: Any, begins: Sequence[Any]) -> Any:
    """Return all numbers at run time as one array, in the order of the attributes' names (values.py)."""
    parts, used, next_begin = [], 0, iter(begins)
    for name in sorted(params):
        if name in _BEGINS and None in params[name]:
            parts += [jnp.ravel(next(next_begin) if i is None else i) for i in params[name]]
        elif params[name] == OPERAND:
            parts.append(numbers[0][used : used + 1])
            used += 1
    return jnp.concatenate(parts)


def _lower(row: native.Op, ctx: Any, *operands: Any, gives: bool, **params: Any) -> Sequence[Any]:
    """Lower a message with windows to its row's custom call; ``gives``: its last array is the first result, too."""
    given, types = _split_operands(operands, params), _split_operands(ctx.avals_in, params)
    passed, avals = [*given.arrays, *given.numbers], [*types.arrays, *types.numbers]
    if given.begins:

        def join_operands(*xs: Any) -> Any:
            split = _split_operands(xs, params)
            return _join_numbers(params, split.numbers, split.begins)

        joined = jax.eval_shape(join_operands, *ctx.avals_in)
        aval = ShapedArray(joined.shape, joined.dtype)
        numbers = mlir.lower_fun(join_operands, multiple_results=False)(ctx.replace(avals_out=[aval]), *operands)
        passed, avals = [*given.arrays, *numbers], [*types.arrays, aval]
        params |= {name: OPERAND for name in _BEGINS if None in params.get(name, ())}
    inner = ctx.replace(avals_in=avals)
    is_in_place = gives and ("recvsize" in params or row.name == "send")
    aliases = {len(given.arrays) - 1: 0} if is_in_place else {}
    results = call_handler(row, inner, passed, range(len(passed)), gives, params, aliases)
    ctx.set_tokens_out(inner.tokens_out)
    return results


def use_windows(primitive: Primitive) -> None:
    """Register for a primitive, named as its row, the one with windows that sealed programs use for its messages."""
    row, windowed = native.ops[primitive.name], Primitive(primitive.name)
    windowed.def_effectful_abstract_eval(_abstract_eval)
    mlir.register_lowering(windowed, lambda ctx, *xs, **params: _lower(row, ctx, *xs, **params), cacheable=False)
    _windowed[primitive] = windowed


class _ReceiveBox(NamedTuple):
    """An array into which a message is received."""

    box: Box
    fill: Any  # the value of items that do not come, or None: they stay as they are
    result: Any  # the array with the message
    dropped: list[int]  # places of equations that the call replaces
    moved: list[int]  # places of updates that come behind the call instead of before it, in their order
    hoisted: list[int]  # places of equations that come before it instead of behind it: indices known at run time


class _SendBox(NamedTuple):
    """An array from which a message is sent."""

    array: Any
    box: Box


class _JaxprWindows:
    """A jaxpr whose messages become messages with windows."""

    def __init__(self, eqns: Sequence[Any], results: Sequence[Any], in_memory: set[Any], is_free: set[Any]) -> None:
        """Read a jaxpr's equations and results.

        ``in_memory``: the arguments and constants that are in memory as a whole; ``is_free``: the arguments that
        nothing but this jaxpr needs.
        """
        self._graph = Graph(eqns, results)
        self._in_memory = in_memory
        self._is_free = is_free
        # The versions of an array, for each that a message was received into: the next one, and that before, with the
        # box in which they differ.
        self._after: dict[Any, Box] = {}
        self._before: dict[Any, Box] = {}

    def rewrite_eqns(self) -> list[Any] | None:
        """Return the equations with windows in their messages; None if no message gets any."""
        calls = [i for i, eqn in enumerate(self._graph.eqns) if eqn.primitive in _windowed]
        uses = [self._use_windows(i, self._graph.eqns[i]) for i in calls]
        return self._graph.remaining_eqns() if any(uses) else None

    def _use_windows(self, place: int, eqn: Any) -> bool:
        """Replace the equation of the message at ``place`` by one with windows; return False if it gets none."""
        sends, receives = eqn.primitive.name != "recv", eqn.primitive.name != "send"
        target = self._find_target(place, eqn, eqn.invars[sends]) if receives else None
        source = self._find_source(place, eqn.invars[0], target) if sends else None
        if target is None and source is None:
            return False
        params, begins = dict(eqn.params), []
        arrays, values = list(eqn.invars[: sends + receives]), list(eqn.invars[sends + receives :])
        if target:
            arrays[sends:] = [target.box.array]
            begins += _add_box(params, "recv", target.box)
            if target.fill is not None:
                params["fill"] = _fill_of(target.fill)
        if source:
            arrays[:1] = [] if target and source.array is target.box.array else [source.array]
            begins += _add_box(params, "send", source.box)
        params["gives"] = receives or (source is not None and self._is_passed_on(place, source.array))
        new = eqn.replace(primitive=_windowed[eqn.primitive], invars=[*arrays, *values, *begins], params=params)
        if target:
            self._receive_in_place(place, new, target)
        elif source and params["gives"] and not receives:
            self._pass_on(place, new, source.array)
        else:
            self._graph.replace_eqn(place, new)
        return True

    # Receiving

    def _find_target(self, place: int, eqn: Any, template: Any) -> _ReceiveBox | None:
        """Return where a call can receive in place, and the equations to drop and move; None if it cannot."""
        graph, received, dropped = self._graph, eqn.outvars[0], []
        at = graph.only_user(received)
        while at is not None and is_view(graph.eqns[at]):
            dropped.append(at)
            received = graph.eqns[at].outvars[0]
            at = graph.only_user(received)
        if at is None or not writes_box(graph.eqns[at]):
            return None
        update = graph.eqns[at]
        box, result = graph.written_box(update), update.outvars[0]
        if box is None or written_value(update) is not received or sum(x is received for x in update.invars) != 1:
            return None
        if not has_same_items(box.size, received.aval.shape) or result not in graph.kept:
            return None
        hoisted: list[int] = []
        for i in box.begin:
            more = [] if type(i) is int else graph.scalars_behind(i, place)
            if more is None:
                return None
            hoisted += [i for i in more if i not in hoisted]
        # Updates of other boxes that come before it may come behind it.
        user = at
        moved: list[int] = []
        while graph.place_of_maker(box.array) > place:
            user = int(graph.place_of_maker(box.array))  # arrays are not hoisted
            other = graph.written_box(graph.eqns[user])
            if other is None or graph.only_user(box.array) is None or not other.is_apart_from(box):
                return None
            moved.insert(0, user)
            box = box._replace(array=other.array)
        if not self._is_free_behind(place, user, eqn, box):
            return None
        fill = graph.value_of(template)
        if fill is None:
            kept = graph.box_of(template)
            if kept is None or not kept.is_same_as(box) or not self._is_unchanged(kept, box.array):
                return None
        return _ReceiveBox(box, fill, result, [*dropped, at], moved, hoisted)

    def _is_free_behind(self, place: int, update: int, call: Any, box: Box) -> bool:
        """Return True if a call at a place may write into a box of its array: only ``update`` needs the old items."""
        graph, array = self._graph, box.array
        if graph.place_of_maker(array) < 0 and array not in self._is_free:
            return False
        if len(graph.users[array]) > _USERS or any(graph.view_of(atom) is array for atom in call.invars):
            return False
        for user in graph.users[array]:
            if user == update:
                continue
            if user == graph.end:
                return False
            eqn = graph.eqns[user]
            read = graph.read_box(eqn)
            if user > place and (read is None or not read.is_apart_from(box)):
                return False
            if user < place and eqn.primitive not in _windowed.values():
                for result in eqn.outvars:
                    if not self._is_message_behind(place, result):
                        return False
        return True

    def _is_message_behind(self, place: int, variable: Any) -> bool:
        """Return True if only messages use a variable or a view of it behind a place, and it is no result."""
        graph = self._graph
        users = graph.users.get(variable, ())
        if len(users) > _USERS or graph.end in users:
            return False
        for user in users:
            eqn = graph.eqns[user]
            if is_view(eqn):
                if not self._is_message_behind(place, eqn.outvars[0]):
                    return False
            elif user > place and eqn.primitive not in _windowed:
                return False
        return True

    def _is_unchanged(self, box: Box, array: Any) -> bool:
        """Return True if ``array`` is a version of the box's array that has the same items in the box."""
        while array is not box.array:
            before = self._before.get(array)
            if before is None or not before.is_apart_from(box):
                return False
            array = before.array
        return True

    def _receive_in_place(self, place: int, call: Any, target: _ReceiveBox) -> None:
        """Replace a call, and the equations that put its message into an array, by a call that receives in place."""
        graph, old = self._graph, target.box.array
        for at in target.dropped:
            graph.replace_eqn(at, None)
        graph.hoist_eqns(target.hoisted, place)
        # The updates that come behind it now: each takes the result of what was behind it.
        results = [*(graph.eqns[at].outvars[0] for at in target.moved), target.result]
        for i, at in enumerate(target.moved):
            eqn = graph.eqns[at]
            graph.replace_eqn(at, eqn.replace(invars=[results[i], *eqn.invars[1:]], outvars=[results[i + 1]]))
        new = results[0]
        for user in [user for user in graph.users[old] if user > place]:
            eqn = graph.eqns[user]
            graph.replace_eqn(user, eqn.replace(invars=[new if atom is old else atom for atom in eqn.invars]))
        graph.replace_eqn(place, call.replace(outvars=[new, *call.outvars[1:]]))
        graph.kept.update((new, old))
        self._after[old] = target.box._replace(array=new)
        self._before[new] = target.box

    # Sending

    def _find_source(self, place: int, sent: Any, target: _ReceiveBox | None) -> _SendBox | None:
        """Return the box that a call can send from its array, in place of the slice ``sent``; None for no box."""
        box = self._graph.box_of(sent)
        if box is None:
            return None
        if target and self._is_unchanged(box, target.box.array):
            return _SendBox(target.box.array, box)
        array = box.array
        while (after := self._after.get(array)) and after.is_apart_from(box):
            array = after.array
        if after or (target and array is target.box.array) or not self._stays_in_memory(place, array):
            return None
        return _SendBox(array, box)

    def _is_passed_on(self, place: int, array: Any) -> bool:
        """Return True if a call that sends from an array is to have the array as its result, for all that is behind it.

        Else XLA may put the call off behind computations that use the array, and the other rank waits for these. The
        array must be made in this jaxpr, and nothing but messages before the call may read it.
        """
        graph = self._graph
        users = graph.users[array]
        if graph.place_of_maker(array) < 0 or len(users) > _USERS or not any(user > place for user in users):
            return False
        before = [graph.eqns[user] for user in users if user < place]
        others = [eqn for eqn in before if eqn.primitive not in _windowed.values()]
        # Only the message itself uses its slice, which the window replaces.
        return all(self._is_message_behind(-1, v) for eqn in others for v in eqn.outvars)

    def _pass_on(self, place: int, call: Any, array: Any) -> None:
        """Replace a call that sends from an array by ``call``, whose result all equations behind it use instead."""
        graph = self._graph
        old, nothing = graph.split_variable(array, place), (0,) * array.aval.ndim
        graph.replace_eqn(place, call.replace(invars=[old, *call.invars[1:]], outvars=[array]))
        graph.kept.update((array, old))
        if before := self._before.pop(array, None):
            self._before[old] = before
            self._after[before.array] = self._after[before.array]._replace(array=old)
        self._after[old], self._before[array] = Box(array, nothing, nothing), Box(old, nothing, nothing)

    def _stays_in_memory(self, place: int, array: Any) -> bool:
        """Return True if an array is in memory as a whole when a call runs, whether the call needs it or not."""
        graph = self._graph
        maker = graph.maker_of(array)
        if maker is None:
            is_there = array in self._in_memory
        else:
            is_there = maker.primitive in LOOPS or isinstance(maker.primitive, Primitive)
        if len(graph.users[array]) > _USERS or not (is_there or array in graph.kept):
            return False
        whole = [user for user in graph.users[array] if user == graph.end or not graph.read_box(graph.eqns[user])]
        before = [graph.eqns[user] for user in whole if user < place]
        reads = [eqn for eqn in before if eqn.primitive in _windowed or eqn.primitive in _windowed.values()]
        if len(whole) > len(before):  # something behind the call needs it, too
            return all(eqn in reads or not _may_overwrite(eqn) for eqn in before)
        return maker is None and is_there and len(reads) == len(before)


def _may_overwrite(eqn: Any) -> bool:
    """Return True if XLA may give a result of an equation the memory of an operand of the same type."""
    return (
        bool(eqn.effects)
        or eqn.primitive in LOOPS
        or eqn.primitive.name.startswith(("scatter", "dynamic_update_slice", "jit", "pjit"))
    )


def _add_box(params: dict[str, Any], which: str, box: Box) -> list[Any]:
    """Set a box's ``which`` ("send", "recv") begin and size in ``params``, None where traced; return traced begins."""
    params[f"{which}begin"] = tuple(i if type(i) is int else None for i in box.begin)
    params[f"{which}size"] = tuple(box.size)
    return [i for i in box.begin if type(i) is not int]


def _fill_of(value: Any) -> tuple[int, ...]:
    """Return a NumPy scalar's bytes as a tuple of 64-bit numbers, filled up, for the attribute ``fill``."""
    return tuple(np.frombuffer(value.tobytes().ljust(_FILL_BYTES, b"\0"), np.int64).tolist())


class _ProgramWindows:
    """The use of windows in one program."""

    def __init__(self) -> None:
        # By jaxpr, and by what is known of its arguments: the result, and the jaxpr, which must live as long.
        self._seen: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def rewrite_jaxpr(self, jaxpr: Any, in_memory: tuple[bool, ...], is_free: tuple[bool, ...]) -> Any:
        """Return a jaxpr with windows, cached by jaxpr and flags of its arguments; the same object if it has none."""
        if ordered not in jaxpr.effects:
            return jaxpr
        key = id(jaxpr), in_memory, is_free
        if key not in self._seen:
            self._seen[key] = self._rewrite_uncached(jaxpr, in_memory, is_free), jaxpr
        return self._seen[key][0]

    def _rewrite_uncached(self, jaxpr: Any, in_memory: tuple[bool, ...], is_free: tuple[bool, ...]) -> Any:
        """Return a jaxpr with windows in its messages and in inner jaxprs; the same object if nothing has changed."""
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        free = {v for v, yes in zip(inner.invars, is_free, strict=True) if yes}
        eqns = self._with_inner_jaxprs(inner, {*inner.invars, *inner.constvars} - free)
        if any(eqn.primitive in _windowed for eqn in eqns):
            memory = {v for v, yes in zip(inner.invars, in_memory, strict=True) if yes}
            eqns = _JaxprWindows(eqns, inner.outvars, memory | {*inner.constvars}, free).rewrite_eqns() or eqns
        same = len(eqns) == len(inner.eqns) and all(new is old for new, old in zip(eqns, inner.eqns, strict=True))
        return jaxpr if same else replace_parts(jaxpr, eqns=eqns)

    def _with_inner_jaxprs(self, jaxpr: Any, bound: set[Any]) -> list[Any]:
        """Return the equations, with windows in the jaxprs of each. ``bound``: variables that others need, too."""
        eqns = list(jaxpr.eqns)
        # The calls themselves have no jaxprs.
        outer = [i for i, eqn in enumerate(eqns) if ordered in eqn.effects and not isinstance(eqn.primitive, Primitive)]
        if not outer:
            return eqns
        last = {atom: i for i, eqn in enumerate(eqns) for atom in eqn.invars if not is_literal(atom)}
        last.update((atom, len(eqns)) for atom in jaxpr.outvars if not is_literal(atom))

        def is_last_use(i: int, atom: Any) -> bool:
            """Return True if operand ``atom`` is a variable, used once by equation ``i`` and by nothing behind."""
            is_variable = not is_literal(atom)
            once = sum(x is atom for x in eqns[i].invars) == 1
            return is_variable and once and atom not in bound and last[atom] == i

        for i in outer:
            eqns[i] = self._rewrite_inner_jaxprs(eqns[i], [is_last_use(i, atom) for atom in eqns[i].invars])
        return eqns

    def _rewrite_inner_jaxprs(self, eqn: Any, ends: list[bool]) -> Any:
        """Return an equation with windows in its jaxprs, not in shard_map's. ``ends``: operands not needed later."""
        params, is_loop = eqn.params, eqn.primitive in LOOPS
        if eqn.primitive.name == "shard_map":
            return eqn

        def rewrite_inner(jaxpr: Any) -> Any:
            """Return an inner jaxpr with windows, by which of its arguments are in memory or needed by nothing else."""
            n = len(getattr(jaxpr, "jaxpr", jaxpr).invars)
            in_memory, is_free = (is_loop,) * n, tuple(ends)
            if eqn.primitive is jax.lax.scan_p:
                first, carried = scan_counts(params)
                in_memory = tuple(i < first + carried for i in range(n))
                is_free = tuple(i >= first for i in range(n))
            elif eqn.primitive is jax.lax.while_p:
                constants = params["body_nconsts"] if jaxpr is params["body_jaxpr"] else params["cond_nconsts"]
                is_free = tuple(i >= constants and jaxpr is params["body_jaxpr"] for i in range(n))
            elif eqn.primitive is jax.lax.cond_p:
                is_free = is_free[1:]
            if len(is_free) != n:
                is_free = (False,) * n
            return self.rewrite_jaxpr(jaxpr, in_memory, is_free)

        inside = map_jaxprs(rewrite_inner, params)
        return eqn if inside is params else eqn.replace(params=inside)


def rewrite_program(jaxpr: Any) -> Any:
    """Return a closed jaxpr, a whole program for the host, with windows; unchanged if ``MPIXLA_WINDOWS=0``."""
    if not settings.is_on(settings.WINDOWS, otherwise=True):
        return jaxpr
    all_of = (True,) * len(jaxpr.jaxpr.invars)
    return _ProgramWindows().rewrite_jaxpr(jaxpr, all_of, all_of)


state.windows = rewrite_program
