"""Everything that mpixla takes from JAX beyond its documented API, in one place, with the reason for each.

``jax.interpreters`` is public but less stable than ``jax`` itself; ``jax._src`` is private.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import jax

# Where programs are compiled, or found in the compilation cache; see below.
from jax._src import compiler as _compiler

# Whether jax.shard_map keeps track of what varies between devices; JAX says so to nobody.
from jax._src import config as _config

# The class of primitives, which jax.extend.core has too, but importing that takes as long as all of mpixla (it imports
# Pallas); JAX's one token type, which jax.ffi recognizes by identity; the trace that is going on, and the one that
# stands for none; the constants of a program.
from jax._src import core as _core

# The set of tokens that JAX hands from one dispatch to the next; see RuntimeTokenSet below.
from jax._src import dispatch as _dispatch

# The class of effects and the registries of their types: JAX has no public way to declare an ordered effect, and
# without one XLA may reorder the communication inside a program.
from jax._src import effects as _effects

# Which frames of a traceback are the user's: JAX names them in what it compiles, and mpixla in reports.
from jax._src import source_info_util as _source_info

# Which frames an exception's traceback shows: JAX leaves out its own.
from jax._src import traceback_util as _traceback_util

# The next implementation of jax.checkpoint; see below.
from jax._src.ad_checkpoint import RematTraced as _NextCheckpoint

# What reverse mode keeps for later, and what it takes out of loops; see below.
from jax._src.interpreters import partial_eval as _partial_eval

# Executables that were compiled ahead of time, and where every program is lowered; see below.
from jax._src.interpreters import pxla as _pxla

# The functions that take it out of a scan, and the one that lowers a while loop.
from jax._src.lax.control_flow import loops as _loops

# Whether JAX has started: asking in public starts it.
from jax._src.xla_bridge import backends_are_initialized as jax_has_started
from jax.core import ShapedArray
from jax.errors import JaxRuntimeError
from jax.interpreters import mlir
from jax.lax import while_p

__all__ = [
    "CommunicationEffect",
    "Primitive",
    "ShapedArray",
    "before_first_execution",
    "exclude_from_user_frames",
    "forget_tokens",
    "frames_of",
    "hide_own_frames",
    "in_place_of",
    "is_user_file",
    "jax_has_started",
    "keep_sharded_tokens_out_of_cache",
    "looks_for_nan",
    "lower_while",
    "manual_axes",
    "mlir",
    "ordered",
    "rewrite_programs",
    "rewrite_where_hidden",
    "seal_programs",
    "take_turns",
    "token_aval",
    "trace_state_clean",
    "tracked_axes",
    "vary",
    "varying_axes",
    "when_failed",
    "while_p",
]

is_user_file = _source_info.is_user_filename
exclude_from_user_frames = _source_info.register_exclusion


_traceback_util.register_exclusion(str(Path(__file__).parents[1]))


def hide_own_frames(e: Exception) -> None:
    """Leaves out of an exception's traceback what is not the user's, as JAX does, unless the user wants to see it."""
    mode = _traceback_util._filtering_mode()
    if mode == "off" or e.__traceback__ is None or _traceback_util._is_under_reraiser(e):
        return  # JAX does it where the exception leaves its functions
    if mode == "tracebackhide":
        _traceback_util._add_tracebackhide_to_hidden_frames(e.__traceback__)
    else:
        e.with_traceback(_traceback_util.filter_traceback(e.__traceback__))


def frames_of(traceback: Any) -> Iterator[tuple[CodeType, int]]:
    """The functions of a traceback as JAX keeps it for a traced call, and the lines in them, the innermost first."""
    if traceback is not None:
        for code, instruction in zip(*traceback.raw_frames(), strict=True):
            yield code, traceback.code_addr2line(code, instruction)


def in_place_of(eqn: Any) -> Any:
    """A context in which equations are traced as if they came from the user's line that this one came from."""
    return _source_info.user_context(eqn.source_info.traceback, name_stack=eqn.source_info.name_stack)


class CommunicationEffect(_effects.Effect):
    """Marks a computation that communicates: JAX keeps such computations, and keeps them in program order."""

    def __repr__(self) -> str:
        return "MPI"

    # There is one such effect: jax.export writes its type, and makes an equal one where the program is loaded.

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


