"""Programs: drawn by a seed and a number, the same ones on all ranks; as text, and what they must give."""

import inspect
import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from reference import DTYPES
from soak import prelude
from soak.blocks import fill
from soak.comms import Comm, Maker
from soak.oracle import Arrays, Tape, Value, flat, unflat
from soak.steps import Core, Env, Scope, Step, run

TRANSFORMS = ["", "", "", "", "", "vmap", "jvp", "linearize", "vjp", "grad", "checkpoint", "vmap of vjp"]
FORWARD, REVERSE = ("jvp", "linearize"), ("vjp", "grad", "checkpoint", "vmap of vjp")
BATCH = 2
SHARED_BY = 5  # programs that share some communicators


@dataclass
class Program:
    """One program: its text, and what it must give. A transformation is applied to the function `inner` in the text."""

    seed: int
    number: int
    size: int
    shared: list[Comm]  # communicators that it has in common with the programs around it
    own: list[Comm]
    transform: str
    lines: list[str]
    steps: list[Step]
    parameters: list[str]
    returns: list[str]
    statuses: list[tuple[str, list[tuple[int | None, int, int]]]]
    like: list[Arrays]  # the parameters of the inner function, as an example
    gives: list[Arrays]  # and its results
    optimized: bool
    ops: Counter
    types: Counter

    # Inputs and results

    def _drawn(self, draw: int) -> list[Arrays]:
        rng = np.random.default_rng([self.seed, self.number, 1, draw])
        return [[values(rng, a.dtype, a.shape) for a in arrays] for arrays in self.like]

    def inputs(self, draw: int) -> list[Arrays]:
        """Return all ranks' arguments of the function and, for derivatives, tangents or cotangents."""
        if self.transform == "vmap":
            return _stacked([self._drawn(BATCH * draw + i) for i in range(BATCH)])
        if self.transform == "vmap of vjp":
            return _stacked([self._drawn(BATCH * draw + i) + self._seeds(BATCH * draw + i) for i in range(BATCH)])
        return self._drawn(draw) + self._seeds(draw)

    def _seeds(self, draw: int) -> list[Arrays]:
        """Return tangents of the arguments, or cotangents of the results."""
        rng = np.random.default_rng([self.seed, self.number, 2, draw])
        like = {**dict.fromkeys(FORWARD, self.like), **dict.fromkeys(REVERSE, self.gives)}.get(self.transform, [])
        if self.transform == "grad":
            return []
        return [[values(rng, a.dtype, a.shape) for a in arrays] for arrays in like]

    def expected(self, draw: int) -> list[Arrays]:
        """Return the right results on all ranks."""
        if self.transform == "vmap":
            return _stacked([self._one(BATCH * draw + i) for i in range(BATCH)])
        if self.transform == "vmap of vjp":
            return _stacked([self._one(BATCH * draw + i) for i in range(BATCH)])
        return self._one(draw)

    def _one(self, draw: int) -> list[Arrays]:
        env: Env = {name: Value(x) for name, x in zip(self.parameters, self._drawn(draw), strict=True)}
        arguments = [env[name] for name in self.parameters]
        tape = Tape()
        run(self.steps, env, tape)
        results = [env[name] for name in self.returns]
        values_of = [v.arrays for v in results]
        seeds = self._seeds(draw)
        if self.transform in FORWARD:
            known = {v: flat(t) for v, t in zip(arguments, seeds, strict=True)}
            tangents = tape.forward(known)
            moved = [unflat(tangents.get(v, np.zeros(flat(v).size)), v.arrays) for v in results]
            return values_of + moved
        if self.transform in REVERSE:
            given: dict[Value, np.ndarray] = {}
            ones = [[np.ones_like(a) for a in v.arrays] for v in results]
            for v, ct in zip(results, ones if self.transform == "grad" else seeds, strict=True):
                given[v] = given.get(v, 0) + flat(ct)
            found = tape.backward(given)
            back = [unflat(found.get(v, np.zeros(flat(v).size)), v.arrays) for v in arguments]
            return back if self.transform == "grad" else values_of + back
        return values_of

    # Text

    def setup(self, comms: list[Comm]) -> str:
        return "".join(f"{c.name} = {c.make}\n" for c in comms if c.name)

    def teardown(self, comms: list[Comm]) -> str:
        return "".join(f"{c.name}.Free()\n" for c in reversed(comms) if c.name and c.freed)

    @property
    def text(self) -> str:
        """The functions of the program. The one that is run is `program`."""
        args, returned = ", ".join(self.parameters), ", ".join(self.returns)
        name = "inner" if self.transform else "program"
        lines = [f"{status} = MPI.Status()" for status, _ in self.statuses]
        lines += ["", "", f"def {name}({args}):", *(f"    {line}" for line in self.lines), f"    return {returned},"]
        seeds = [f"t{i}" for i in range(len(self.like) if self.transform in FORWARD else len(self.gives))]
        ts = ", ".join(seeds)
        outer = {
            "vmap": [f"def program({args}):", f"    return jax.vmap(inner)({args})"],
            "jvp": [
                f"def program({args}, {ts}):",
                f"    y, t = jax.jvp(inner, ({args},), ({ts},))",
                "    return *y, *t",
            ],
            "linearize": [
                f"def program({args}, {ts}):",
                f"    y, linear = jax.linearize(inner, {args})",
                f"    return *y, *linear({ts})",
            ],
            "grad": [
                f"def program({args}):",
                f"    def loss({args}):",
                f"        return sum(mpixla.allreduce(jnp.sum(y), MPI.SUM) for y in inner({args}))",
                "",
                f"    return jax.grad(loss, {tuple(range(len(self.parameters)))})({args})",
            ],
        }
        for kind, function in (("vjp", "inner"), ("checkpoint", "jax.checkpoint(inner)"), ("vmap of vjp", "inner")):
            outer[kind] = [
                f"def program({args}, {ts}):",
                f"    y, back = jax.vjp({function}, {args})",
                f"    return *y, *back(({ts},))",
            ]
        outer["vmap of vjp"] = [
            outer["vjp"][0].replace("program", "single"),
            *outer["vjp"][1:],
            "",
            "",
            f"def program({args}, {ts}):",
            f"    return jax.vmap(single)({args}, {ts})",
        ]
        if self.transform:
            lines += ["", "", *outer[self.transform]]
        return "\n".join(lines).strip("\n") + "\n"

    @property
    def halves(self) -> str | None:
        """The same as two functions, of which the second takes what the first has: arrays and requests."""
        if self.transform or len(self.steps) < 4:
            return None
        middle = len(self.steps) // 2
        first, second = (
            [line for s in part for line in s.lines] for part in (self.steps[:middle], self.steps[middle:])
        )
        later = "\n".join([*second, *self.returns])
        known = [*self.parameters, *dict.fromkeys(re.findall(r"\b[vr]\d+\b", "\n".join(first)))]
        carried = [n for n in known if re.search(rf"\b{n}\b", later) and self._at_top(n, first)]
        names = ", ".join([*carried, ""]).strip()
        return "\n".join(
            [
                f"def first({', '.join(self.parameters)}):",
                *(f"    {line}" for line in first),
                f"    return {names or '()'}",
                "",
                "",
                f"def second({', '.join(carried)}):",
                *(f"    {line}" for line in second),
                f"    return {', '.join(self.returns)},",
                "",
            ]
        )

    def _at_top(self, name: str, lines: list[str]) -> bool:
        """Return whether a name belongs to the function itself, not to a function inside."""
        targets = (match[0] for line in lines if (match := re.match(r"[][\w, ]+ = ", line)))
        return name in self.parameters or any(re.search(rf"\b{name}\b", target) for target in targets)

    def script(self, draw: int = 0) -> str:
        """Return a program of its own that shows what is wrong: run it on as many ranks."""
        given, wanted = self.inputs(draw), self.expected(draw)
        comms = [*self.shared, *self.own]
        lines = [
            f"# Program {self.number} of seed {self.seed}: mpirun -n {self.size} python this_file.py",
            inspect.getsource(prelude).split('"""', 2)[2].strip(),
            "",
            "",
            self.setup(comms) + self.text,
            "",
            "import ml_dtypes  # noqa: E402, F401",
            "",
            "# For each rank the arguments, and what they must give.",
            "nan, inf = float('nan'), float('inf')",
            f"arguments = {_literal(given, self.size)}[world.rank]",
            f"expected = {_literal(wanted, self.size)}[world.rank]",
            "for how in (lambda f: f, jax.jit, mpixla.jit):",
            "    results = how(program)(*map(jnp.asarray, arguments))",
            "    for i, (got, want) in enumerate(zip(results, expected, strict=True)):",
            "        wide = np.float64 if np.isrealobj(want) else np.complex128",
            "        if got.shape != want.shape or got.dtype != want.dtype or not np.allclose(",
            "            np.asarray(got).astype(wide), want.astype(wide), rtol=1e-9, atol=0, equal_nan=True",
            "        ):",
            '            print(f"rank {world.rank}: result {i} is {got!r}, not {want!r}", flush=True)',
            "            world.Abort(1)",
            self.teardown(comms),
        ]
        return "\n".join(lines)


