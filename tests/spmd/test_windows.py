"""Messages that are boxes of arrays: what programs give is the same with windows, without them, and by NumPy.

Programs are drawn: exchanges of boxes between arrays, some in turn and some at once, with updates between them.
"""

import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from mpi4py import MPI

import hlo
import mpixla

pytestmark = [
    pytest.mark.needs_hook("sealing"),
    pytest.mark.skipif("MPIXLA_FAKE_DEVICE" in os.environ, reason="programs for a GPU have no windows"),
]

WORLD = MPI.COMM_WORLD
SIZE = WORLD.Get_size()
UP, DOWN = (WORLD.Get_rank() + 1) % SIZE, (WORLD.Get_rank() - 1) % SIZE


def lowered(f, *args, **options):
    """Return the lines of the messages in a program, and how many of them send, and receive, a window."""
    lines = [line for line in jax.jit(f, **options).lower(*args).as_text().splitlines() if "@mpixla_" in line]
    return lines, sum("sendsize" in line for line in lines), sum("recvsize" in line for line in lines)


def windows(f, *args):
    return lowered(f, *args)[1:]


# Drawn programs


def exchange_all(in_turn, messages, order, call, update):
    """Make each call and its update in turn, or all calls and then the updates in this order."""
    if in_turn:
        for m in messages:
            update(m, call(m))
    else:
        received = [call(m) for m in messages]
        for i in order:
            update(messages[i], received[i])


