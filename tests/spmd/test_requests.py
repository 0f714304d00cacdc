"""Requests: where they may go between start and wait, and what happens to one that is waited for twice or never.

That each operation gives what it must, with its derivatives and batches, is tested with all others (reference.py).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from mpi4py import MPI

import mpixla
from hlo import Program
from reference import ROWS

HOW = pytest.mark.parametrize("how", ["eager", "jit"])


def run(how, fun):
    return jax.jit(fun) if how == "jit" else fun


def start_all(x, comm):
    """Return one request of each operation."""
    rank, size = comm.Get_rank(), comm.Get_size()
    below, above = (rank - 1) % size, (rank + 1) % size
    stacked = jnp.stack([x] * size)
    return [
        mpixla.irecv(x, below, tag=1, comm=comm),
        mpixla.isend(x, above, tag=1, comm=comm),
        mpixla.isendrecv(x, x, below, above, sendtag=2, recvtag=2, comm=comm),
        mpixla.iallreduce(x, MPI.SUM, comm=comm),
        mpixla.ibcast(x, size - 1, comm=comm),
        mpixla.iallgather(x, comm=comm),
        mpixla.ialltoall(stacked, comm=comm),
        mpixla.ireduce_scatter(stacked, MPI.MAX, comm=comm),
        mpixla.ialltoallv(stacked, [1] * size, [1] * size, comm=comm),
        mpixla.ireduce(x, MPI.SUM, 0, comm=comm),
        mpixla.igather(x, size - 1, comm=comm),
        mpixla.iscatter(stacked if rank == 0 else x, 0, comm=comm),
        mpixla.iscan(x, MPI.SUM, comm=comm),
        mpixla.iexscan(x, MPI.SUM, comm=comm),
    ]


def results_of_all(every, rank):
    """Return the results of the requests, from the ranks' arrays."""
    size = len(every)
    below = every[(rank - 1) % size]
    stack = np.stack(every)
    own = every[rank]
    basic = [below, own, below, stack.sum(0), every[-1], stack, stack, stack.max(0), stack]
    at_roots = [stack.sum(0) if rank == 0 else own, stack if rank == size - 1 else own, every[0]]
    return [*basic, *at_roots, stack[: rank + 1].sum(0), stack[:rank].sum(0)]


