"""The factory for primitives: from a row of native/tables/ops.def, or a composition of rows, to a JAX primitive.

A primitive has a shape rule and a lowering (this file), an implementation for eager calls (eager.py), and rules for
derivatives and batching (rules.py), all given where it is made.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import mlir

from ..base import jax_settings
from ..base.state import state
from ..base.words import kind_of, refuse_without_hook
from ..checks import sites
from ..jaxprs.effect import HiddenCommunicationError, ordered, token_aval
from ..jaxprs.spmd import (
    Primitive,
    device_count,
    is_in_shard_map,
    is_outside_shard_map,
    tracked_axes,
    without_weak_type,
)
from ..mpi import gpu, native
from ..mpi.comm import Comm, refuse_in_fork
from ..mpi.mpi import MPI
from ..partial_eval.checkpoints import register_no_hoist_rule
from .eager import call_eagerly
from .helper import attributes_of
from .rank import own_rank
from .rules import Rules, define_rules
from .values import has_values

# An operation's shape rule: from the operands' types, and the parameters as keywords, to the results' types.
ShapeRule = Callable[..., Sequence[ShapedArray]]


# How reverse mode counts the cotangents of a result that is the same on every rank.
Cotangent = Literal["replicated", "varying"]
REPLICATED: Final = "replicated"
VARYING: Final = "varying"


def counts_once(comm: Comm) -> bool:
    """Return True outside of ``jax.shard_map``, and inside if its types can mark a result as the same on all ranks.

    Inside ``jax.shard_map`` over several devices JAX's types must be able to express it: all axes of the mesh are
    tracked, and the communicator is as large as the mesh.
    """
    if not is_in_shard_map():
        return True
    mesh = jax.sharding.get_abstract_mesh()
    return tracked_axes() == set(mesh.axis_names) and mesh.size == comm.size


def make_primitive(
    name: str, shapes: ShapeRule, *, lower: Callable[..., Any] | None = None, **rules: Unpack[Rules]
) -> Primitive:
    """Return a new primitive with the communication effect, lowered to the C handler of row ``name`` of ops.def.

    It communicates in program order when traced, and through a compiled program of its own when called with arrays.
    Its parameters include the row's attributes. ``lower`` is ``lower_in_place`` for rows of many arrays. ``rules`` are
    the derivative and batching rules.
    """
    row = native.ops.get(name) or native.request_ops[name]
    return _define_primitive(name, shapes, functools.partial(lower or _lower, row), rules)


def compose_primitive(
    name: str, shapes: ShapeRule, fun: Callable[..., Sequence[Any]], **rules: Unpack[Rules]
) -> Primitive:
    """Return a new primitive with the communication effect, lowered as ``fun``, and differentiated by ``rules`` alone.

    ``fun`` takes the operands, and the parameters as keywords, and returns the list of results. The primitive has the
    effect even if ``fun`` does not communicate: its transpose does, and JAX must not drop the primitive on a rank that
    ignores the result.
    """
    return _define_primitive(name, shapes, mlir.lower_fun(fun, multiple_results=True), rules)


def _define_primitive(name: str, shapes: ShapeRule, lower: Callable[..., Any], rules: Rules) -> Primitive:
    """Return a new primitive with the communication effect and ``rules``, never hoisted, eager by kept programs."""
    primitive = Primitive(name)
    primitive.replicates = lambda params: params.get("cotangent") == REPLICATED

    def abstract_eval(*operands: ShapedArray, **params: Any) -> tuple[list[ShapedArray], set[Any]]:
        return list(map(without_weak_type, shapes(*operands, **params))), {ordered}

    primitive.def_effectful_abstract_eval(abstract_eval)
    mlir.register_lowering(primitive, lower, cacheable=False)  # _is_argument depends on the call's place
    primitive.def_impl(functools.partial(call_eagerly, primitive))
    register_no_hoist_rule(primitive)
    define_rules(primitive, **rules)
    return primitive


# Lowering: from a traced call to XLA's custom call.


def _is_here(where: int, on_root: bool) -> bool:
    return where == native.EVERYWHERE or where == (native.ON_ROOT if on_root else native.OFF_ROOT)


def _lower(row: native.Op, ctx: Any, *operands: Any, on_root: bool | None = None, **params: Any) -> Sequence[Any]:
    """Lower a call to its row's custom call for the root or another rank; in a sharded program to a cond of both.

    Where the handler has no result, the call's result is its first operand.
    """
    if not {row.send, row.template, row.recv} & {native.ON_ROOT, native.OFF_ROOT}:
        on_root = False
    elif on_root is None and device_count(ctx.module_context) != 1:
        # XLA's collectives in a sharded program match only if XLA compiles the same program in each process. So the
        # program has both sides, and the rank selects one when it runs.
        sides = [functools.partial(ctx.primitive.bind, on_root=side, **params) for side in (True, False)]

        def select_side(*operands: Any) -> Any:
            return jax.lax.cond(own_rank(params["comm"]) == params["root"], *sides, *operands)

        return mlir.lower_fun(select_side, multiple_results=True)(ctx, *operands)
    elif on_root is None:
        on_root = params["comm"].rank == params["root"]
    return _lower_side(row, ctx, *operands, on_root=on_root, **params)


def _lower_side(row: native.Op, ctx: Any, *operands: Any, on_root: bool, **params: Any) -> Sequence[Any]:
    """Lower to a row's custom call with the root's or another rank's buffers; without a result return the operands."""
    passed = [0] if _is_here(row.send, on_root) else []
    data = len(operands) - has_values(params)
    if _is_here(row.template, on_root):
        passed.append(data - 1)
    passed += range(data, len(operands))
    gives = _is_here(row.recv, on_root)
    # A program's own argument is not overwritten: XLA would copy it first, and MPI needs only to read it.
    in_place = row.in_place and gives and not _is_argument(operands[0])
    aliases = {0: 0} if in_place else {}
    results = call_handler(row, ctx, operands, [0] if in_place else passed, gives, params, aliases)
    return results if gives else operands[: len(ctx.avals_out)]