class Drawn:
    """A program of some statements on arrays of one shape, and what it gives, in NumPy for all ranks."""

    def __init__(self, seed):
        rng = np.random.default_rng([seed, 77])
        self.shape = tuple(int(n) for n in rng.integers(2, 6, rng.integers(1, 5)))
        self.dtype = np.dtype(["float32", "int32", "complex64", "int8", "float64"][rng.integers(5)])
        self.starts = rng.integers(-2, 6, 4).tolist()
        self.statements = []
        for _ in range(rng.integers(1, 4)):
            kind = rng.random()
            if kind < 0.2:
                self.statements.append(("scale", int(rng.integers(2))))
            elif kind < 0.3:
                self.statements.append(("clear", int(rng.integers(2)), self.box(rng)))
            else:
                messages = [self.message(rng) for _ in range(rng.integers(1, 4))]
                self.statements.append(("exchange", bool(rng.random() < 0.5), messages, self.order(rng, messages)))
        self.statements.append(("exchange", True, [self.message(rng)], [0]))

    def order(self, rng, messages):
        return rng.permutation(len(messages)).tolist()

    def box(self, rng):
        """Return an index, of which some axes are numbers, and some are slices."""
        index = []
        for n in self.shape:
            first = int(rng.integers(n))
            if rng.random() < 0.5:
                index.append(first)
            else:
                index.append(slice(first, int(rng.integers(first + 1, n + 1))) if rng.random() < 0.7 else slice(0, n))
        return tuple(index)

    def count(self, index):
        return np.zeros(self.shape)[index].size

    def message(self, rng):
        """Draw a message: its source box, its target box, its distance, and its template."""
        to = self.box(rng)
        for _ in range(20):
            box = self.box(rng)
            if self.count(box) == self.count(to) or (self.count(box) < self.count(to) and rng.random() < 0.3):
                break
        else:
            box = to
        at_run_time = None
        if rng.random() < 0.25:
            at_run_time = rng.integers(4, size=(2, len(self.shape))).tolist()
        return {
            "from": int(rng.integers(2)),
            "box": box,
            "into": int(rng.integers(2)),
            "to": to,
            "steps": int(rng.integers(1, 3)),
            "periodic": bool(rng.random() < 0.6),
            "template": ["constant", "same", "other"][rng.integers(3)],
            "at_run_time": at_run_time,
        }

    def values(self, rank):
        rng = np.random.default_rng([5, rank])
        return [rng.integers(-50, 50, self.shape).astype(self.dtype) for _ in range(2)]

    def size_of(self, index):
        return tuple(n if isinstance(i, slice) else 1 for i, n in zip(index, self._kept(index), strict=True))

    def _kept(self, index):
        return np.zeros(self.shape)[tuple(i if isinstance(i, slice) else slice(i, i + 1) for i in index)].shape

    def run(self, arrays, starts):
        """Return the program on this rank."""
        arrays = list(arrays)
        for kind, *what in self.statements:
            if kind == "scale":
                arrays[what[0]] = arrays[what[0]] * 2
            elif kind == "clear":
                arrays[what[0]] = arrays[what[0]].at[what[1]].set(7)
            else:
                self._exchange(arrays, starts, *what)
        return arrays

    def _read(self, array, starts, index, at):
        if at is None:
            return array[index]
        return lax.dynamic_slice(array, [starts[i] for i in at], self.size_of(index))

    def _exchange(self, arrays, starts, in_turn, messages, order):
        def update(m, value):
            at = m["at_run_time"]
            if at is None:
                arrays[m["into"]] = arrays[m["into"]].at[m["to"]].set(value)
            else:
                arrays[m["into"]] = lax.dynamic_update_slice(arrays[m["into"]], value, [starts[i] for i in at[1]])

        def call(m):
            at = m["at_run_time"] or (None, None)
            there = self._read(arrays[m["into"]], starts, m["to"], at[1])
            template = {"same": there, "constant": jnp.full_like(there, 3), "other": there * 0 + 5}[m["template"]]
            dest, source = ends(WORLD.Get_rank(), m)
            return mpixla.sendrecv(self._read(arrays[m["from"]], starts, m["box"], at[0]), template, source, dest)

        exchange_all(in_turn, messages, order, call, update)

    def model(self):
        """Return the arrays of all ranks at the end."""
        all_arrays = [self.values(rank) for rank in range(SIZE)]
        for kind, *what in self.statements:
            if kind == "exchange":
                self._model_exchange(all_arrays, *what)
            for arrays in all_arrays:
                if kind == "scale":
                    arrays[what[0]] = arrays[what[0]] * self.dtype.type(2)
                elif kind == "clear":
                    arrays[what[0]][what[1]] = 7
        return all_arrays

    def index(self, index, at):
        """Return the index with what is known at run time only, as XLA takes it."""
        if at is None:
            return index
        sizes = self.size_of(index)
        wanted = [self.starts[i] + n * (self.starts[i] < 0) for i, n in zip(at, self.shape, strict=True)]
        first = [max(0, min(i, n - m)) for i, n, m in zip(wanted, self.shape, sizes, strict=True)]
        return tuple(slice(i, i + m) for i, m in zip(first, sizes, strict=True))

    def _model_exchange(self, all_arrays, in_turn, messages, order):
        def call(m):
            at = m["at_run_time"] or (None, None)
            box, to = self.index(m["box"], at[0]), self.index(m["to"], at[1])
            received = []
            for rank, arrays in enumerate(all_arrays):
                template = {"same": lambda x: x.copy(), "constant": lambda x: x * 0 + 3, "other": lambda x: x * 0 + 5}
                there = np.array(template[m["template"]](arrays[m["into"]][to]), self.dtype)
                source = ends(rank, m)[1]
                if source != MPI.PROC_NULL:
                    message = np.ravel(all_arrays[source][m["from"]][box])
                    there.reshape(-1)[: message.size] = message
                received.append((to, there))
            return received

        def update(m, received):
            for arrays, (to, value) in zip(all_arrays, received, strict=True):
                arrays[m["into"]][to] = value

        exchange_all(in_turn, messages, order, call, update)


def ends(rank, m):
    dest, source = rank + m["steps"], rank - m["steps"]
    if m["periodic"]:
        return dest % SIZE, source % SIZE
    return tuple(r if 0 <= r < SIZE else MPI.PROC_NULL for r in (dest, source))


def in_a_loop(run):
    return lambda arrays, starts: lax.fori_loop(0, 1, lambda i, x: run(x, starts), list(arrays))