def check_all(results, every, rank):
    for got, want in zip(results, results_of_all(every, rank), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_request_is_no_array(comm, rank, size):
    """Whatever is computed with one says what gives the array."""
    one = mpixla.iallreduce(jnp.ones(3), MPI.SUM, comm=comm)
    several = mpixla.iallreduce({"a": jnp.ones(3), "b": 1}, MPI.SUM, comm=comm)
    for request in (one, several):
        for compute in (
            lambda r: r + 1,
            lambda r: 2 * r,
            lambda r: jnp.ones(3) - r,
            lambda r: np.ones(3) @ r,
            lambda r: -r,
            lambda r: r[0],
            lambda r: float(r),
            jnp.sin,
            np.asarray,
            jax.jit(lambda r: r / size),
        ):
            with pytest.raises(TypeError, match=r"iallreduce of .*, op SUM, on .* is no array\. wait\(request\) gives"):
                compute(request)
    np.testing.assert_array_equal(mpixla.wait(one), np.full(3, size))
    np.testing.assert_array_equal(mpixla.wait(several)["a"], np.full(3, size))


def _row_of(row, size):
    variant = row.variants(size)[0]
    operands = len(row.shapes(shape=(), rank=0, size=size, **variant))
    return lambda r, comm: row.call(*[r] * operands, comm=comm, **variant)


TAKES_DATA = {
    **{row.name: _row_of(row, MPI.COMM_WORLD.Get_size()) for row in ROWS if "barrier" not in row.name},
    "MAXLOC": lambda r, comm: mpixla.allreduce((r, r), MPI.MAXLOC, comm=comm),
    "assert_replicated": lambda r, comm: mpixla.assert_replicated(r, comm=comm),
    "fsum": lambda r, comm: mpixla.fsum(r, comm=comm),
    "mask": lambda r, comm: mpixla.norm(jnp.ones(3), mask=r, comm=comm),
    "norm": lambda r, comm: mpixla.norm(r, comm=comm),
    "recvbuf": lambda r, comm: mpixla.sendrecv(1.0, r, 0, 0, comm=comm),
    "sendbuf": lambda r, comm: mpixla.sendrecv(r, 1.0, 0, 0, comm=comm),
    "template": lambda r, comm: mpixla.allgatherv(jnp.ones(1), 1, capacity=9, template=r, comm=comm),
    "vdot": lambda r, comm: mpixla.vdot(r, r, comm=comm),
}


@pytest.mark.parametrize("name", TAKES_DATA)
def test_a_request_is_no_data(comm, size, name):
    """To JAX it is a pytree, whose arrays no operation takes for its own."""
    request = mpixla.iallreduce(1.0, MPI.SUM, comm=comm)
    for x in (request, [request]):
        with pytest.raises(TypeError, match="iallreduce .* is no array"):
            TAKES_DATA[name](x, comm)
    assert float(mpixla.wait(request)) == size


@pytest.mark.parametrize("where", ["eager to eager", "jit to jit", "jit to eager", "eager to jit"])
def test_several_in_flight_waited_for_in_another_order(comm, rank, size, where):
    every = [10 * r + np.arange(5.0) for r in range(size)]

    def start(x):
        return start_all(x, comm)

    def finish(requests):
        return [mpixla.wait(request) for request in requests[::-1]][::-1]

    before, after = where.split(" to ")
    for _ in range(3):
        requests = run(before, start)(every[rank])
        assert all(isinstance(request, mpixla.Request) for request in requests)
        check_all(run(after, finish)(requests), every, rank)


def test_carried_through_scan(rank, size, below, above):
    """Each step waits for what the step before started, all the way round and home."""

    def step(request, shift):
        x = mpixla.wait(request) + shift
        return mpixla.isendrecv(x, x, below, above), x

    @jax.jit
    def go_round(x, shifts):
        last, seen = lax.scan(step, mpixla.isendrecv(x, x, below, above), shifts)
        return mpixla.wait(last), seen

    shifts = np.arange(2.0 * size)
    last, seen = go_round(jnp.full(3, rank + 1.0), shifts)
    for i, row in enumerate(seen):
        np.testing.assert_array_equal(row, np.full(3, (rank - i - 1) % size + 1 + shifts[: i + 1].sum()))
    np.testing.assert_array_equal(last, np.full(3, (rank - 1) % size + 1 + shifts.sum()))


def test_carried_through_while_loop_and_cond(rank, size, below, above):
    def exchange(x):
        return mpixla.irecv(x, below), mpixla.isend(x, above)

    def step(i, requests):
        received, sent = mpixla.waitall(requests)
        return lax.cond(i % 2 == 0, exchange, lambda x: exchange(x * 10), received + 0 * sent)

    @jax.jit
    def go_round(x):
        return mpixla.waitall(lax.fori_loop(0, size, step, exchange(x)))[0]

    want = ((rank - 1) % size + 1) * 10 ** (size // 2)
    np.testing.assert_array_equal(go_round(jnp.full(2, rank + 1.0)), np.full(2, want))


# What is computed meanwhile


@pytest.mark.two_ranks
def test_overlap_waits_after_the_computation(rank, below, above):
    """The id that is waited for comes out of a call behind one that takes what was computed."""

    def step(x):
        request = mpixla.isendrecv(x, x, below, above)
        return mpixla.overlap(request, lambda x: {"a": jnp.sin(x), "b": [jnp.int8(3), x > 1]}, x)

    x = jnp.arange(3.0) + rank
    lines = jax.jit(step).lower(x).as_text().splitlines()
    (wait,) = [line for line in lines if "@mpixla_wait_recv" in line]
    sine = next(line.split()[0] for line in lines if "stablehlo.sine" in line)
    orders = [line.split(" = ", 1) for line in lines if "@mpixla_order" in line]
    (there,) = [name.strip() for name, call in orders if f"{sine}," in call]
    (waited,) = [name.strip() for name, call in orders if f", {there})" in call]
    assert f"({waited}," in wait


@pytest.mark.two_ranks
@pytest.mark.parametrize("wrap", [jax.jit, mpixla.jit, lambda f: f], ids=["jit", "mpixla.jit", "eager"])
def test_overlap_starts_first(comm, wrap):
    """What is computed finds the message sent, although XLA sees no other reason to send first."""
    alone = MPI.COMM_SELF.Dup()

    def sent(x):
        there = any(alone.Iprobe(source=0, tag=5) for _ in range(1000))
        return np.bool_(there and bool((x == 3).all()))

    def inner(arrays):
        x, key = arrays["x"], arrays["key"]
        found = jax.pure_callback(sent, jax.ShapeDtypeStruct((), np.bool_), x)
        received = mpixla.recv(x * found, 0, tag=5, comm=alone), mpixla.recv({"a": x, "b": x > 1}, 0, tag=6, comm=alone)
        return found, key, received

    def step(x):
        requests = mpixla.isend(x, 0, tag=5, comm=alone), mpixla.isend({"a": x, "b": x > 1}, 0, tag=6, comm=alone)
        return mpixla.overlap(requests, inner, {"x": x, "key": jax.random.key(3)})

    for _ in range(3):
        waited, (found, key, received) = jax.block_until_ready(wrap(step)(jnp.full(3, 3.0)))
        assert found
        assert (jax.random.key_data(key) == jax.random.key_data(jax.random.key(3))).all()
        for got in (waited, received):
            np.testing.assert_array_equal(got[0], np.full(3, 3.0))
            np.testing.assert_array_equal(got[1]["b"], np.full(3, True))
    alone.Free()


@pytest.mark.two_ranks
def test_overlap_holds_an_array_once(below, above):
    """However often it is given: each time is a copy else."""

    def step(x, times):
        return mpixla.overlap(mpixla.isendrecv(x, x, below, above), lambda *arrays: sum(arrays), *[x] * times)

    lowered = jax.jit(step, static_argnums=1).lower
    once, thrice = (lowered(jnp.ones(3), times).as_text().count("@mpixla_order") for times in (1, 3))
    assert once == thrice > 0


def shifted_and_squared(x, below, above):
    received, squared = mpixla.overlap(mpixla.isendrecv(x, x, below, above), lambda x, n: x**n, x, 2)
    return squared + received


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_overlap_gives_arrays_of_jax(below, above, wrap):
    """Also of NumPy's, which are arrays of its own to JAX."""
    seen = []

    def inner(tree, text):
        seen.extend(jax.tree.leaves(tree))
        assert text == "as it is"
        return tree["x"].at[0].set(7.0), np.arange(3)

    def step(x):
        request = mpixla.isendrecv(x, x, below, above)
        return mpixla.overlap(
            request, lambda *args: inner(*args, "as it is"), {"x": x, "y": [np.arange(3), np.int8(1)]}
        )

    received, (changed, own) = wrap(step)(np.ones(2))
    assert all(isinstance(x, jax.Array) for x in (*seen[:2], received, changed, own))
    assert isinstance(seen[2], np.int8)
    np.testing.assert_array_equal(received, np.ones(2))
    np.testing.assert_array_equal(changed, [7, 1])
    np.testing.assert_array_equal(own, np.arange(3))


def looped(f):
    return lambda x: lax.scan(lambda x, _: (f(x) - x * x, None), x, length=3)[0]


@pytest.mark.parametrize(
    "wrap",
    [lambda f: f, jax.jit, mpixla.jit, jax.checkpoint, looped],
    ids=["eager", "jit", "mpixla.jit", "checkpoint", "scan"],
)
def test_overlap_changes_no_value(rank, size, wrap):
    """Whatever is around it; a number that is no array is handed on as it is."""
    steps = 3 if wrap is looped else 1
    below, above = (rank - steps) % size, (rank + steps) % size
    f = wrap(lambda x: shifted_and_squared(x, (rank - 1) % size, (rank + 1) % size))
    square = 0 if wrap is looped else 1
    x, t = jnp.arange(3.0) + rank, jnp.full(3, rank + 1.0)
    want = square * np.array(x) ** 2 + np.arange(3.0) + below
    slope = 2 * square * np.array(x) * (rank + 1)
    np.testing.assert_array_equal(f(x), want)
    np.testing.assert_array_equal(jax.jvp(f, (x,), (t,))[1], slope + below + 1)
    np.testing.assert_array_equal(jax.vjp(f, x)[1](t)[0], slope + above + 1)
    np.testing.assert_array_equal(jax.vmap(f)(jnp.stack([x, x]))[1], want)
    of_batch = jax.vmap(lambda x, t: jax.vjp(f, x)[1](t)[0], in_axes=(None, 0))
    np.testing.assert_array_equal(of_batch(x, jnp.stack([t, t]))[1], slope + above + 1)


def multiplied(matrix, x, below, above, several):
    request = mpixla.isendrecv(x, x, below, above)
    if several:
        (received, _), work = mpixla.overlap([request, mpixla.ialltoall(x[:2])], jnp.matmul, matrix, x)
    else:
        received, work = mpixla.overlap(request, jnp.matmul, matrix, x)
    return (work * work).sum() / 2 + received.sum()


@pytest.mark.two_ranks
@pytest.mark.parametrize("around", ["nothing", "several", "vmap", "checkpoint", "scan", "batch"])
@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_derivatives_overlap_too(rank, below, above, mode, around):
    """Each product comes after a start and before the wait, those of the derivative as well."""
    matrix = jnp.arange(9.0).reshape(3, 3) + rank

    def f(x):
        return multiplied(matrix, x, below, above, around == "several")

    x, value = jnp.arange(3.0) + rank, f
    if around == "checkpoint":
        f = jax.checkpoint(value)
    if around == "vmap":
        f = lambda x: jax.vmap(value)(jnp.stack([x, x]))[0]  # noqa: E731
    if around == "scan":
        f = lambda x: lax.scan(lambda total, _: (value(x), None), 0.0, length=2)[0]  # noqa: E731
    if mode == "forward":
        derivative = lambda x: jax.jvp(f, (x,), (x + 1,))[1]  # noqa: E731
        want = np.vdot(matrix @ x, matrix @ (x + 1)) + (np.arange(3) + below + 1).sum()
    else:
        derivative, want = jax.grad(f), matrix.T @ matrix @ x + 1
    if around == "batch":
        one = derivative
        derivative = lambda x: jax.vmap(one)(jnp.stack([x, x]))[1]  # noqa: E731
    np.testing.assert_allclose(jax.jit(derivative)(x), want)
    np.testing.assert_allclose(derivative(x), want)
    text = jax.jit(derivative).lower(x).compile().as_text()
    starts, products, waits = Program(text).places("isendrecv", "dot", "wait_recv")
    assert len(starts) == len(waits) == 2
    for start, product, wait in zip(starts, (products[0], products[-1]), waits, strict=True):
        assert start < product < wait


@pytest.mark.parametrize("wrap", [jax.jit, mpixla.jit, lambda f: f], ids=["jit", "mpixla.jit", "eager"])
def test_overlap_of_pytrees(rank, size, below, above, wrap):
    """Whatever the requests and the arrays; what does not reach the result has no cotangent that could be NaN."""

    def inner(arrays, name):
        x = arrays[name]
        return {"x": jnp.sin(x), "n": jnp.arange(3), "key": arrays["key"], "unused": jnp.sqrt(x), name: None, "s": name}

    def step(x):
        requests = [mpixla.isendrecv(x, x, below, above), mpixla.iallreduce({"a": x, "b": jnp.int32(rank)}, MPI.SUM)]
        arrays = {"y": x, "n": np.arange(2), "key": jax.random.key(3), "names": np.array(["a"])}
        (shifted, total), work = mpixla.overlap(requests, inner, arrays, "y")
        assert work.pop("s") == "y"
        return shifted * work["x"] + total["a"], total["b"], work

    x = jnp.arange(3.0)
    y, total, work = wrap(step)(x)
    np.testing.assert_allclose(y, np.sin(np.arange(3.0)) * np.arange(3.0) + size * np.arange(3.0))
    assert total == sum(range(size))
    np.testing.assert_array_equal(work["n"], np.arange(3))
    assert (jax.random.key_data(work["key"]) == jax.random.key_data(jax.random.key(3))).all()
    slope = jax.grad(lambda x: wrap(step)(x)[0].sum())(jnp.zeros(3))  # where the square root has none
    np.testing.assert_array_equal(slope, [1, 1, 1])
    assert mpixla.overlap([], jnp.sin, 0.0) == ([], 0.0)
    received, nothing = mpixla.overlap(mpixla.isendrecv(x, x, below, above), lambda: None)
    np.testing.assert_array_equal(received, x)
    assert nothing is None


def test_overlap_of_a_request_from_another_program(rank, size, below, above):
    """A request that comes into a program, from a loop's last step too."""
    start = jax.jit(lambda x: mpixla.isendrecv(x, x, below, above))

    def step(carry, _):
        x, request = carry
        received, x = mpixla.overlap(request, lambda x: x * 2, x)
        return (x, mpixla.isendrecv(received, received, below, above)), None

    x = jnp.arange(3.0) + rank
    (doubled, request), _ = jax.jit(lambda *carry: lax.scan(step, carry, length=3))(x, start(x))
    received, doubled = mpixla.overlap(request, lambda x: x * 2, doubled)
    np.testing.assert_array_equal(doubled, 16 * x)
    np.testing.assert_array_equal(received, np.arange(3.0) + (rank - 4) % size)


def exchange_with_itself(x, received):
    return mpixla.isendrecv(x, received, 0, 0, comm=MPI.COMM_SELF)


def of_its_template(x):
    """Return the template of a message, which the wait needs, is also what is computed with."""
    received, y = mpixla.overlap(exchange_with_itself(x[:4], x), lambda x: x + 1, x)
    return received + y


def in_its_place(x):
    """Put the result of one message into the array that the other wait takes as its template."""
    requests = [exchange_with_itself(x[-1], x[0]), exchange_with_itself(x[0], x[-1])]
    (top, bottom), x = mpixla.overlap(requests, lambda x: x.at[1:-1].multiply(2), x)
    return x.at[0].set(top).at[-1].set(bottom)


@pytest.mark.parametrize("step", [of_its_template, in_its_place])
def test_overlap_copies_nothing(step):
    """In a loop, which carries the array from step to step."""
    program = jax.jit(lambda x: lax.fori_loop(0, 3, lambda _, x: step(x), x))
    text = program.lower(jnp.ones((10, 1000) if step is in_its_place else 1000)).compile().as_text()
    assert [loops for loops, _ in Program(text).copies(1000) if loops] == []


@pytest.mark.not_checked
@HOW
def test_template_remains(rank, size, how):
    """From nobody the template, and behind a short message its rest."""
    x = jnp.arange(4.0)
    np.testing.assert_array_equal(run(how, lambda x: mpixla.wait(mpixla.irecv(x, MPI.PROC_NULL)))(x), x)

    def short(x):
        return mpixla.wait(mpixla.isendrecv(x[:2] + 10, x, rank, rank))

    np.testing.assert_array_equal(run(how, short)(x), [10, 11, 2, 3])


def test_waited_for_twice(rank, size):
    x = jnp.arange(3.0)
    request = mpixla.iallreduce(x, MPI.SUM)
    np.testing.assert_array_equal(mpixla.wait(request), x * size)
    for how in ("eager", "jit", "eager"):
        with pytest.raises(Exception, match="a request was already waited for: each is waited for once"):
            jax.block_until_ready(run(how, mpixla.wait)(request))
        # Its place is another's now.
        other = mpixla.iallreduce(x + 1, MPI.SUM)
        with pytest.raises(Exception, match="already waited"):
            jax.block_until_ready(run(how, mpixla.wait)(request))
        np.testing.assert_array_equal(mpixla.wait(other), (x + 1) * size)


def test_wait_refuses_other_objects_than_requests(rank):
    x = jnp.arange(3.0)
    with pytest.raises(TypeError, match="wait needs a Request, .* but got a list"):
        mpixla.wait([mpixla])
    with pytest.raises(TypeError, match="waitall needs a Request"):
        mpixla.waitall([x])
    for wrong in (3, x, "text", {"a": x}):
        with pytest.raises(TypeError, match="waitall needs a list of requests, but got a"):
            mpixla.waitall(wrong)
    for wrong in (3, [3]):
        with pytest.raises(TypeError, match="overlap needs a Request, .* but got an int"):
            mpixla.overlap(wrong, jnp.sin, x)
    request = mpixla.isend(x, MPI.PROC_NULL)
    for wrong in (None, x):
        with pytest.raises(TypeError, match="overlap needs a function"):
            mpixla.overlap(request, wrong)
    assert [name for name in dir(request) if not name.startswith("_") and not name.startswith("tree_")] == ["wait"]
    with pytest.raises(AttributeError, match=r"^a request has no test\. request.wait\(\) gives the result\.$"):
        request.test()
    for wrong, sentence in (
        (lambda i: i + jnp.array([1000.0, 0.0], i.dtype), "that was never started"),
        (lambda i: i + jnp.array([0.0, 1.0], i.dtype), "that was never started"),
        (lambda i: i * jnp.nan, "is no request"),
        (lambda i: i - 0.5, "is no request"),
    ):
        strayed = jax.tree.map(lambda leaf, wrong=wrong: wrong(leaf) if leaf.dtype == np.float32 else leaf, request)
        with pytest.raises(Exception, match=sentence):
            jax.block_until_ready(mpixla.wait(strayed))
    np.testing.assert_array_equal(mpixla.wait(request), x)


@pytest.mark.not_checked
def test_truncated_message(comm, rank, size):
    """MPI's error names what was waited for, and later calls work."""
    if size == 1:
        pytest.skip("needs a partner")
    if rank == 0:
        mpixla.wait(mpixla.isend(jnp.zeros(50), 1, tag=8, comm=comm))
    if rank == 1:
        receive = jax.jit(lambda x: mpixla.wait(mpixla.irecv(x, 0, tag=8, comm=comm)))
        with pytest.raises(Exception, match=r"r1 \| MPI_(Wait|Irecv) returned error code \d+: ") as raised:
            receive(jnp.zeros(3)).block_until_ready()
        for part in ("MPI_Irecv <- 0 with tag 8 and 3 items of float64", "'MPI_COMM_WORLD'"):
            assert part in str(raised.value)
    comm.Barrier()
    np.testing.assert_array_equal(mpixla.wait(mpixla.iallreduce(jnp.ones(2), MPI.SUM, comm=comm)), [size, size])


def test_memory_is_kept(rank, below, above):
    """XLA may use the buffer again while the message is under way: what arrives is what was sent."""

    @jax.jit
    def program(x):
        requests = []
        for i in range(8):
            requests.append(mpixla.irecv(x, below, tag=i))
        for i in range(8):
            x = x + 1  # in place of the buffer before
            requests.append(mpixla.isend(x, above, tag=i))
        return mpixla.waitall(requests)[:8]

    for i, y in enumerate(program(jnp.full(100_000, 100.0 * rank))):
        np.testing.assert_array_equal(y, np.full(100_000, 100.0 * below + i + 1))


def test_repr_and_pytree():
    request = mpixla.isend(jnp.ones(3), MPI.PROC_NULL, tag=3)
    assert repr(request) == "Request(isend of float64[3] -> PROC_NULL with tag 3, on mpixla default)"
    leaves, tree = jax.tree.flatten(request)
    assert [leaf.shape for leaf in leaves] == [(2,), (3,)]
    mpixla.wait(jax.tree.unflatten(tree, leaves))


# Derivatives


def dot_product_identity(f, x, rank, size):
    """Check over all ranks: <ct, J t> = <J^T ct, t>."""
    rng = np.random.default_rng(rank)
    t = rng.normal(size=x.shape)
    y, y_t = jax.jvp(f, (x,), (t,))
    ct = rng.normal(size=y.shape)
    for g, how in ((f, "eager"), (jax.jit(f), "eager"), (jax.checkpoint(f), "jit")):
        x_bar = run(how, lambda ct: jax.vjp(g, x)[1](ct)[0])(ct)  # noqa: B023
        forward, backward = (MPI.COMM_WORLD.allreduce(float(np.vdot(*p))) for p in ((ct, y_t), (x_bar, t)))
        np.testing.assert_allclose(forward, backward, rtol=1e-10)


@pytest.mark.two_ranks
def test_exchange_both_ways(rank, size, below, above):
    """Two messages each way, of which nobody uses what the sends give."""

    def f(x):
        requests = [
            mpixla.irecv(x, below, tag=1),
            mpixla.irecv(x, above, tag=2),
            mpixla.isend(jnp.sin(x), above, tag=1),
            mpixla.isend(jnp.cos(x), below, tag=2),
        ]
        up, down, *_ = mpixla.waitall(requests)
        return up * down + 2 * x

    dot_product_identity(f, np.linspace(0, 1, 4) + rank, rank, size)


@pytest.mark.two_ranks
@pytest.mark.parametrize("unused", [False, True])
def test_carried_through_scan_reversed(rank, size, below, above, unused):
    """The request that a step starts is waited for one step later; so is, backward, that of the cotangents."""

    def f(x):
        def step(carry, w):
            x, receiving, sending = carry
            arrived, sent = mpixla.waitall([receiving, sending])
            x = x + (0 if unused else jnp.sin(sent)) + arrived * w
            return (x, mpixla.irecv(x, below), mpixla.isend(jnp.tanh(x), above)), x.sum()

        first = (x, mpixla.irecv(x, below), mpixla.isend(x, above))
        (x, *requests), sums = lax.scan(step, first, jnp.linspace(0.5, 1, 4))
        return jnp.concatenate([x, mpixla.wait(requests[0]), mpixla.wait(requests[1]), sums])

    dot_product_identity(f, np.linspace(0, 1, 3) + rank, rank, size)


@pytest.mark.two_ranks
def test_across_jit_boundaries_reversed(rank, size, below, above):
    start = jax.jit(lambda x: (mpixla.isendrecv(x * 2, x, below, above), mpixla.ialltoall(jnp.stack([x] * size))))
    finish = jax.jit(lambda requests: sum(jnp.sum(jnp.sin(y)) for y in mpixla.waitall(requests)))
    dot_product_identity(lambda x: finish(start(x)), np.linspace(0, 1, 3) + rank, rank, size)


def test_cotangent_of_blocking_recv_returns_to_isend(rank, size):
    """A pipeline from rank to rank: the receiver's cotangent comes back to the sender."""

    def f(x):
        y = mpixla.recv(x, rank - 1, tag=5) if rank > 0 else x
        z = y * (rank + 2.0)
        return mpixla.wait(mpixla.isend(z, rank + 1, tag=5)) if rank < size - 1 else z

    x = np.arange(3.0) + 1
    y, vjp = jax.vjp(f, x)
    np.testing.assert_allclose(y, x * np.prod(np.arange(rank + 1) + 2.0))
    (x_bar,) = vjp(np.ones(3))
    # On rank 0 the derivative of the sum of all ranks' results; the others' x is a template.
    want = sum(np.prod(np.arange(r + 1) + 2.0) for r in range(size)) if rank == 0 else 0.0
    np.testing.assert_allclose(x_bar, np.full(3, want))


def test_irecv_from_any_source_has_no_reverse_mode(rank):
    with pytest.raises(TypeError, match="irecv from MPI.ANY_SOURCE has no reverse mode"):
        jax.linear_transpose(lambda x: mpixla.wait(mpixla.irecv(x)), jnp.ones(3))(jnp.ones(3))


def test_integers_among_floats(rank, below, above):
    """What has no derivative is started and waited for all the same."""

    def f(x):
        number = mpixla.isendrecv(jnp.int32(rank), jnp.int32(0), below, above)
        received, x = mpixla.overlap(number, lambda x: x * 1, x)
        return x * received

    assert jax.grad(f)(2.0) == below
    assert jax.jit(jax.grad(f))(2.0) == below


# Batches


def test_vmap_of_start_and_vmap_of_wait(comm, rank, size):
    """A batch of requests crosses from one vmap to another, or to none, with its batch in front."""
    every = [100 * r + np.arange(6.0).reshape(3, 2) for r in range(size)]

    def start(x):
        return start_all(x, comm)

    by_row = [results_of_all([y[i] for y in every], rank) for i in range(3)]
    want = [np.stack(rows) for rows in zip(*by_row, strict=True)]
    for finish in (jax.vmap(mpixla.waitall), mpixla.waitall):
        for got, expected in zip(finish(jax.vmap(start)(every[rank])), want, strict=True):
            np.testing.assert_array_equal(got, expected)


def test_examples_with_requests_of_their_own_are_refused(comm):
    """One example takes the other branch, or has more turns: a single wait cannot be for both requests."""

    def branch(p, x):
        start = [lambda x, k=k: mpixla.iallreduce(k * x, MPI.SUM, comm=comm) for k in (1, 10)]
        return mpixla.wait(jax.lax.cond(p, *start, x))

    def turns(n, x):
        def body(state):
            i, request, x = state
            x += mpixla.wait(request)
            return i + 1, mpixla.iallreduce(x, MPI.SUM, comm=comm), x

        state = 0, mpixla.iallreduce(x, MPI.SUM, comm=comm), x
        _, request, x = jax.lax.while_loop(lambda state: state[0] < n, body, state)
        return mpixla.wait(request)

    for f, both in ((branch, [False, True]), (branch, [True, False]), (turns, [1, 2]), (turns, [2, 1])):
        with pytest.raises(Exception, match="examples of a vmap have different requests here"):
            jax.jit(jax.vmap(f))(jnp.array(both), jnp.ones(2)).block_until_ready()


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_vmap_of_wait_alone(shape):
    """An id of two numbers is no batch of two."""
    for request in (mpixla.iallreduce(jnp.ones(shape), MPI.SUM), mpixla.isend(jnp.ones(shape), MPI.PROC_NULL)):
        if shape or "iallreduce" in repr(request):
            with pytest.raises(TypeError, match="was started outside of a vmap, but is waited for inside"):
                jax.vmap(mpixla.wait)(request)
        mpixla.wait(request)


def test_vmap_of_derivatives(rank, below, above):
    def f(x):
        return mpixla.wait(mpixla.isendrecv(jnp.sin(x), x, below, above))

    x = jnp.arange(3.0) + rank
    np.testing.assert_allclose(jax.jacfwd(f)(x), np.diag(np.cos(np.arange(3.0) + below)))
    np.testing.assert_allclose(jax.jacrev(f)(x), np.diag(np.cos(x)))
    inside = jax.vmap(lambda r, x: mpixla.wait(r) + x, in_axes=(None, 0))
    requests = mpixla.isendrecv(x, x, below, above)
    np.testing.assert_array_equal(inside(requests, jnp.zeros((2, 1))), np.stack([np.arange(3.0) + below] * 2))


@pytest.mark.parametrize("wait", [mpixla.waitall, lambda requests: mpixla.overlap(requests, jnp.sin, 0.0)[0]])
def test_cotangent_of_an_ignored_isend_gets_the_batch(rank, below, above, wait):
    """What isend takes back has the batch, and the derivative, of the other cotangents all the same."""

    def f(x):
        return wait([mpixla.isend(x, above), mpixla.irecv(x * 0, below)])[1]

    x, basis = jnp.arange(3.0), np.eye(3)
    pull = jax.vjp(f, x)[1]
    np.testing.assert_array_equal(jax.vmap(pull)(basis * (rank + 1))[0], basis * (above + 1))
    np.testing.assert_array_equal(jax.jit(jax.jacrev(f))(x), basis)
    (again,) = jax.linear_transpose(lambda ct: pull(ct)[0], x)(x + rank)
    np.testing.assert_array_equal(again, x + below)


def test_batch_without_examples(comm, rank, size, below, above):
    """It has no ids, and what is started for it is waited for all the same."""

    def exchange(x):
        sending = mpixla.isend(x, above, comm=comm)
        y = mpixla.recv(x * 0, below, comm=comm)
        shifted = mpixla.isendrecv(y, y, below, above, comm=comm)
        total = mpixla.wait(mpixla.iallreduce(y, MPI.SUM, comm=comm))
        return total * mpixla.wait(shifted) + mpixla.wait(sending)

    assert jax.jit(jax.vmap(jax.grad(lambda x: jnp.sum(exchange(x)))))(jnp.zeros((0, 5))).shape == (0, 5)
    assert jax.jit(jax.jacfwd(exchange))(jnp.zeros(0)).shape == (0, 0)
    start = lambda x: start_all(x, comm)  # noqa: E731
    waited = jax.jit(lambda x: mpixla.waitall(jax.vmap(start)(x)))(jnp.zeros((0, 5)))
    for got, one in zip(waited, results_of_all([np.zeros(5)] * size, rank), strict=True):
        assert got.shape == (0, *one.shape)
    every = [r + np.arange(5.0) for r in range(size)]
    check_all(mpixla.waitall(start(jnp.asarray(every[rank]))), every, rank)
