"""Functions inside a program: bodies of loops, branches, batches, and what is compiled for itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from soak.comms import Comm
from soak.operations import OPERATIONS, greatest, is_ordered
from soak.oracle import Arrays, Tape, Value, cast
from soak.steps import Env, Scope, Step, run


@dataclass
class Block(Step):
    """A function of one variable, and how it is evaluated."""

    parameter: str = ""
    body: list[Step] = None  # type: ignore[assignment]
    result: str = ""
    evaluates: Callable[..., list[Value]] = None  # type: ignore[assignment]

    def inside(self, env: Env, tape: Tape, value: Value) -> Value:
        own = {**env, self.parameter: value}
        run(self.body, own, tape)
        return own[self.result]

    def evaluate(self, env: Env, tape: Tape) -> None:
        ((operands, results),) = self.calls
        env.update(zip(results, self.evaluates(self, env, tape, [env[n] for n in operands]), strict=True))


def _child(
    scope: Scope, value: Value, grown: bool, *, batched: bool, closed: bool = False, comms: list[Comm] | None = None
) -> tuple[Scope, str]:
    """Return the scope of a function; a `closed` one has no variables but its parameter."""
    core = scope.core
    parameter = core.fresh("a")
    # Few of the outer variables, so that the function is one of its parameter above all.
    usable = [] if closed else [n for n in scope.names if scope.usable(n)]
    outer = [n for n in usable if core.chance(1.5 / len(usable))]
    names = [*outer, parameter]
    child = Scope(core, {**scope.env, parameter: value}, names, scope.grown, depth=scope.depth + 1, batched=batched)
    child.grown |= {parameter} if grown else set()
    child.comms = comms if comms is not None else scope.comms
    child.outer_pending = scope.anything_pending()
    return child, parameter


def _filled(child: Scope, like: str | None) -> str:
    """Add steps, and return the variable that the function returns; one like its parameter if that is named."""
    fill(child, child.core.rng.integers(1, 4), blocks=child.depth < 2)
    child.finish()
    if like is None:
        result = child.pick()
    else:
        result = child.names[-1]
        if not child.usable(result):
            result = like
        dtype = child.dtype(like)
        if child.dtype(result) != dtype:
            if "float8_e8m0fnu" in (dtype.name, child.dtype(result).name):
                result = like
            else:
                source = child.tamed(result)
                result = child.local(f'cast({source}, "{dtype.name}")', [source], lambda a: cast(a, dtype))
        result = child.fitted(child.tamed(result), child.shapes(like))
    assert result is not None
    return result


def _function(child: Scope, parameter: str, result: str) -> tuple[str, list[str]]:
    name = child.core.fresh("f")
    return name, [f"def {name}({parameter}):", *(f"    {line}" for line in child.lines), f"    return {result}"]


def _select(pred: Value, yes: Value, no: Value, tape: Tape) -> Value:
    def model(arrays: list[Arrays]) -> list[Arrays]:
        p, a, b = arrays
        return [[x if flag else y for flag, x, y in zip(p, a, b, strict=True)]]

    (chosen,) = tape.apply(model, [pred, yes, no])
    return chosen


def repeated(scope: Scope) -> None:
    """Add a scan, fori_loop or while_loop with a known number of steps."""
    core = scope.core
    x = scope.pick()
    if x is None:
        return
    x = scope.tamed(x)
    child, parameter = _child(scope, Value(scope.arrays(x)), False, batched=scope.batched)
    result = _filled(child, parameter)
    f, lines = _function(child, parameter, result)
    kinds = ["scan", "fori_loop"] if core.derivative == "reverse" else ["scan", "fori_loop", "while_loop"]
    kind, times = core.choose(kinds), int(core.rng.integers(1, 4))
    out, stacked = core.fresh("v"), core.fresh("v")
    results = [out]
    if kind == "scan":
        results.append(stacked)
        reverse = ", reverse=True" if core.chance(0.3) else ""
        call = f"jax.lax.scan(lambda a, _: ({f}(a), a), {x}, None, length={times}{reverse})"
        lines.append(f"{out}, {stacked} = {call}")
    elif kind == "fori_loop":
        lines.append(f"{out} = jax.lax.fori_loop(0, {times}, lambda _, a: {f}(a), {x})")
    else:
        call = f"jax.lax.while_loop(lambda s: s[0] < {times}, lambda s: (s[0] + 1, {f}(s[1])), (0, {x}))"
        lines.append(f"{out} = {call}[1]")
    core.ops[kind] += 1
    backward = kind == "scan" and "reverse" in lines[-1]

    def evaluates(block: Block, env: Env, tape: Tape, operands: list[Value]) -> list[Value]:
        (carry,) = operands
        seen = []
        for _ in range(times):
            seen.append(carry)
            carry = block.inside(env, tape, carry)
        if kind != "scan":
            return [carry]
        seen = seen[::-1] if backward else seen
        return [carry, *tape.apply(_stacks, seen)]

    scope.add(Block(lines, [([x], results)], None, None, parameter, child.steps, result, evaluates))  # type: ignore[arg-type]


def _stacks(arrays: list[Arrays]) -> list[Arrays]:
    return [[np.stack(own) for own in zip(*arrays, strict=True)]]


def _predicate(scope: Scope, comm: Comm, dtype: str = "int32") -> str | None:
    """Return a small whole number that is the same on all ranks of each of the communicators."""
    core = scope.core
    if core.derivative:
        x = scope.pick(shapes=[()] * core.size)
    else:
        x = scope.pick(dtype=np.dtype(dtype), shapes=[()] * core.size, small=True)
    if x is None:
        return None
    return _sum(scope, comm, x)


def _sum(scope: Scope, comm: Comm, x: str) -> str:
    total = scope.core.fresh("v")
    scope.core.ops["allreduce"] += 1

    def one(inputs: list[list[np.ndarray]], rank: int, w: int) -> list[np.ndarray]:
        return [np.asarray(sum(own[0] for own in inputs)).astype(inputs[0][0].dtype)]

    line = f"{total} = mpixla.allreduce({x}, MPI.SUM{comm.argument})"
    scope.add(Step([line], [([x], [total])], comm.model(one)), grown=True)
    # Only the number is used, never its derivative: a replicated result that varying values are computed from.
    scope.names.remove(total)
    return total


def _inside(scope: Scope, comm: Comm) -> list[Comm]:
    """Return the communicators each of which lies within one of these."""
    return [c for c in scope.comms if all(any(set(g) <= set(h) for h in comm.groups) for g in c.groups)]


def branched(scope: Scope) -> None:
    """Add a cond by something that all ranks of a communicator know; the branches communicate differently."""
    core = scope.core
    if scope.batched:
        return
    comm = scope.comm()
    x = scope.pick()
    if comm is None or x is None:
        return
    x = scope.tamed(x)
    number = _predicate(scope, comm)
    if number is None:
        return
    branches, lines = [], []
    for _ in range(2):
        child, parameter = _child(scope, Value(scope.arrays(x)), False, batched=False, comms=_inside(scope, comm))
        result = _filled(child, parameter)
        f, text = _function(child, parameter, result)
        branches.append((f, Block([], [], None, None, parameter, child.steps, result)))  # type: ignore[arg-type]
        lines += text
    out = core.fresh("v")
    lines.append(f"{out} = jax.lax.cond({number} > 0, {branches[0][0]}, {branches[1][0]}, {x})")
    core.ops["cond"] += 1

    def evaluates(block: Block, env: Env, tape: Tape, operands: list[Value]) -> list[Value]:
        x, n = operands
        pred = Value([np.asarray(a > 0) for a in n.arrays])
        yes, no = (b.inside(env, tape, x) for _, b in branches)
        return [_select(pred, yes, no, tape)]

    scope.add(Block(lines, [([x, number], [out])], None, None, "", [], "", evaluates))  # type: ignore[arg-type]


def as_often(scope: Scope) -> None:
    """Add a while_loop, as often as all ranks of a communicator know, or its condition asks: up to three times."""
    core = scope.core
    comm = scope.comm()
    x = scope.pick()
    if comm is None or x is None:
        return
    x = scope.constant(scope.tamed(x))  # such loops have no reverse mode
    number = _predicate(scope, comm)
    if number is None:
        return
    number = scope.constant(number)
    number = scope.local(f"jnp.minimum(abs({number}), 3)", [number], lambda a: np.minimum(abs(a), 3).astype(a.dtype))
    scope.hide(number)
    value, closed = Value(scope.arrays(x)), bool(core.derivative)
    child, parameter = _child(scope, value, False, batched=scope.batched, closed=closed, comms=_inside(scope, comm))
    result = _filled(child, parameter)
    f, lines = _function(child, parameter, result)
    out = core.fresh("v")
    count, kind = "s[0]", "while_loop"
    if core.chance(0.5):  # the same on all ranks
        count, kind = f"mpixla.allreduce(s[0], MPI.MAX{comm.argument})", "while_loop that asks"
    call = f"jax.lax.while_loop(lambda s: {count} < {number}, lambda s: (s[0] + 1, {f}(s[1])), (np.int32(0), {x}))"
    lines.append(f"{out} = {call}[1]")
    core.ops[kind + " in a vmap" * scope.batched + " under a derivative" * closed] += 1

    def evaluates(block: Block, env: Env, tape: Tape, operands: list[Value]) -> list[Value]:
        carry, n = operands
        for i in range(3):
            going = Value([np.asarray(a > i) for a in n.arrays])
            carry = _select(going, block.inside(env, tape, carry), carry, tape)
        return [carry]

    scope.add(Block(lines, [([x, number], [out])], None, None, parameter, child.steps, result, evaluates))  # type: ignore[arg-type]
    scope.hide(out)


def changing_on_one_rank(scope: Scope) -> None:
    """Add a scan of a function with a rule of its own, by an operand that changes in the loop on one rank alone."""
    core = scope.core
    own = core.choose(["custom_jvp", "MAXLOC", *([] if core.derivative == "forward" else ["custom_vjp"])])
    x = scope.pick(is_ordered if own == "MAXLOC" else lambda t: t.name != "float8_e8m0fnu", small=True)
    if x is None:
        return
    times, odd = int(core.rng.integers(2, 4)), int(core.rng.integers(core.size))
    c = scope.constant(x) if own == "MAXLOC" or core.chance(0.7) else x
    child, parameter = _child(scope, Value(scope.arrays(c)), True, batched=scope.batched, closed=True)
    if own == "MAXLOC":
        result = child.fitted(child.tamed(greatest(child, parameter)), child.shapes(parameter))
    else:
        result = _filled(child, parameter)
    f, lines = _function(child, parameter, result)
    out = core.fresh("v")
    call = f if own == "MAXLOC" else f"{own}({f})"
    body = f"lambda a, i: (a + {call}({c} + i if world.rank == {odd} else {c}), None)"
    lines.append(f"{out}, _ = jax.lax.scan({body}, {x}, jnp.arange({times}).astype({x}.dtype))")
    core.ops[f"{own} in a scan"] += 1

    def evaluates(block: Block, env: Env, tape: Tape, operands: list[Value]) -> list[Value]:
        carry, c = operands
        for i in range(times):

            def changed(arrays: list[Arrays], i: int = i) -> list[Arrays]:
                return [[a + np.asarray(i).astype(a.dtype) if w == odd else a for w, a in enumerate(arrays[0])]]

            got = block.inside(env, tape, *tape.apply(changed, [c]))
            (carry,) = tape.apply(_sums, [carry, got])
        return [carry]

    block = Block(lines, [([x, c], [out])], None, None, parameter, child.steps, result, evaluates)  # type: ignore[arg-type]
    scope.add(block, grown=True)


def _sums(arrays: list[Arrays]) -> list[Arrays]:
    return [[np.asarray(a + b).astype(a.dtype) for a, b in zip(*arrays, strict=True)]]


def batched(scope: Scope) -> None:
    """Add a vmap along some axis of an array, in and out; sometimes of no examples."""
    core = scope.core
    lengths = [1, 2, 3, *([] if core.derivative or scope.batched else [0])]
    x = scope.pick(shapes=[(core.choose(lengths), *core.choose([(), (2,), (3,)]))] * core.size)
    if x is None:
        return
    shape = scope.shapes(x)[0]
    axis = core.choose(range(len(shape))) if shape[0] else 0
    length = shape[axis]
    one = Value([np.take(a, 0, axis) if length else np.ones(shape[1:], a.dtype) for a in scope.arrays(x)])
    # Outer variables are constants in a vmap: a message of an array that has its batch does not fit a template without.
    child, parameter = _child(scope, one, x in scope.grown, batched=True, closed=True)
    result = _filled(child, None)
    f, lines = _function(child, parameter, result)
    ndim = min(a.ndim for a in child.arrays(result))
    to = core.choose(range(ndim + 1))
    out = core.fresh("v")
    axes = f", in_axes={axis}, out_axes={to}" if (axis, to) != (0, 0) else ""
    lines.append(f"{out} = jax.vmap({f}{axes})({x})")
    core.ops["vmap" if length else "vmap of no examples"] += 1

    def nothing(arrays: list[Arrays]) -> list[Arrays]:
        return [[np.zeros((*a.shape[:to], 0, *a.shape[to:]), a.dtype) for a in child.arrays(result)]]

    def evaluates(block: Block, env: Env, tape: Tape, operands: list[Value]) -> list[Value]:
        if not length:
            return tape.apply(nothing, operands)
        parts = []
        for i in range(length):
            (part,) = tape.apply(lambda arrays, i=i: [[np.take(a, i, axis) for a in arrays[0]]], operands)
            parts.append(block.inside(env, tape, part))
        return tape.apply(lambda arrays: [[np.stack(own, to) for own in zip(*arrays, strict=True)]], parts)

    block = Block(lines, [([x], [out])], None, None, parameter, child.steps, result, evaluates)  # type: ignore[arg-type]
    scope.add(block, grown=result in child.grown)


def called(scope: Scope) -> None:
    """Add a function that is compiled for itself, or computed again in reverse mode."""
    core = scope.core
    x = scope.pick()
    if x is None:
        return
    child, parameter = _child(scope, Value(scope.arrays(x)), x in scope.grown, batched=scope.batched)
    result = _filled(child, None)
    f, lines = _function(child, parameter, result)
    how = core.choose(["jax.jit", "mpixla.jit", "jax.checkpoint"])
    out = core.fresh("v")
    lines.append(f"{out} = {how}({f})({x})")
    core.ops[how] += 1

    def evaluates(block: Block, env: Env, tape: Tape, operands: list[Value]) -> list[Value]:
        return [block.inside(env, tape, operands[0])]

    block = Block(lines, [([x], [out])], None, None, parameter, child.steps, result, evaluates)  # type: ignore[arg-type]
    scope.add(block, grown=result in child.grown)


BLOCKS: list[tuple[float, Callable[[Scope], None]]] = [
    (1, repeated),
    (0.8, branched),
    (0.6, as_often),
    (0.5, changing_on_one_rank),
    (1, batched),
    (0.8, called),
]


def fill(scope: Scope, steps: int, *, blocks: bool) -> None:
    """Add this many operations, drawn by their weights."""
    table: list[tuple[float, Any]] = OPERATIONS + (BLOCKS if blocks else [])
    weights = np.array([weight for weight, _ in table])
    for _ in range(steps):
        table[scope.core.rng.choice(len(table), p=weights / weights.sum())][1](scope)