def in_a_scan(run):
    return lambda arrays, starts: lax.scan(lambda x, _: (run(x, starts), None), list(arrays), None, length=1)[0]


def in_a_while_loop(run):
    def loop(arrays, starts):
        return lax.while_loop(lambda s: s[1] < 1, lambda s: (run(s[0], starts), s[1] + 1), (list(arrays), 0))[0]

    return loop


def in_a_branch(run):
    return lambda arrays, starts: lax.cond(starts[0] > -9, run, lambda x, s: x, list(arrays), starts)


def in_a_batch(run):
    def batch(arrays, starts):
        twice = [jnp.stack([x, x + 1]) for x in arrays]
        return [x[0] for x in jax.vmap(lambda xs: run(xs, starts))(twice)]

    return batch


def in_a_jit(run):
    return lambda arrays, starts: [x + 1 - 1 for x in jax.jit(run)([x * 1 for x in arrays], starts)]


HOW = {
    "alone": lambda run: run,
    "loop": in_a_loop,
    "scan": in_a_scan,
    "while loop": in_a_while_loop,
    "branch": in_a_branch,
    "batch": in_a_batch,
    "jit": in_a_jit,
}


@pytest.mark.not_checked  # some messages are shorter than their templates
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("seed", range(40))
def test_drawn_programs(seed, how, rank, monkeypatch):
    program = Drawn(seed)
    want = program.model()[rank]
    for setting in ("1", "0", str(rank % 2)):
        monkeypatch.setenv("MPIXLA_WINDOWS", setting)
        run = HOW[how](lambda arrays, starts: program.run(arrays, starts))
        given = [jnp.asarray(x) for x in program.values(rank)]
        got = jax.jit(run, donate_argnums=0 if seed % 2 else ())(given, jnp.array(program.starts, jnp.int32))
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(g, w, err_msg=f"MPIXLA_WINDOWS={setting} {program.statements}")


# Which messages become windows


def row(x, value=0.0):
    return jnp.full(x.shape[1], value, x.dtype)


def swap(send, keep):
    """Run the program with this rank's function, so that each rank's program may differ."""
    return mpixla.sendrecv(send, keep, source=WORLD.Get_rank(), dest=WORLD.Get_rank())


def one_after_the_other(x):
    x = x.at[0].set(mpixla.sendrecv(x[-2], row(x), source=DOWN, dest=UP))
    return x.at[-1].set(mpixla.sendrecv(x[1], row(x), source=UP, dest=DOWN))


def all_at_once(x):
    low = mpixla.sendrecv(x[-2], x[0], source=DOWN, dest=UP)
    high = mpixla.sendrecv(x[1], x[-1], source=UP, dest=DOWN)
    return x.at[0].set(low).at[-1].set(high)


def in_the_other_order(x):
    low = mpixla.sendrecv(x[-2], row(x), source=DOWN, dest=UP)
    high = mpixla.sendrecv(x[1], row(x), source=UP, dest=DOWN)
    x = x.at[-1].set(high)
    return x.at[0].set(low)


def four_sides_of_the_original(x):
    sides = [x[1], x[:, 1], x[-2], x[:, -2]]
    south, west, north, east = (swap(side, jnp.zeros_like(side)) for side in sides)
    return x.at[0].set(north).at[:, 0].set(east).at[-1].set(south).at[:, -1].set(west)


def at_run_time(x):
    i = jnp.int32(x[0, 0]) * 0 + 2
    received = swap(lax.dynamic_slice(x, (i, i * 0), (1, 5)), jnp.zeros((1, 5)))
    return lax.dynamic_update_slice(x, received, (i + 9, i * 0))


def both_numbers_at_run_time(x):
    i = jnp.int32(x[0, 0]) * 0
    received = mpixla.sendrecv(x[i + 1], row(x), source=i + DOWN, dest=i + UP, sendtag=i + 3)
    return lax.dynamic_update_slice(x, received[None], (i, i))