def _is_argument(value: Any) -> bool:
    """Return True if an MLIR value is an argument of the function ``main``, and so of the whole program."""
    block = value.owner
    if not isinstance(block, mlir.ir.Block):
        return False
    function = block.owner
    return "sym_name" in function.attributes and mlir.ir.StringAttr(function.attributes["sym_name"]).value == "main"


def lower_in_place(row: native.Op, ctx: Any, *operands: Any, **params: Any) -> Sequence[Any]:
    """Lower a call with as many results as operands, each in its operand's memory.

    XLA copies an operand first if the program still needs it.
    """
    places = range(len(operands))
    return call_handler(row, ctx, operands, places, True, params, dict(zip(places, places, strict=True)))


def call_handler(
    row: native.Op,
    ctx: Any,
    operands: Sequence[Any],
    passed: Sequence[int],
    gives: bool,
    params: dict[str, Any],
    aliases: dict[int, int],
) -> Sequence[Any]:
    """Emit a row's custom call in program order, and return its results; NotImplementedError if the program is unfit.

    ``aliases``: for each of the passed operands whose memory a result has, the place of that result.
    """
    try:
        token_in = ctx.tokens_in.get(ordered)
    except KeyError:
        raise HiddenCommunicationError(row.name) from None
    jax_settings.refuse_late()
    refuse_symbolic([*ctx.avals_in, *ctx.avals_out], row.name)
    _prepare_for_devices(row, ctx.module_context)
    if state.refusals is not None and ctx.module_context.lowering_parameters.for_export:
        state.refusals()
    gpu.note_missing_gpu()
    inner = ctx.replace(
        avals_in=[*(ctx.avals_in[i] for i in passed), token_aval()],
        avals_out=[*(ctx.avals_out if gives else []), token_aval()],
    )
    added = {native.SITE: sites.site_of_lowering(ctx), **sites.packed_of_lowering(ctx)}
    attributes = {**params, **added}
    scalars, arrays = attributes_of([x for x in row.attributes if x in attributes or x not in row.optional], attributes)
    rule = jax.ffi.ffi_lowering(
        row.target,
        has_side_effect=True,
        operand_output_aliases=aliases or None,
        backend_config=arrays,
        # XLA copies the operand of a call that has both fixed layouts and an alias.
        skip_ffi_layout_processing=bool(aliases),
    )
    buffers = [(row_major(ctx, ctx.avals_in[i], operands[i]) if aliases else operands[i]) for i in passed]
    *results, token = rule(inner, *buffers, token_in, **scalars)
    if aliases:
        results = [row_major(ctx, aval, result) for aval, result in zip(ctx.avals_out, results, strict=True)]
    ctx.set_tokens_out(mlir.TokenSet({**dict(ctx.tokens_in.items()), ordered: token}))
    return results