def _literal(values_of: list[Arrays], size: int) -> str:
    rows = []
    for rank in range(size):
        texts = [
            f"np.array({_wide(a).tolist()!r}).astype('{a.dtype.name}').reshape({a.shape})"
            for a in (arrays[rank] for arrays in values_of)
        ]
        rows.append("    [\n" + "".join(f"        {text},\n" for text in texts) + "    ],\n")
    return "[\n" + "".join(rows) + "]"


def _wide(a: np.ndarray) -> np.ndarray:
    return a if a.dtype.kind in "biufc" else a.astype(np.float64)


def _stacked(draws: list[list[Arrays]]) -> list[Arrays]:
    return [[np.stack(own) for own in zip(*same, strict=True)] for same in zip(*draws, strict=True)]


def values(rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Return numbers so small and short that sums and products of a few are exact in every type."""
    whole = rng.integers(-3, 4, shape)
    if dtype.kind == "b":
        return np.asarray(whole > 0)
    if dtype.kind == "c":
        return np.asarray(whole + 1j * rng.integers(-3, 4, shape)).astype(dtype)
    if dtype.kind in "iu":
        return np.asarray(abs(whole) if dtype.kind == "u" else whole).astype(dtype)
    if dtype.name == "float8_e8m0fnu":  # has powers of two only
        return np.asarray(2.0 ** (abs(whole) % 3)).astype(dtype)
    if dtype.itemsize == 1:
        return np.asarray(whole % 3 - 1).astype(dtype)
    return np.asarray(whole).astype(dtype)


def shared_comms(seed: int, number: int, size: int) -> list[Comm]:
    """Return the communicators that SHARED_BY programs share; the first of these programs makes them."""
    maker = Maker(np.random.default_rng([seed, number // SHARED_BY, 3]), size, "shared")
    for _ in range(2):
        maker.draw()
    return maker.made


def draw(seed: int, number: int, size: int, transform: str | None = None) -> Program:
    """Return the program of this number."""
    rng = np.random.default_rng([seed, number, 0])
    shared = shared_comms(seed, number, size)
    maker = Maker(rng, size, "comm")
    maker.cartesian()
    for _ in range(rng.integers(1, 3)):
        maker.draw()
    if rng.random() < 0.4:
        maker.graphs()
    drawn = TRANSFORMS[rng.integers(len(TRANSFORMS))]
    transform = drawn if transform is None else transform
    derivative = "forward" if transform in FORWARD else "reverse" if transform in REVERSE else ""
    dtypes = list(map(np.dtype, DTYPES))
    core = Core(rng, size, [*shared, *maker.made], derivative, dtypes)
    env: Env = {}
    for i in range(rng.integers(1, 3 if derivative else 5)):
        dtype = np.dtype(np.float64) if derivative else dtypes[rng.integers(len(dtypes))]
        shape = [(3,), (2, 2), (), (4,)]
        if not derivative:
            shape += [(1,), (2, 3), *([] if transform == "vmap" else [(0,)])]
        drawn_shape = shape[rng.integers(len(shape))]
        if not derivative and rng.random() < 0.03:
            drawn_shape = (30011,)  # too much for one packet
        env[f"x{i}"] = Value(
            [values(np.random.default_rng([seed, number, r, i, 4]), dtype, drawn_shape) for r in range(size)]
        )
    parameters = list(env)
    scope = Scope(core, env, parameters, set(), batched=transform.startswith("vmap"))
    fill(scope, int(rng.integers(3, 10 if derivative else 17)), blocks=True)
    scope.finish()
    if scope.steps == []:
        scope.local(f"{parameters[0]}.T", parameters[:1], lambda a: a.T)
    made = [n for n in scope.names if n not in parameters] or parameters[:1]
    text = "\n".join(scope.lines)
    unused = [n for n in made if len(re.findall(rf"\b{n}\b", text)) == 1]
    returns = [n for n in made if rng.random() < (0.8 if n in unused else 0.15)] or made[-1:]
    returns = returns[-8:]
    if derivative:
        returns = [n for n in returns if scope.dtype(n) == np.float64] or parameters[:1]
    return Program(
        seed, number, size, shared, maker.made, transform, scope.lines, scope.steps, parameters, returns, core.statuses,
        [scope.arrays(n) for n in parameters], [scope.arrays(n) for n in returns], bool(rng.random() < 0.3),
        core.ops, core.types,
    )  # fmt: skip