def two_arrays(x):
    y = x * 2
    return x, y.at[0].set(swap(x[1], row(x)))


def with_a_status(x):
    status = MPI.Status()
    return x.at[0].set(mpixla.sendrecv(x[-2], row(x), source=DOWN, dest=UP, status=status))


def send_and_receive(x):
    if WORLD.Get_rank() % 2 == 0:
        mpixla.send(x[-2], UP)
        return x.at[0].set(mpixla.recv(row(x), DOWN))
    received = mpixla.recv(row(x), DOWN)
    mpixla.send(x[-2], UP)
    return x.at[0].set(received)


def send_before_computing(x):
    x = x * 2
    x = x.at[:, 0].set(swap(x[:, -2], jnp.empty_like(x[:, 0])))
    mpixla.send(x[1], UP)
    y = x[1:] - x[:-1]
    return x.at[0].set(mpixla.recv(row(x), DOWN)), y


def from_nobody(x):
    return x.at[0].set(mpixla.sendrecv(x[1], x[0], source=MPI.PROC_NULL, dest=MPI.PROC_NULL))


def from_nobody_with_a_constant(x):
    return x.at[0, 1:-1].set(mpixla.sendrecv(x[1, 1:-1], row(x, -7.5)[1:-1], MPI.PROC_NULL, MPI.PROC_NULL))


def an_argument_that_is_only_sent(x):
    return swap(x[1], row(x))


def derivative(x):
    return jax.grad(lambda x: (one_after_the_other(x) * x).sum())(x)


def columns_and_rows_of_many(x):
    y = jnp.stack([x, 2 * x, 3 * x])
    y = y.at[:, :, 0].set(swap(y[:, :, -2], jnp.zeros(y.shape[:2])))
    return y.at[1].set(swap(y[2], y[1]))


# For each program: its messages, and those that send, and receive, a window.
PROGRAMS = {
    one_after_the_other: (2, 2, 2),
    all_at_once: (2, 2, 2),
    in_the_other_order: (2, 2, 2),
    four_sides_of_the_original: (4, None, None),
    at_run_time: (1, 1, 1),
    both_numbers_at_run_time: (1, 1, 1),
    two_arrays: (1, 1, 1),
    with_a_status: (1, 1, 1),
    from_nobody: (1, 1, 1),
    from_nobody_with_a_constant: (1, 1, None),
    an_argument_that_is_only_sent: (1, 1, 0),
    derivative: (4, None, None),
    columns_and_rows_of_many: (2, 2, 2),
}


def compared(f, x, monkeypatch):
    """Return the results with windows, which are those without, and those with windows on every other rank."""
    results = []
    for setting in ("1", "0", str(WORLD.Get_rank() % 2)):
        monkeypatch.setenv("MPIXLA_WINDOWS", setting)
        results.append(jax.tree.leaves(jax.jit(lambda x: f(x))(x)))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    monkeypatch.setenv("MPIXLA_WINDOWS", "1")
    return results[0]


@pytest.mark.parametrize("f", [*PROGRAMS, send_and_receive, send_before_computing], ids=lambda f: f.__name__)
def test_programs(f, rank, monkeypatch):
    x = jnp.arange(30.0).reshape(6, 5) + 100 * rank
    compared(f, x, monkeypatch)
    if f in PROGRAMS:
        lines, sends, receives = lowered(f, x)
        calls, *expected = PROGRAMS[f]
        assert len([line for line in lines if "mpixla_sendrecv" in line]) == calls
        assert all(e in (None, n) for e, n in zip(expected, (sends, receives), strict=True)), (sends, receives)


def test_values_of_both_orders(rank):
    x = np.stack([np.arange(30.0).reshape(6, 5) + 100 * r for r in range(SIZE)])
    want = x[rank].copy()
    want[0], want[-1] = x[DOWN][-2], x[UP][1]
    for f in (one_after_the_other, all_at_once, in_the_other_order):
        np.testing.assert_array_equal(jax.jit(f)(x[rank]), want)