def refuse_symbolic(arrays: Sequence[Any], name: str) -> None:
    """Raise NotImplementedError for arrays with symbolic sizes, which are known only where an export is used."""
    if not all(isinstance(n, int) for x in arrays for n in x.shape):
        raise NotImplementedError(
            f"{name} was used in an export with symbolic shapes, on which the call depends. Export it once for each "
            "shape."
        )


LAYOUT_TARGET = "LayoutConstraint"  # the custom call of with_layout_constraint


def row_major(ctx: Any, aval: ShapedArray, value: Any) -> Any:
    """Constrain a value to row-major layout, for calls without fixed layouts; return it unchanged below two axes."""
    if aval.ndim < 2:
        return value  # there is one layout
    # As with_layout_constraint is lowered. XLA ignores the operand's layout.
    rule = jax.ffi.ffi_lowering(LAYOUT_TARGET, operand_layouts=[tuple(range(aval.ndim))], api_version=1)
    (result,) = rule(ctx.replace(avals_in=[aval], avals_out=[aval]), value)
    return result


def _prepare_for_devices(row: native.Op, module: Any) -> None:
    """Keep a sharded program from JAX's cache; NotImplementedError unless by shard_map, with a device per process."""
    context = module.axis_context
    mesh = getattr(context, "mesh", None)
    devices = device_count(module)
    if devices == 1:
        return
    # JAX takes the devices of a program from its arrays.
    if mesh is not None and mlir.ir.IntegerAttr(module.module.operation.attributes["mhlo.num_partitions"]).value == 1:
        raise NotImplementedError(
            f"{row.name} was used inside jax.shard_map over {devices} processes in a program that neither uses an "
            "argument nor gives a result, so JAX compiles it for one of them. Let it give a result."
        )
    if devices > jax.process_count() or _has_two_of_a_process(mesh):
        raise NotImplementedError(
            f"{row.name} was used in a program for {jax.local_device_count()} local devices, but an MPI rank "
            "communicates for one device. Start one process per device, and place the arrays of a process on one "
            f"device (no sharding).{_way_out_of_mesh(devices)}"
        )
    if is_outside_shard_map(module):
        raise NotImplementedError(
            f"{row.name} was used in a program that is sharded over {devices} processes, outside of jax.shard_map, "
            "where it is not said what each process has. Use it inside jax.shard_map over all axes of the mesh."
        )
    keep_from_cache()


def _way_out_of_mesh(devices: int) -> str:
    """Return the advice for a program that is for ``devices`` devices because of ``jax.set_mesh``, or ""."""
    if jax.sharding.get_abstract_mesh().size != devices:
        return ""
    return (
        f" Here jax.set_mesh has set a mesh of {devices} devices, for all of which JAX makes every program: make the "
        "call outside of it."
    )


