"""Steps of programs: the text that a rank runs, and what it must give.

A scope is where steps stand one after the other: the program, or a function inside it that is a loop's body, a branch,
and so on. It knows what its variables hold in an example, so that a step which is added sees types and shapes.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from soak.comms import Comm
from soak.oracle import Arrays, Model, Tape, Value, cast, fit, tame

Env = dict[str, Any]  # variables and, for requests, the operands that they were started with


@dataclass
class Step:
    """Calls of one model: `calls` are the names of operands and of results of each."""

    lines: list[str]
    calls: list[tuple[list[str], list[str]]]
    model: Model
    linear_at: Callable[..., Model] | None = None

    def evaluate(self, env: Env, tape: Tape) -> None:
        for operands, results in self.calls:
            env.update(zip(results, tape.apply(self.model, [env[n] for n in operands], self.linear_at), strict=True))


@dataclass
class Start(Step):
    """A started request: its operands have their present values, its results come with the wait."""

    request: str = ""

    def evaluate(self, env: Env, tape: Tape) -> None:
        env[self.request] = [[env[n] for n in operands] for operands, _ in self.calls]


@dataclass
class Wait(Step):
    request: str = ""

    def evaluate(self, env: Env, tape: Tape) -> None:
        for operands, (_, results) in zip(env[self.request], self.calls, strict=True):
            env.update(zip(results, tape.apply(self.model, operands, self.linear_at), strict=True))


@dataclass
class Request:
    """A request that nobody has waited for."""

    name: str
    start: Step  # its calls have no results
    text: Callable[[str], str]  # from the text that waits to the text of the result
    results: int
    grown: bool
    plain: bool


@dataclass
class Core:
    """The state that all scopes of a program share."""

    rng: np.random.Generator
    size: int
    comms: list[Comm]
    derivative: str  # "", "forward" or "reverse"
    dtypes: list[np.dtype]
    ops: Counter = field(default_factory=Counter)
    types: Counter = field(default_factory=Counter)
    names: Counter = field(default_factory=Counter)
    statuses: list[tuple[str, list[tuple[int | None, int, int]]]] = field(default_factory=list)
    products: int = 2  # how many more products a derivative's program may have: they take bits

    def fresh(self, letter: str) -> str:
        self.names[letter] += 1
        return f"{letter}{self.names[letter]}"

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def choose(self, items: Any) -> Any:
        items = list(items)
        return items[self.rng.integers(len(items))]


SMALL = [(), (1,), (3,), (2, 2), (4,), (2, 3), (1, 3)]
EMPTY = [(0,), (2, 0)]
MOST = 48  # items of an array that are still let grow
OF_PRELUDE = ("in_halves",)  # operations that are no function of mpixla's


class Scope:
    def __init__(
        self, core: Core, env: Env, names: list[str], grown: set[str], *, depth: int = 0, batched: bool = False
    ):
        self.core, self.env, self.names, self.grown = core, dict(env), list(names), set(grown)
        self.depth, self.batched = depth, batched
        self.steps: list[Step] = []
        self.pending: list[Request] = []
        self.outer_pending = False
        self.comms = core.comms

    # Text

    @property
    def lines(self) -> list[str]:
        return [line for step in self.steps for line in step.lines]

    # Variables

    def arrays(self, name: str) -> Arrays:
        return self.env[name].arrays

    def dtype(self, name: str) -> np.dtype:
        return self.arrays(name)[0].dtype

    def shapes(self, name: str) -> list[tuple[int, ...]]:
        return [a.shape for a in self.arrays(name)]

    def add(self, step: Step, *, grown: bool = False) -> list[str]:
        """Append a step, and return the names of its results."""
        step.evaluate(self.env, Tape())
        self.steps.append(step)
        made = [name for _, results in step.calls for name in results]
        if not isinstance(step, Start):
            self.names += made
            self.grown |= set(made) if grown else set()
        return made

    def local(self, text: str, operands: list[str], one: Callable[..., np.ndarray], *, grown: bool = False) -> str:
        """Return a step that does not communicate: `one` is what a rank computes of its own arrays."""
        name = self.core.fresh("v")

        def model(arrays: list[Arrays]) -> list[Arrays]:
            return [[np.asarray(one(*own)) for own in zip(*arrays, strict=True)]]

        self.add(Step([f"{name} = {text}"], [(operands, [name])], model), grown=grown)
        return name

    def each(self, values: list[Any]) -> str:
        """Return the text of something that a rank has: one value if it is the same on all."""
        return repr(values[0]) if all(v == values[0] for v in values) else f"{values!r}[world.rank]"

    def fitted(self, name: str, shapes: list[tuple[int, ...]]) -> str:
        if self.shapes(name) == shapes:
            return name
        made = self.core.fresh("v")
        step = Step(
            [f"{made} = fit({name}, {self.each(shapes)})"],
            [([name], [made])],
            lambda arrays: [[fit(a, shape) for a, shape in zip(arrays[0], shapes, strict=True)]],
        )
        self.add(step, grown=name in self.grown)
        return made

    def tamed(self, name: str) -> str:
        """Return values small enough to compute with."""
        if name not in self.grown or self.dtype(name).kind == "b":
            return name
        if self.core.derivative:
            return self.local(f"{name} * 0.125", [name], lambda a: a * 0.125)
        return self.local(f"tame({name})", [name], tame)

    def constant(self, name: str) -> str:
        """Return the same values, without a derivative."""
        if not self.core.derivative:
            return name
        made = self.core.fresh("v")
        step = Step(
            [f"{made} = jax.lax.stop_gradient({name})"],
            [([name], [made])],
            lambda arrays: [arrays[0]],
            lambda at: lambda arrays: [[np.zeros_like(a) for a in arrays[0]]],
        )
        self.add(step, grown=name in self.grown)
        self.hide(made)
        return made

    def hide(self, name: str) -> None:
        """Hide a variable that depends on no differentiated variable, so that no operation uses it."""
        if self.core.derivative:
            self.names.remove(name)

    def usable(self, name: str) -> bool:
        """Return whether an operation may use a variable.

        Operands must depend on differentiated variables on every rank or on none; constants depend on nothing.
        """
        if self.core.derivative and self.dtype(name) != np.float64:
            return False
        return not (self.core.derivative or self.batched) or all(a.size for a in self.arrays(name))

    def pick(
        self,
        takes: Callable[[np.dtype], bool] = lambda dtype: True,
        *,
        shapes: list[tuple[int, ...]] | None = None,
        small: bool = False,
        dtype: np.dtype | None = None,
    ) -> str | None:
        """Return a variable that an operation can take, with other steps that make it so before."""
        core = self.core
        if dtype is not None:
            takes = lambda t: t == dtype  # noqa: E731
        usable = [n for n in self.names if self.usable(n)]
        fit_ones = [n for n in usable if takes(self.dtype(n))]
        if not fit_ones:
            other = [t for t in core.dtypes if takes(t) and t.name != "float8_e8m0fnu"]
            sources = [n for n in usable if self.dtype(n).name != "float8_e8m0fnu"]
            if core.derivative or not other or not sources:
                return None
            wanted, source = core.choose(other), self.tamed(core.choose(sources))
            fit_ones = [self.local(f'cast({source}, "{wanted.name}")', [source], lambda a: cast(a, wanted))]
        weights = np.arange(1, len(fit_ones) + 1) ** 1.5
        name = fit_ones[core.rng.choice(len(fit_ones), p=weights / weights.sum())]
        if small:
            name = self.tamed(name)
        if shapes is None and max(a.size for a in self.arrays(name)) > MOST:
            shapes = [self.shape()] * core.size
        return self.fitted(name, shapes) if shapes is not None else name

    def shape(self) -> tuple[int, ...]:
        empty = [] if self.core.derivative or self.batched or self.core.chance(0.8) else EMPTY
        return self.core.choose(SMALL + empty)

    def even(self, name: str, comm: Comm) -> str:
        """Return the variables with one shape on all ranks of each of the communicators."""
        shapes = self.shapes(name)
        if all(len({shapes[w] for w in group}) == 1 for group in comm.groups):
            return name
        return self.fitted(name, [self.shape()] * self.core.size)

    # Communication

    def comm(self, fits: Callable[[Comm], bool] = lambda comm: True) -> Comm | None:
        fitting = [c for c in self.comms if fits(c)]
        return self.core.choose(fitting) if fitting else None

    def anything_pending(self) -> bool:
        return bool(self.pending) or self.outer_pending

    def call(
        self,
        op: str,
        comm: Comm,
        operands: list[list[str]],
        arguments: str,
        model: Model,
        *,
        results: int = 1,
        linear_at: Callable[..., Model] | None = None,
        grown: bool = False,
        replicated: bool = False,
        starts: bool = False,
        keys: bool = False,
        only_start: bool = False,
    ) -> list[str]:
        """Add a call of an operation.

        Args:
            op: its name in mpixla, or in prelude.py.
            operands: for each argument the leaves of a pytree; one leaf is an array.
            arguments: the text of the other arguments, with a comma in front.
            model: from one leaf of each argument to `results` values.
            linear_at: where differences of the model are no derivative: what is linear there.
            grown: whether the results may be large.
            replicated: whether the result is the same on every rank, so that its cotangent counts once.
            starts: whether there is an operation with an "i" in front.
            keys: whether the arrays travel as PRNG keys.
            only_start: whether it is `op` itself that starts.

        Returns:
            The names of the results; none if it was only started.
        """
        core = self.core
        starts = only_start or (starts and core.chance(0.4))
        called = "i" + op if starts and not only_start else op
        core.ops[called] += 1
        core.types[self.dtype(operands[0][0]).name] += 1
        leaves = len(operands[0])
        if replicated and core.chance(0.5):
            arguments += ', cotangent="varying"'
            replicated = False
        tree = core.choose(["list", "dict"])
        of = "" if op in OF_PRELUDE else "mpixla."
        text = f"{of}{called}({', '.join(_argument(a, tree, keys) for a in operands)}{arguments}{comm.argument})"
        count = leaves * results

        def result_text(waited: str) -> str:
            if replicated and (core.derivative == "reverse" or (core.chance(0.1) and not keys)):
                core.ops["pvary"] += 1
                waited = f"mpixla.pvary({waited}{comm.argument})"
            if leaves > 1:
                waited = f"jax.tree.leaves({waited})"
                return f"map(jax.random.key_data, {waited})" if keys else waited
            return f"jax.random.key_data({waited})" if keys else waited

        columns = [list(column) for column in zip(*operands, strict=True)]
        grown = grown or any(n in self.grown for argument in operands for n in argument)
        if starts:
            request = core.fresh("r")
            start = Start([f"{request} = {text}"], [(c, []) for c in columns], model, linear_at, request)
            self.add(start)
            plain = not keys and leaves == 1 and not (replicated and core.derivative == "reverse")
            self.pending.append(Request(request, start, result_text, results, grown, plain))
            return []
        names = [core.fresh("v") for _ in range(count)]
        calls = [(c, names[i * results : (i + 1) * results]) for i, c in enumerate(columns)]
        return self.add(Step([f"{', '.join(names)} = {result_text(text)}"], calls, model, linear_at), grown=grown)

    def wait(self, request: Request, work: str | None = None, *, called: str | None = None) -> list[str]:
        """Wait for a request, or (`called` is not None) return its results only: the text is elsewhere.

        With `work`, an array, something is computed of it meanwhile.
        """
        self.pending.remove(request)
        names = [self.core.fresh("v") for _ in range(len(request.start.calls) * request.results)]
        calls = [
            (operands, names[i * request.results : (i + 1) * request.results])
            for i, (operands, _) in enumerate(request.start.calls)
        ]
        lines = []
        if called is None:
            self.core.ops["overlap" if work else "wait"] += 1
            waited = f"mpixla.wait({request.name})"
            if work:
                waited = self.core.fresh("r")
                lines = [self.overlap(waited, request.name, work)]
            lines.append(f"{', '.join(names)} = {request.text(waited)}")
        start = request.start
        return self.add(Wait(lines, calls, start.model, start.linear_at, request.name), grown=request.grown)

    def overlap(self, results: str, requests: str, work: str) -> str:
        """Add the computation meanwhile; return its text, and the names of the requests' results."""
        made = self.core.fresh("v")
        step = Step([], [([work], [made])], lambda arrays: [[a.T for a in arrays[0]]])
        self.add(step, grown=work in self.grown)
        return f"{results}, {made} = mpixla.overlap({requests}, lambda x: x.T, {work})"

    def waitall(self, work: str | None = None) -> None:
        """Wait for several requests at once, in any order."""
        plain = [r for r in self.pending if r.plain and r.results == 1]
        some = [plain[i] for i in self.core.rng.permutation(len(plain))[: self.core.rng.integers(1, 4)]]
        if not some:
            return
        self.core.ops["overlap" if work else "waitall"] += 1
        first = len(self.steps)
        names = [self.wait(r, called="waitall")[0] for r in some]
        requests = f"[{', '.join(r.name for r in some)}]"
        lines = [f"{', '.join([*names, ''])}= mpixla.waitall({requests})"]
        self.steps[first].lines = [self.overlap(f"[{', '.join(names)}]", requests, work)] if work else lines

    def finish(self) -> None:
        """Wait for what is still under way."""
        while self.pending:
            self.wait(self.core.choose(self.pending))


def _argument(leaves: list[str], tree: str, keys: bool) -> str:
    texts = [f"jax.random.wrap_key_data({n})" if keys else n for n in leaves]
    if len(texts) == 1:
        return texts[0]
    if tree == "list":
        return f"[{', '.join(texts)}]"
    return "{" + ", ".join(f'"{chr(97 + i)}": {text}' for i, text in enumerate(texts)) + "}"


def run(steps: list[Step], env: Env, tape: Tape) -> None:
    for step in steps:
        step.evaluate(env, tape)


__all__ = ["Core", "Env", "Request", "Scope", "Start", "Step", "Value", "Wait", "run"]