def test_sides_keep_the_corners_of_the_original(rank):
    x = np.arange(30.0).reshape(6, 5) + 100 * rank
    want = x.copy()
    want[0] = x[-2]
    want[:, 0] = x[:, -2]
    want[-1] = x[1]
    want[:, -1] = x[:, 1]
    np.testing.assert_array_equal(jax.jit(four_sides_of_the_original)(x), want)


@pytest.mark.parametrize(
    "f",
    [
        # An array that is nowhere in memory: XLA computes a row of it.
        lambda x: swap((x * x - 1)[-1], row(x)),
        # One that has been overwritten by then.
        lambda x: (lambda s, y: (swap(s, row(x)), y))((x * 2)[1], (x * 2).at[1].set(0)),
        lambda x: (lambda y: (lambda s, z: (z, swap(s, z[0])))(y[1], y.at[1].set(0)))(mpixla.allreduce(x, MPI.SUM)),
        # One that only a sum is left of.
        lambda x: (x * 2).at[0].set(swap(row(x), row(x))).sum(),
        # One that is needed as it was.
        lambda x: (lambda y: (y.at[0].set(swap(row(x), row(x))), y))(x * 2),
        # An update that also adds, or that may be out of bounds.
        lambda x: x.at[0].add(swap(row(x), row(x))),
        lambda x: x.at[jnp.int32(x[0, 0])].set(swap(row(x), row(x))),
        lambda x: x.at[jnp.array([0, 1])].set(swap(jnp.ones((2, 5)), jnp.zeros((2, 5)))),
        # With a step, backwards, of another type.
        lambda x: swap((x * 2)[::2], jnp.zeros((3, 5))),
        lambda x: swap(jnp.flip((x * 2)[1:2], 1), jnp.zeros((1, 5))),
        lambda x: swap((x * 2)[1].astype(jnp.int32), jnp.zeros(5, jnp.int32)),
        # An MPI_Scatter, whose name is that of an update.
        lambda x: (lambda r: mpixla.scatter(r[0] if WORLD.Get_rank() else r, 0))(swap(*[jnp.ones((SIZE, 5))] * 2)),
        # A message that is used twice.
        lambda x: (lambda r: (x.at[0].set(r), r))(swap(row(x), row(x))),
    ],
)
def test_program_without_a_window_stays_unchanged(f, rank, monkeypatch):
    x = jnp.arange(30.0).reshape(6, 5) + rank
    assert windows(f, x) == (0, 0)
    compared(f, x, monkeypatch)


def step(x, n=1):
    """Advance a model: compute a field, exchange its edges, and read around each point."""
    for _ in range(n):
        inner = x[1:-1, 1:-1] + 0.1 * (x[:-2, 1:-1] + x[2:, 1:-1] - 2 * x[1:-1, 1:-1])
        x = x.at[1:-1, 1:-1].set(inner)
        x = one_after_the_other(x)
        x = x.at[:, 0].set(swap(x[:, -2], jnp.empty_like(x[:, 0])))
        x = x.at[:, -1].set(swap(x[:, 1], jnp.empty_like(x[:, -1])))
    return x