ordered = CommunicationEffect()

# The type of the values that carry order.
token_aval = _core.abstract_token

_current_trace, _no_trace = _core.trace_state_strong_ref, _core.eval_trace


def trace_state_clean() -> bool:
    """Whether nothing is being traced or transformed: JAX's function of this name, in a fifth of the time.

    Each call of a sealed program and each eager operation asks, and takes a few microseconds in all.
    """
    return _current_trace.value is _no_trace


# Inside jax.shard_map. JAX tracks in the types over which axes of the mesh a value differs between devices, unless
# check_vma=False, and from that derives what reverse mode has to add up.


def manual_axes() -> frozenset[str]:
    """The axes of the mesh of the ``jax.shard_map`` that is being traced; none outside of one."""
    return frozenset(jax.sharding.get_abstract_mesh().manual_axes)


def tracked_axes() -> frozenset[str]:
    """Those over which the types say that values vary."""
    return manual_axes() if _config._check_vma.value else frozenset()


def varying_axes(aval: Any) -> frozenset[str]:
    """The axes over which a value of this type varies."""
    mat = getattr(aval, "mat", None)
    return mat.varying if mat is not None else frozenset()


def vary(x: Any, axes: frozenset[str]) -> Any:
    """``x`` as a value that varies over these axes as well."""
    missing = axes - varying_axes(jax.typeof(x))
    return jax.lax.pcast(x, tuple(missing), to="varying") if missing else x


def _with_varying(aval: Any, axes: frozenset[str]) -> Any:
    if not isinstance(aval, ShapedArray) or varying_axes(aval) == axes:
        return aval
    mesh, sharding = jax.sharding.get_abstract_mesh(), aval.sharding
    if sharding.mesh.empty:
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*[None] * aval.ndim))
    return aval.update(sharding=sharding, manual_axis_type=aval.mat.update(varying=axes))