def keep_from_cache() -> None:
    """Keep sharded programs out of JAX's compilation cache; without the hook raise NotImplementedError if it is on."""
    if state.cache is not None:
        state.cache()
    elif jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        refused = "a sharded program that communicates cannot be kept in JAX's compilation cache"
        raise NotImplementedError(refuse_without_hook("cache", refused, "Unset JAX_COMPILATION_CACHE_DIR."))


def _has_two_of_a_process(mesh: Any) -> bool:
    """Return True if a process has two of a mesh's devices; for no concrete mesh, if this process has two devices."""
    if not isinstance(mesh, jax.sharding.Mesh):
        return jax.local_device_count() > 1
    processes = [device.process_index for device in mesh.devices.flat]
    return len(set(processes)) < len(processes)


def as_array(x: Any, what: str, name: str) -> jax.Array:
    """Convert an argument to a JAX array of a dtype that MPI has; raise TypeError, or ValueError for a large number."""
    if not isinstance(x, jax.Array):
        if isinstance(x, jax.Ref):  # a traced one passes asarray
            raise TypeError(_explain_no_array(x, what, name))
        refuse_in_fork()
        if isinstance(x, str | bytes):  # JAX takes a letter for the name of a dtype, and warns of it
            raise TypeError(_explain_no_array(x, what, name))
        try:
            x = jnp.asarray(x)
        except (TypeError, ValueError):  # ValueError for None
            raise TypeError(_explain_no_array(x, what, name)) from None
        except OverflowError as e:
            raise ValueError(f"{what} of {name} is a number that is too large for JAX: {e}.") from None
    if x.dtype.name not in native.dtypes:
        known = ", ".join(native.dtypes)
        raise TypeError(f"{name} cannot communicate {what} of dtype {x.dtype.name}. It takes {known}.")
    return x


def accumulation_dtype(dtype: Any) -> np.dtype:
    """Return float32 for narrower floats, which it represents exactly, else the dtype itself."""
    return np.dtype(np.float32) if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4 else np.dtype(dtype)


_WITH_TEMPLATE = ("bcast", "recv", "scatter", "scatterv", "sendrecv")


def _way_of_objects(name: str) -> str:
    """Return the sentence that names mpi4py's call for Python objects, or "" if mpi4py has none like the operation."""
    method = name if hasattr(MPI.Comm, name) else name.removeprefix("i").removesuffix("v")
    if not hasattr(MPI.Comm, method):
        return ""
    return f" Python objects go through mpi4py's comm.{method}, outside of jitted functions."


def _explain_no_array(x: Any, what: str, name: str) -> str:
    """Return why JAX makes no array of ``x``, and what to pass instead."""
    if isinstance(x, jax.Ref):
        return f"{what} of {name} must be an array or a number, but is {kind_of(x)}. Pass {what}[...]."
    if not isinstance(x, (np.ndarray, np.generic)):
        hint = ""
        if x is None and name.removeprefix("i") in _WITH_TEMPLATE:
            hint = " A rank that only receives passes an array of the shape and dtype of what comes."
        return f"{what} of {name} must be an array or a number, but is {kind_of(x)}.{hint}{_way_of_objects(name)}"
    if isinstance(x, np.ma.MaskedArray):
        return f"{what} of {name} is a masked array, which JAX does not take. Pass {what}.filled(value)."
    dtype = x.dtype
    if dtype.newbyteorder("=").name in native.dtypes and not dtype.isnative:
        return (
            f"{what} of {name} has dtype {dtype.str}, which is not this machine's byte order. Pass "
            f"{what}.astype({what}.dtype.newbyteorder('='))."
        )
    return (
        f"{what} of {name} must be an array of numbers, but has dtype {dtype}, which JAX does not have. Convert it to "
        f"one that JAX has, such as float32 or int32, with astype.{_way_of_objects(name) if dtype.hasobject else ''}"
    )