COSTS = {
    "a step": lambda x: step(x),
    "steps": lambda x: step(x, 3),
    "steps in a loop": lambda x: lax.fori_loop(0, 5, lambda i, x: step(x), x),
    "steps in a scan": lambda x: lax.scan(lambda x, _: (step(x), x.sum()), x, None, length=4),
    "steps in a while loop": lambda x: lax.while_loop(lambda s: s[0, 0] < 0, step, x),
    "steps in a jit": lambda x: jax.jit(step)(x * 2) + 1,
    "a derivative": lambda x: jax.grad(lambda x: step(x, 2).sum())(x),
    "a batch": lambda x: jax.vmap(step)(jnp.stack([x, 2 * x])),
    "a send": send_before_computing,
    "a branch": lambda x: lax.cond(x[0, 0] > -1, step, lambda x: x, x),
    **{f.__name__: f for f in PROGRAMS},
}


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("donated", [(), (0,)], ids=["kept", "donated"])
@pytest.mark.parametrize("name", COSTS)
def test_windows_add_no_copy_and_no_byte(name, donated, rank, monkeypatch):
    """No copy more, and no byte more, than without windows; and the same bits."""
    x = jnp.arange(3000.0).reshape(50, 60) + rank
    f = COSTS[name]
    compared(f, x, monkeypatch)
    copies, memory = [], []
    for setting in ("1", "0"):
        monkeypatch.setenv("MPIXLA_WINDOWS", setting)
        program = jax.jit(lambda x: f(x), donate_argnums=donated).lower(x).compile()
        copies.append(len(hlo.Program(program.as_text()).copies(x.size // 2)))
        memory.append(program.memory_analysis().temp_size_in_bytes)
    assert copies[0] <= copies[1]
    assert memory[0] <= memory[1] + 64, memory


def test_exchange_of_a_model():
    """Every message of a step is a window, and XLA has no kernel for one."""
    x = jnp.ones((6, 5))
    assert windows(lambda x: lax.fori_loop(0, 5, lambda i, x: step(x), x), x) == (4, 4)
    text = jax.jit(lambda x: one_after_the_other(one_after_the_other(x)), donate_argnums=0).lower(x).compile().as_text()
    opcodes = {i.opcode for _, _, i in hlo.Program(text).running()}
    assert opcodes <= {"parameter", "after-all", "custom-call", "get-tuple-element", "bitcast", "copy", "constant"}


def test_computing_waits_for_a_send_before_it(monkeypatch):
    """The array that is sent from is the send's result, in place; and computing uses that."""
    x = jnp.ones((6, 5))
    line, results = r"(%\S+?):\d+ = stablehlo.custom_call @mpixla_send\(.*output_operand_alias<", []
    for setting in ("1", "0"):
        monkeypatch.setenv("MPIXLA_WINDOWS", setting)
        text = jax.jit(lambda x: send_before_computing(x)).lower(x).as_text()
        results += [(len(found), all(f"{name}#0" in text for name in found)) for found in [re.findall(line, text)]]
    assert results == [(1, True), (0, True)]


def test_setting(monkeypatch):
    x = jnp.ones((6, 5))
    monkeypatch.setenv("MPIXLA_WINDOWS", "0")
    assert windows(lambda x: one_after_the_other(x), x) == (0, 0)
    monkeypatch.delenv("MPIXLA_WINDOWS")
    assert windows(lambda x: one_after_the_other(x), x) == (2, 2)
    assert windows(mpixla.jit(lambda x: one_after_the_other(x))._sealed, x) == (2, 2)


def test_traced_programs_have_no_windows():
    names = [e.primitive.name for e in jax.make_jaxpr(one_after_the_other)(jnp.ones((6, 5))).eqns]
    assert names.count("slice") == names.count("scatter") == names.count("sendrecv") == 2


def test_status_of_a_window(rank):
    status = MPI.Status()
    x = jnp.arange(30.0).reshape(6, 5) + 100 * rank

    @jax.jit
    def f(x):
        return x.at[0].set(mpixla.sendrecv(x[-2], row(x), source=DOWN, dest=UP, sendtag=4, status=status))

    assert windows(f, x) == (1, 1)
    jax.block_until_ready(f(x))
    assert (status.Get_source(), status.Get_tag(), status.Get_count(MPI.BYTE)) == (DOWN, 4, x.itemsize * 5)


@pytest.mark.not_checked
def test_message_that_is_too_long(rank):
    """The error is that of any message."""

    @jax.jit
    def f(x):
        x = x.at[0, :3].set(mpixla.sendrecv(x[-2], jnp.zeros(3), source=DOWN, dest=UP))
        return x

    x = jnp.ones((6, 5))
    assert windows(f, x) == (1, 1)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"MPI_Sendrecv"):
        jax.block_until_ready(f(x))