class Primitive(_core.Primitive):
    """JAX's primitives, of which each device inside ``jax.shard_map`` takes and gives its own values.

    ``replicates(params)`` says that the results are the same on all devices, ``takes_replicated`` that operands are.
    """

    replicates: Callable[[dict[str, Any]], bool] = staticmethod(lambda params: False)
    takes_replicated = False

    def bind(self, *operands: Any, **params: Any) -> Any:
        """Binds it to operands that vary."""
        if not self.takes_replicated and not trace_state_clean() and (axes := tracked_axes()):
            operands = tuple(vary(x, axes) for x in operands)
        return super().bind(*operands, **params)

    def def_abstract_eval(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Defines the results' types."""

        def typed(*operands: Any, **params: Any) -> Any:
            return self._typed(rule(*operands, **params), params)

        super().def_abstract_eval(typed)
        return rule

    def def_effectful_abstract_eval(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Defines the results' types, and the effects."""

        def typed(*operands: Any, **params: Any) -> Any:
            results, effects = rule(*operands, **params)
            return self._typed(results, params), effects

        super().def_effectful_abstract_eval(typed)
        return rule

    def _typed(self, results: Any, params: dict[str, Any]) -> Any:
        """The types of the results, or of the one that there is."""
        if not self.multiple_results:
            return _with_varying(results, axes) if (axes := tracked_axes()) else results
        if axes := tracked_axes():
            axes = frozenset() if self.replicates(params) else axes
            return [_with_varying(aval, axes) for aval in results]
        return list(results)


for _registry in (
    mlir.lowerable_effects,
    _effects.ordered_effects,
    # JAX itself would refuse an ordered effect on several devices with a message about its internals; our
    # lowering rule refuses it with one about what to do.
    _effects.shardable_ordered_effects,
    _effects.control_flow_allowed_effects,
    _effects.custom_derivatives_allowed_effects,
    _effects.remat_allowed_effects,
):
    _registry.add_type(CommunicationEffect)


_new_recipe = _partial_eval.new_eqn_recipe


def _new_kept_recipe(
    trace: Any, inputs: Any, outputs: Any, primitive: Any, params: Any, effects: Any, *rest: Any
) -> Any:
    """Keeps equations that communicate, also where nobody uses their results.

    Else reverse mode drops, inside remat, what leads to no result on this rank: the other ranks would wait for it. JAX
    has a registry of effects for that (``partial_eval_kept_effects``), but not for checkpoints and branches.
    """
    recipe = _new_recipe(trace, inputs, outputs, primitive, params, effects, *rest)
    if ordered in effects:
        trace.effect_handles.append(_partial_eval.EffectHandle(inputs, recipe))
    return recipe


_partial_eval.new_eqn_recipe = _new_kept_recipe  # type: ignore[assignment]


_process_primitive = _partial_eval.JaxprTrace.process_primitive
_hoisting = threading.local()  # `depth`: how many of the functions below are running


def _process_primitive_in_loop(trace: Any, primitive: Any, tracers: Any, params: Any) -> Any:
    """Keeps in its loop, in a derivative, what communicates.

    JAX takes out of a ``scan`` what depends on nothing that changes, as a receive into a constant does, and computes it
    once, although it has an effect. The other rank sends once in each iteration.
    """
    if not getattr(_hoisting, "depth", 0):
        return _process_primitive(trace, primitive, tracers, params)
    inputs = [trace.to_jaxpr_tracer(t) for t in tracers]
    avals, effects = primitive.abstract_eval(*(t.aval for t in inputs), **params)
    if ordered not in effects:
        return _process_primitive(trace, primitive, tracers, params)
    inputs = [trace.instantiate_const(t) for t in inputs]
    unknown = _partial_eval.PartialVal.unknown
    outputs = [
        _partial_eval.JaxprTracer(trace, unknown(aval), None)
        for aval in (avals if primitive.multiple_results else [avals])
    ]
    recipe = _new_kept_recipe(trace, inputs, outputs, primitive, params, effects, _source_info.current())
    for output in outputs:
        output.recipe = recipe
    return outputs if primitive.multiple_results else outputs[0]


def _custom_in_loop(process: Callable[..., Any]) -> Callable[..., Any]:
    """Has a call of a custom_jvp or custom_vjp function go through the above, by a jit, which shows what is inside."""

    @functools.wraps(process)
    def call(trace: Any, primitive: Any, *args: Any, **options: Any) -> Any:
        if not getattr(_hoisting, "depth", 0):
            return process(trace, primitive, *args, **options)
        *functions, tracers = args
        with _core.set_current_trace(trace):
            return jax.jit(lambda *xs: primitive.bind(*xs, subfuns=tuple(functions), **options))(*tracers)

    return call


def _while_hoisting(fun: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fun)
    def call(*args: Any, **options: Any) -> Any:
        if not any(ordered in getattr(x, "effects", ()) for x in args):  # the loop's jaxpr, or its equation
            return fun(*args, **options)
        _hoisting.depth = getattr(_hoisting, "depth", 0) + 1
        try:
            return fun(*args, **options)
        finally:
            _hoisting.depth -= 1

    return call


for _name in ("process_custom_jvp_call", "process_custom_vjp_call"):
    setattr(_partial_eval.JaxprTrace, _name, _custom_in_loop(getattr(_partial_eval.JaxprTrace, _name)))
_partial_eval.JaxprTrace.process_primitive = _process_primitive_in_loop  # type: ignore[method-assign]
_loops._scan_known_hoisting = _while_hoisting(_loops._scan_known_hoisting)
_scan_in_checkpoint = _partial_eval.partial_eval_jaxpr_custom_rules[_loops.scan_p]
_partial_eval.partial_eval_jaxpr_custom_rules[_loops.scan_p] = _while_hoisting(_scan_in_checkpoint)


def _refuse_calls(derive: Callable[..., Any]) -> Callable[..., Any]:
    """Refuses a derivative of a checkpoint that communicates: JAX would make its calls again on the way back."""

    @functools.wraps(derive)
    def call(self: Any, *args: Any) -> Any:
        if ordered in self.jaxpr.effects:
            raise NotImplementedError(
                "a jax.checkpoint whose function communicates has no derivative under jax_remat3 (JAX_REMAT3): JAX "
                "would make the calls again on the way back. Turn it off, jax.config.update('jax_remat3', False), or "
                "communicate outside of the checkpoint."
            )
        return derive(self, *args)

    return call


for _name in ("vjp_fwd", "lin"):
    setattr(_NextCheckpoint, _name, _refuse_calls(getattr(_NextCheckpoint, _name)))


lower_while = _loops._while_lowering


def looks_for_nan() -> bool:
    """Whether JAX is running a function again, operation by operation, to find where a NaN comes from."""
    if not (jax.config.jax_debug_nans or jax.config.jax_debug_infs):  # type: ignore[attr-defined]
        return False
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "maybe_recursive_nan_check":
        frame = frame.f_back
    return frame is not None


def when_failed(hear: Callable[[str], None]) -> None:
    """Calls ``hear`` with the text of each failure of a program that becomes an exception.

    XLA keeps a failure until somebody looks at a result. JAX does not say that somebody has; but it makes an exception.
    """
    init = JaxRuntimeError.__init__

    def init_and_tell(self: Any, *args: Any) -> None:
        init(self, *args)
        hear(str(args[0]) if args else "")

    JaxRuntimeError.__init__ = init_and_tell


def forget_tokens() -> None:
    """Keeps the tokens of failed programs from JAX's own exit handlers, which would print the failure again."""
    _dispatch.runtime_tokens.clear()


_next_token = _dispatch.RuntimeTokenSet.get_token_input
_tokens: dict[tuple[Any, ...], Any] = {}  # for each list of devices


def _same_token(self: Any, effect: _effects.Effect, devices: list[Any]) -> Any:
    """Gives each dispatch of a communicating program the same token instead of its predecessor's.

    JAX would hand the token of a failed program to every later one and so fail them all. Nothing is lost:
    dispatches from one thread to one device run in program order without it (ARCHITECTURE.md, "Order"). And a token
    that is there need not be made, which takes as long as the rest of a dispatch.
    """
    if not isinstance(effect, CommunicationEffect):
        return _next_token(self, effect, devices)
    key = tuple(devices)
    if key not in _tokens:
        self.current_tokens.pop(effect, None)
        with jax.transfer_guard("allow"):
            _tokens[key] = _next_token(self, effect, devices)
    return _tokens[key]


_dispatch.RuntimeTokenSet.get_token_input = _same_token  # type: ignore[assignment, method-assign]


_dispatch_in_cpp = _pxla.MeshExecutable.create_cpp_call


def _dispatch_in_python(self: Any, params: Any) -> Any:
    """Keeps what ``jit(f).lower(x).compile()`` returns from JAX's C++ dispatch, if it communicates.

    That dispatch hands no tokens over. JAX asks for ordered effects before it takes it for a jitted function, but not
    for one that was compiled ahead of time, whose second call would fail.
    """
    if ordered in getattr(self.unsafe_call, "ordered_effects", ()):
        return None
    return _dispatch_in_cpp(self, params)


_pxla.MeshExecutable.create_cpp_call = _dispatch_in_python  # type: ignore[method-assign]


_lower = _pxla.lower_sharding_computation
_lower_to_hlo = _pxla._cached_lowering_to_hlo


def seal_programs(seal: Callable[[Any], Any]) -> None:
    """Has ``seal`` replace the jaxpr of each program that shows the effect, where JAX makes a module of it.

    By then JAX has found in the program all that it wants to know; what it makes of the module's own effects is how it
    dispatches the program. Not so for export, where whoever loads the program must know of the effect.
    """

    @functools.wraps(_lower_to_hlo)
    def lower_sealed(jaxpr: Any, name: str, backend: Any, constants: int, *args: Any, **options: Any) -> Any:
        if ordered in jaxpr.effects and not options["lowering_parameters"].for_export:
            sealed = seal(jaxpr)
            # JAX makes large constants arguments (jax_use_simplified_jaxpr_constants) and expects as many here. One
            # that is used twice it counts twice, but not within an equation.
            if len(_core.jaxpr_const_args(getattr(sealed, "jaxpr", sealed))) == constants:
                jaxpr = sealed
        return _lower_to_hlo(jaxpr, name, backend, constants, *args, **options)

    _pxla._cached_lowering_to_hlo = lower_sealed  # type: ignore[assignment]


def rewrite_programs(rewrite: Callable[[Any], Any]) -> None:
    """Has every program's jaxpr rewritten before it is lowered.

    ``rewrite_where_hidden`` comes after it, so that what that brings to light goes through ``rewrite`` too.
    """
    before = _pxla.lower_sharding_computation

    @functools.wraps(before)
    def lower(jaxpr: Any, *args: Any, **options: Any) -> Any:
        return before(rewrite(jaxpr), *args, **options)

    _pxla.lower_sharding_computation = lower


def rewrite_where_hidden(rewrite: Callable[[Any, str], Any]) -> None:
    """Has programs rewritten in which JAX cannot see all communication.

    JAX hands tokens to equations with the effect. Where a primitive communicates whose equation has none, there is no
    token, and JAX fails with this KeyError. Every program comes through here, before anything is made of its effects.

    Args:
        rewrite: from a program's jaxpr and its name to the jaxpr to lower instead. It raises an exception if it cannot
            give a better one.
    """

    before = _pxla.lower_sharding_computation

    @functools.wraps(before)
    def lower(jaxpr: Any, api: str, name: str, *args: Any, **options: Any) -> Any:
        while True:
            try:
                return before(jaxpr, api, name, *args, **options)
            except KeyError as e:
                if e.args != (ordered,):
                    raise
            jaxpr = rewrite(jaxpr, name)

    _pxla.lower_sharding_computation = lower


def before_first_execution(prepare: Callable[[Any, tuple[Any, ...]], None]) -> None:
    """Calls ``prepare`` with each program's executable, and its devices in XLA's order, before it first runs.

    XLA makes what its collectives need in the middle of the first execution. JAX has no place before that where it is
    known which devices a program is for. Every one is made here, and is always first dispatched in Python.
    """
    build = _pxla.UnloadedMeshExecutable.build_unsafe_call
    execute = _pxla.ExecuteReplicated.__call__
    unprepared: dict[int, tuple[Any, ...]] = {}

    class Unprepared(_pxla.ExecuteReplicated):
        __slots__ = ()

        def __call__(self, *args: Any) -> Any:
            devices = unprepared.get(id(self))
            if devices is not None:
                prepare(self.xla_executable, devices)
                unprepared.pop(id(self), None)
            self.__class__ = _pxla.ExecuteReplicated  # type: ignore[assignment]
            return execute(self, *args)

        def __del__(self) -> None:
            unprepared.pop(id(self), None)

    def build_unprepared(self: Any) -> Any:
        call = build(self)
        unprepared[id(call)] = tuple(self.device_list)
        call.__class__ = Unprepared
        return call

    _pxla.UnloadedMeshExecutable.build_unsafe_call = build_unprepared  # type: ignore[method-assign]


_turn = threading.local()


def take_turns(take: Callable[[str], Callable[[], None]]) -> None:
    """Calls ``take``, with its key, before a program is looked for in the compilation cache, if there is one or not.

    What it returns is called when the program is there: found, or compiled and written. JAX has no place for that.
    """
    compile_or_get = _compiler.compile_or_get_cached
    read = _compiler._cache_read

    @functools.wraps(compile_or_get)
    def compile_in_turn(*args: Any, **options: Any) -> Any:
        outer = getattr(_turn, "end", None)
        _turn.end = None
        try:
            return compile_or_get(*args, **options)
        finally:
            if _turn.end is not None:
                _turn.end()
            _turn.end = outer

    @functools.wraps(read)
    def read_in_turn(module_name: str, key: str, *args: Any, **options: Any) -> Any:
        _turn.end = take(key)
        return read(module_name, key, *args, **options)

    _compiler.compile_or_get_cached = compile_in_turn
    _compiler._cache_read = read_in_turn  # type: ignore[assignment]


@functools.cache
def keep_sharded_tokens_out_of_cache() -> None:
    """Has the compilation cache do without sharded programs that take tokens: jaxlib crashes when it serializes one.

    JAX itself has no such programs: it refuses ordered effects on several devices.
    """
    write = _compiler._cache_write

    @functools.wraps(write)
    def write_others(key: str, seconds: float, name: str, backend: Any, executable: Any, *rest: Any) -> None:
        head = executable.hlo_modules()[0].to_string().partition("\n")[0]
        if "token[]" not in head or "num_partitions=" not in head:
            write(key, seconds, name, backend, executable, *rest)

    _compiler._cache_write = write_others  # type: ignore[assignment]
