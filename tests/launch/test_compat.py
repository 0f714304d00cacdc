"""Programs written for mpi4jax and JPI run unmodified, started as their users would start them."""

import re
import runpy
import sys

import pytest

from jobs import all_ended, alone, together
from mpixla.compat import NAMES

PREAMBLE = """
import sys
import jax, jax.numpy as jnp, numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
right, left = (rank + 1) % size, (rank - 1) % size
"""


@pytest.fixture
def program(job):
    """Run a program under mpixla.compat: program(n, name, code, *arguments) -> CompletedProcess."""

    def run(n, name, code, *arguments, **options):
        return job(n, PREAMBLE + code, *arguments, python=("-m", "mpixla.compat", name), **options)

    return run


def test_usage_is_printed_once(job):
    """Rank 0 says it, last of all here, and no rank has ended before."""
    code = """
        import runpy, time
        from mpi4py import MPI
        time.sleep(0.5 * (MPI.COMM_WORLD.Get_rank() == 0))
        runpy.run_module("mpixla.compat", run_name="__main__", alter_sys=True)
    """
    done = job(2, code, "--help")
    assert done.stdout.count("usage: python -m mpixla.compat") == 1
    assert not done.stderr


TOKENLESS = """
import mpi4jax
from mpi4jax._src.utils import HashableMPIType, unpack_hashable, wrap_as_hashable

@jax.jit
def step(x):
    y = mpi4jax.sendrecv(x, jnp.empty_like(x), source=left, dest=right, comm=comm)
    mpi4jax.barrier()
    return mpi4jax.allreduce(y, op=MPI.SUM) + y

x = jnp.arange(3.0) + rank
total = sum(np.arange(3.0) + r for r in range(size))
np.testing.assert_allclose(step(x), total + np.arange(3.0) + left)
np.testing.assert_allclose(jax.grad(lambda x: step(x).sum())(x), 2.0)

# What jit takes as a static argument
@jax.jit
def plain(x):
    return mpi4jax.bcast(x, 0, comm=wrap_as_hashable(comm))
shared = jax.jit(lambda x, c: mpi4jax.allreduce(x, op=HashableMPIType(MPI.MAX), comm=c), static_argnums=1)
np.testing.assert_allclose(plain(x), np.arange(3.0))
np.testing.assert_allclose(shared(x, HashableMPIType(comm)), np.arange(3.0) + size - 1)
shared(x, HashableMPIType(comm))
assert shared._cache_size() == 1
assert unpack_hashable(HashableMPIType(comm)) is comm and wrap_as_hashable(wrap_as_hashable(comm)).wrapped is comm

status = MPI.Status()
if rank == 0:
    mpi4jax.send(x, dest=size - 1, tag=5)
if rank == size - 1:
    mpi4jax.recv(x, tag=5, status=status).block_until_ready()
    assert status.Get_tag() == 5

# An eager call like one before goes straight to its program (core/eager.py).
mpi4jax.allreduce(x, op=MPI.SUM, comm=comm)
calls = []
sys.setprofile(lambda frame, event, _: calls.append(frame.f_code) if event == "call" else None)
mpi4jax.allreduce(x, op=MPI.SUM, comm=comm)
sys.setprofile(None)
assert not any(code.co_filename.endswith("ops/collective.py") or code.co_name == "signature" for code in calls), calls

assert tuple(map(int, mpi4jax.__version__.split("."))) >= (0, 8, 0)
assert isinstance(mpi4jax.has_cuda_support(), bool) and isinstance(mpi4jax.has_sycl_support(), bool)
assert jnp.ones(1, float).dtype == jnp.float32
assert mpi4jax.__version__ == "0.9.1"
try:
    mpi4jax.allreduce(x, op=MPI.SUM, token=None)
except RuntimeError as e:
    assert "mpi4jax-tokens" in str(e)
else:
    raise AssertionError("a token was taken")
"""


# send and barrier give an empty list, a pytree that programs pass on.
NO_RESULT = """
from jax import lax
import mpi4jax
try:
    from mpi4jax.experimental.notoken import barrier, send
except ImportError:
    from mpi4jax import barrier, send
x = jnp.arange(3.0)

for jit in (lambda f: f, jax.jit):
    assert jit(lambda x: send(x, dest=MPI.PROC_NULL))(x) == [] == jit(lambda: barrier(comm=comm))()
    assert jit(lambda x: lax.cond(x[0] == 0, lambda x: send(x, dest=MPI.PROC_NULL), lambda x: [], x))(x) == []
    assert jit(lambda: lax.fori_loop(0, 2, lambda i, c: barrier(comm=comm), []))() == []
    assert jit(lambda x: lax.scan(lambda c, y: (send(y, dest=MPI.PROC_NULL), y), [], x))(x)[0] == []
"""


# A branch is traced on all ranks, and taken where its partner exists.
NOT_TAKEN = """
from jax import lax
x = jnp.arange(3.0) + rank

@jax.jit
def from_below(x):
    lax.cond(rank != size - 1, lambda x: send_on(x, rank + 1), lambda x: 0, x)
    return lax.cond(rank != 0, lambda x: receive(x, rank - 1), lambda x: x, x)

for f in (from_below, from_below.__wrapped__):
    np.testing.assert_allclose(f(x), np.arange(3.0) + max(rank - 1, 0))
np.testing.assert_allclose(lax.cond(rank < size, lambda x: x, lambda x: broadcast(x, size), x), x)
"""
CALLS = {
    "mpi4jax": """
import mpi4jax
def send_on(x, dest):
    mpi4jax.send(x, dest=dest)
    return 0
def receive(x, source):
    return mpi4jax.recv(x, source=source)
def broadcast(x, root):
    return mpi4jax.bcast(x, root)
""",
    "mpi4jax-tokens": """
import mpi4jax
def send_on(x, dest):
    mpi4jax.send(x, dest=dest)
    return 0
def receive(x, source):
    return mpi4jax.recv(x, source=source)[0]
def broadcast(x, root):
    return mpi4jax.bcast(x, root)[0]
""",
    "jpi": """
import jpi
def send_on(x, dest):
    jpi.send(x, jpi.gen_token(), dest)
    return 0
def receive(x, source):
    return jpi.recv(x, jpi.gen_token(), source)[0]
def broadcast(x, root):
    return jpi.bcast(x, jpi.gen_token(), root)[0]
""",
}


# Under one MPI -1 is nobody, under another it is anybody, and as a destination it is then wrong.
NUMBERS_BELOW_ZERO = """
import mpi4jax
x = jnp.ones(2)
for number in (-1, -2, -3):
    try:
        mpi4jax.send(x, dest=number)
    except jax.errors.JaxRuntimeError as e:
        assert number != MPI.PROC_NULL and f"MPI_Send got dest = {number}, " in str(e), e
    else:
        assert number == MPI.PROC_NULL
    try:
        mpi4jax.bcast(x, root=number)
    except jax.errors.JaxRuntimeError as e:
        assert f"MPI_Bcast got root = {number}, " in str(e), e
    else:
        raise AssertionError("a root was taken")
"""
VERSION = """
from importlib import metadata
import mpi4jax
assert metadata.version("mpi4jax") == mpi4jax.__version__ and metadata.version("numpy") == np.__version__
"""


SIGNATURES = """
import inspect, pickle
import mpi4jax
assert pickle.loads(pickle.dumps(mpi4jax.allreduce)) is mpi4jax.allreduce
has_tokens = mpi4jax.__version__ < "0.8"
assert ("token" in inspect.signature(mpi4jax.allreduce).parameters) == has_tokens
if has_tokens:
    from mpi4jax.experimental import auto_tokenize, notoken
    assert pickle.loads(pickle.dumps(notoken.allreduce)) is notoken.allreduce
    assert auto_tokenize(f=len, token=None) is auto_tokenize(len, None) is len
    try:
        notoken.barrier(token=1)
    except TypeError as e:
        assert "barrier() of mpi4jax.experimental.notoken takes no token" in str(e)
    else:
        raise AssertionError("a token was taken")
x = jnp.ones(2)
with jax.transfer_guard("disallow"):
    mpi4jax.allreduce(x, op=MPI.SUM)
"""

# JAX reads the environment when it is imported, which mpixla has done before it runs the program.
SETTINGS = """
import os
os.environ.update({variables})
import jax
{update}
import mpixla
from mpi4py import MPI
print(mpixla.allreduce(jax.numpy.ones(2), op=MPI.SUM).dtype)
print(jax.jit(lambda x: mpixla.allreduce(x, op=MPI.SUM))(jax.numpy.ones(2)).dtype)
"""


@pytest.mark.parametrize("library", [("compat", "mpi4jax"), ("distributed",)], ids=["compat", "distributed"])
@pytest.mark.parametrize(
    ("variable", "word", "value"),
    [
        ("JAX_ENABLE_X64", "1", "True"),
        ("JAX_ENABLE_X64", "maybe", "maybe"),
        ("JAX_DEFAULT_MATMUL_PRECISION", "highest", "'highest'"),
        ("JAX_NUM_CPU_DEVICES", "2", "2"),
    ],
)
def test_setting_that_a_program_makes_too_late(job, library, variable, word, value):
    """It would have no effect. The first call refuses it, before there is a wrong number."""
    code = SETTINGS.format(variables={variable: word}, update="")
    done = job(1, code, python=("-m", f"mpixla.{library[0]}", *library[1:]), check=False)
    assert done.returncode == 1
    assert not done.stdout
    assert (
        f"RuntimeError: {variable} was set to {word!r} after python -m mpixla.{library[0]} had imported JAX, so it has "
        "no effect. Set it in the environment of the command, or call "
        f"jax.config.update({variable.lower()!r}, {value})." in done.stderr
    )


def test_initialize_refuses_a_setting_that_came_too_late(job):
    code = """
        import os
        os.environ["JAX_ENABLE_X64"] = "1"
        import jax
        jax.distributed.initialize()
    """
    done = job(1, code, python=("-m", "mpixla.distributed"), check=False)
    assert done.returncode == 1
    assert "RuntimeError: JAX_ENABLE_X64 was set to '1' after python -m mpixla.distributed had" in done.stderr


@pytest.mark.parametrize(
    ("variables", "update", "environment"),
    [
        ({"JAX_ENABLE_X64": "1"}, "jax.config.update('jax_enable_x64', True)", {}),
        ({"JAX_ENABLE_X64": "true"}, "", {"JAX_ENABLE_X64": "1"}),
        ({"JAX_OF_THE_PROGRAM": "1"}, "", {"JAX_ENABLE_X64": "1"}),
    ],
    ids=["the program says it to JAX as well", "the job has it", "no setting of JAX's"],
)
def test_setting_before_the_import_has_an_effect(job, variables, update, environment):
    code = SETTINGS.format(variables=variables, update=update)
    done = job(1, code, python=("-m", "mpixla.compat", "mpi4jax"), **environment)
    assert done.stdout.split() == ["float64"] * 2
    assert not done.stderr


def test_mpi4jax(program):
    """Programs without tokens. MPI4JAX_DEBUG=0 asks for no lines."""
    programs = {
        "a step, static arguments, a status": TOKENLESS,
        "what has no result": NO_RESULT,
        "a wrong rank in a branch that is not taken": CALLS["mpi4jax"] + NOT_TAKEN,
        "numbers below zero": NUMBERS_BELOW_ZERO,
        "the version that is installed": VERSION,
        "signatures": SIGNATURES,
    }
    done = program(2, "mpi4jax", together(programs), MPI4JAX_DEBUG="0")
    assert all_ended(done, programs, 2)
    assert "MPI_Allreduce" not in done.stderr


TOKENS = """
import mpi4jax
assert tuple(map(int, mpi4jax.__version__.split("."))) < (0, 8, 0)

def ring(x, token):
    y, token = mpi4jax.sendrecv(x, x, source=left, dest=right, comm=comm, token=token)
    z, token = mpi4jax.allreduce(y, op=MPI.SUM, comm=comm, token=token)
    return y + z, token

@jax.jit
def f(x):
    token = jax.lax.create_token()
    x, token = ring(x, token)
    x, token = jax.lax.fori_loop(0, 2, lambda i, c: ring(*c), (x, token))
    x, token = jax.lax.cond(x[0] > -1, ring, lambda *c: c, x, token)
    x, token = jax.lax.scan(lambda c, _: (ring(*c), None), (x, token), length=2)[0]
    token = mpi4jax.barrier(comm=comm, token=token)
    return x

def expected(xs):
    for _ in range(6):
        xs = [sum(xs) + xs[r - 1] for r in range(size)]
    return xs[rank]

x = jnp.arange(3.0) + rank
np.testing.assert_allclose(f(x), expected([np.arange(3.0) + r for r in range(size)]))
batch = jnp.stack([x, 2 * x], 1)
np.testing.assert_allclose(jax.vmap(f, 1, 1)(batch), np.stack([f(x), 2 * f(x)], 1))

# JAX dispatches in C++, no line of Python runs in the call, of JAX or ours; also where a token is the only result.
notify = jax.jit(lambda x, token: mpi4jax.send(x, MPI.PROC_NULL, token=token))
token = jnp.zeros(1)
notify(x, token)
calls = []
sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
y = f(x)
token = notify(x, token)
sys.setprofile(None)
assert calls == [], calls

# Derivatives in both modes, as those of the functions without tokens
import mpixla

def plain(x):
    for _ in range(6):
        y = mpixla.sendrecv(x, x, source=left, dest=right, comm=comm)
        x = y + mpixla.allreduce(y, op=MPI.SUM, comm=comm)
    return x

def loss(fun, x):
    return (fun(x) * jnp.arange(3.0)).sum() * (rank + 1)

gradient = jax.grad(lambda x: loss(plain, x))(x)
np.testing.assert_allclose(jax.grad(lambda x: loss(f, x))(x), gradient)
np.testing.assert_allclose(jax.jit(jax.grad(lambda x: loss(f, x)))(x), gradient)
np.testing.assert_allclose(jax.grad(lambda x: loss(jax.checkpoint(f), x))(x), gradient)
np.testing.assert_allclose(jax.jit(lambda x: jax.jvp(f, (x,), (x,)))(x)[1], f(x))
def twice(x):
    return ring(*ring(x, jax.lax.create_token()))[0]
np.testing.assert_allclose(jax.linear_transpose(twice, x)(jnp.ones(3))[0], jax.grad(lambda x: twice(x).sum())(x))

# What each operation returns, eagerly and traced
a = jnp.ones((size, 2)) * rank
for jit in (lambda f: f, jax.jit):
    t = jax.lax.create_token()
    (g, t1), (s, _) = jit(lambda a, t: (mpi4jax.allgather(a[0], token=t), mpi4jax.scan(a, MPI.SUM)))(a, t)
    np.testing.assert_allclose(g[:, 0], np.arange(size))
    np.testing.assert_allclose(s[0], sum(range(rank + 1)))
    (s, _) = jit(lambda a, t: mpi4jax.scatter(a if rank == 0 else a[0], 0))(a, t)
    (r, _) = jit(lambda a, t: mpi4jax.reduce(a, MPI.SUM, 0, token=t))(a, t)
    np.testing.assert_allclose(s, 0.0)
    np.testing.assert_allclose(r[0], sum(range(size)) if rank == 0 else rank)
    (g, _), (b, _) = jit(lambda a, t: (mpi4jax.gather(a, 0, token=t), mpi4jax.bcast(a, 0, token=t)))(a, t)
    assert g.shape == ((size, size, 2) if rank == 0 else (size, 2))
    np.testing.assert_allclose(b, 0.0)
    (s, _) = jit(lambda a, t: mpi4jax.alltoall(a, token=t))(a, t)
    np.testing.assert_allclose(s[:, 0], np.arange(size))
    token = jit(lambda a, t: mpi4jax.send(a, MPI.PROC_NULL, token=t))(a, t)
    assert isinstance(token, jax.Array), token

# JAX's own token, and whatever array comes along
for t in (jax.lax.create_token_p.bind(), jnp.empty((1,)), np.int32(3) * np.ones(2, int)):
    y, t = jax.jit(ring)(x, t)
    y, t = jax.jit(ring)(y, t)
    assert isinstance(t, jax.Array)
for wrong in (0, "token"):
    try:
        ring(x, wrong)
    except TypeError as e:
        assert "token of sendrecv" in str(e)
    else:
        raise AssertionError(wrong)
print("ok", rank)
"""


@pytest.mark.parametrize("n", [1, pytest.param(3, marks=[pytest.mark.long, pytest.mark.any_mpi])])
def test_tokens(program, n):
    assert program(n, "mpi4jax-tokens", TOKENS).stdout.count("ok") == n


ORDER = """
import mpi4jax
from mpi4jax.experimental import auto_tokenize
from mpi4jax.experimental.notoken import allreduce
other = 1 - rank

# Messages of one tag arrive in the order of the tokens.
@jax.jit
def many(x):
    token = jax.lax.create_token()
    ys = []
    for i in range(20):
        if rank == 0:
            token = mpi4jax.send(x + i, dest=1, comm=comm, token=token)
            y, token = mpi4jax.recv(x, source=1, comm=comm, token=token)
        else:
            y, token = mpi4jax.recv(x, source=0, comm=comm, token=token)
            token = mpi4jax.send(x * i, dest=0, comm=comm, token=token)
        ys.append(y)
    return ys
for i, y in enumerate(many(jnp.full(2, 2.0))):
    np.testing.assert_allclose(y, 2 + i if rank == 1 else 2 * i)

# A call that nothing depends on is made, wherever it is.
def straight(x, token):
    mpi4jax.send(x, dest=other, token=token)
@jax.jit
def nested(x, token):
    straight(x, token)
def in_loop(x, token):
    jax.lax.fori_loop(0, 1, lambda i, t: mpi4jax.send(x, dest=other, token=t), token)
def in_while(x, token):
    step = lambda c: (c[0] + 1, mpi4jax.send(x, dest=other, token=c[1]))
    jax.lax.while_loop(lambda c: c[0] < 1, step, (0, token))
def in_cond(x, token):
    jax.lax.cond(x[0] > 0, lambda t: mpi4jax.send(x, dest=other, token=t), lambda t: t, token)
def in_remat(x, token):
    jax.checkpoint(straight)(x, token)
for notify in (straight, nested, in_loop, in_while, in_cond, in_remat):
    @jax.jit
    def f(x):
        token = jax.lax.create_token()
        if rank == 1:
            return mpi4jax.recv(x, source=other, token=token)[0]
        notify(x, token)
        return x
    np.testing.assert_allclose(f(jnp.full(2, 1.0 + rank)), 1.0)

# Without tokens, and across jitted functions, the order is the program's.
@jax.jit
def receive_and_answer(x):
    y, _ = mpi4jax.recv(x, source=other)
    mpi4jax.send(x * 3, dest=other)
    return y
@jax.jit
def unthreaded(x):
    if rank == 0:
        mpi4jax.send(x, dest=1)
        token = mpi4jax.send(x * 2, dest=1)
        return mpi4jax.recv(x, source=1, token=token)[0]
    mpi4jax.barrier(comm=MPI.COMM_SELF)
    return receive_and_answer(x) + 10 * mpi4jax.recv(x, source=0)[0]
np.testing.assert_allclose(unthreaded(jnp.full(2, 1.0 + rank)), 6.0 if rank == 0 else 21.0)

# auto_tokenize, in which tokens need not say what the order is
@jax.jit
@auto_tokenize
def crossed(x):
    token = jax.lax.create_token()
    if rank == 0:
        mpi4jax.send(x, dest=1, token=token)
        y, _ = mpi4jax.recv(x, source=1, token=token)
        return y + mpi4jax.recv(x, source=1, token=token)[0]
    y, _ = mpi4jax.recv(x, source=0, token=token)
    mpi4jax.send(y + 1, dest=0, token=token)
    mpi4jax.send(y * 5, dest=0, token=token)
    return y
np.testing.assert_allclose(crossed(jnp.ones(2)), 7.0 if rank == 0 else 1.0)
np.testing.assert_allclose(allreduce(jnp.ones(2), op=MPI.SUM), size)

# Backward, each rank hears from the other in the reverse order of its calls, also where it ignores what it received.
def there_and_back(x, ignore):
    token = jax.lax.create_token()
    y, token = mpi4jax.sendrecv(x, x, source=other, dest=other, sendtag=1, recvtag=1, token=token)
    z, token = mpi4jax.sendrecv(3 * x, x, source=other, dest=other, sendtag=1, recvtag=1, token=token)
    return x.sum() if ignore else (y * 2 + z * 5).sum()
for ignored in (None, 0, 1):
    gradient = jax.jit(jax.grad(lambda x: there_and_back(x, rank == ignored)))(jnp.ones(2))
    np.testing.assert_allclose(gradient, (1.0 if rank == ignored else 0.0) + (0.0 if other == ignored else 17.0))
"""


def test_order(program):
    programs = {
        "the order": ORDER,
        "what has no result": NO_RESULT,
        "a wrong rank in a branch that is not taken": CALLS["mpi4jax-tokens"] + NOT_TAKEN,
        "the version that is installed": VERSION + "assert mpi4jax.__version__ == '0.7.2'\n",
        "signatures": SIGNATURES,
    }
    assert all_ended(program(2, "mpi4jax-tokens", together(programs)), programs, 2)


JPI = """
import jpi.allreduce
from jpi import allgather, allreduce, barrier, bcast, gather, gen_token, recv, scatter, send
from jpi.recv import recv as received
assert jpi.allreduce is allreduce and received is recv is jpi.recv

x = jnp.arange(3 * size, dtype=jnp.float32) if rank == 0 else jnp.zeros(3 * size, dtype=jnp.float32)

def weighted(x):
    token = gen_token()
    part, token = scatter(x, token, root=0, comm=comm)
    total, token = allreduce(part * (rank + 1), token, op=MPI.SUM, comm=comm)
    return jnp.sum(total)

print(f"rank {rank}: {jax.jit(weighted)(x)} {jax.grad(weighted)(x)}")
assert jnp.ones(1).dtype == jnp.float64  # as with JPI

def loss(fun):
    return jax.value_and_grad(lambda x: fun(x, gen_token())[0].sum())
mine = jnp.ones(2) * (rank + 1)
value, gradient = loss(lambda x, t: gather(x, t, 0, comm))(mine)
assert gather(mine, gen_token(), 0)[0].shape == (size, 2)
np.testing.assert_allclose([value, *gradient], [size * (size + 1) if rank == 0 else 0, 1, 1])
value, gradient = loss(lambda x, t: allgather(x, t))(mine)
np.testing.assert_allclose([value, *gradient], [size * (size + 1), 1, 1])
value, gradient = loss(lambda x, t: bcast(x, t, 0))(mine)
np.testing.assert_allclose([value, *gradient], [2, *[float(rank == 0)] * 2])
single, token = scatter(jnp.arange(size) * 2, barrier(gen_token()), 0)
assert single.shape == () and single == 2 * rank
if size > 1:
    def through(x, t):
        return send(x, t, size - 1) if rank == 0 else recv(x, t, 0) if rank == size - 1 else (x, t)
    value, gradient = jax.value_and_grad(lambda x: through(x, gen_token())[0].sum() * rank)(mine)
    np.testing.assert_allclose(value, 2 * rank * (1 if rank == size - 1 else rank + 1))
    np.testing.assert_allclose(gradient, size - 1 if rank == 0 else 0 if rank == size - 1 else rank)

# In a batch: a call whose token has it is in it, with an operand that has none, whatever the partner's has.
def across(v):
    _, t = send(v, gen_token(), right)
    total, t = allreduce(v if rank == 0 else jnp.ones(2), t, MPI.SUM)
    _, t = send(v.astype(int) if rank == 0 else jnp.ones(2, int), t, right, 1)
    number, t = recv(jnp.zeros(2, int), t, left, 1)
    return recv(jnp.empty(2), t, left)[0], total, number
def mean(v):
    g, t = gather(v, gen_token(), 0)
    return bcast(g.mean(0), t, 0)[0]
def square_on_0(v):
    y = across(v)[0]
    return (y * y if rank == 0 else y).sum()
ones = jnp.ones((3, 2))
batch = ones * jnp.arange(1, 4)[:, None]
for how in (lambda f: f, jax.jit):
    y, total, number = how(jax.vmap(across))(batch * (rank + 1))
    np.testing.assert_allclose(y, batch * (left + 1))
    np.testing.assert_allclose(total, batch + size - 1)
    np.testing.assert_allclose(number, batch if left == 0 else ones)
    np.testing.assert_allclose(how(jax.vmap(mean))(batch * (rank + 1)), batch * (size + 1) / 2)
    np.testing.assert_allclose(how(jax.vmap(jax.grad(square_on_0)))(batch), 2 * batch if right == 0 else ones)
    np.testing.assert_allclose(jax.jvp(how(jax.vmap(mean)), (batch,), (batch,))[1], batch)
np.testing.assert_allclose(jax.linear_transpose(lambda x: send(x, gen_token(), MPI.PROC_NULL)[0], mine)(mine)[0], mine)
"""


def test_jpi(program):
    """A wrong rank in a branch that is not taken is no error here either."""
    lines = sorted(program(4, "jpi", JPI + CALLS["jpi"] + NOT_TAKEN).stdout.splitlines())
    assert lines == [
        # 0 to 11 in four parts, times 1 to 4: 3 + 24 + 63 + 120
        "rank 0: 210.0 [1. 1. 1. 2. 2. 2. 3. 3. 3. 4. 4. 4.]",
        *(f"rank {rank}: 210.0 [0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0.]" for rank in (1, 2, 3)),
    ]


# The template of a receive is a constant; what ties it to the sends before it is the token.
JPI_CHAIN = """
from jpi import allreduce, barrier, bcast, gen_token, recv, send

v = jnp.arange(3.0) + rank
weight = np.arange(1.0, 4.0) * (rank + 1)
lefts, rights = np.arange(1.0, 4.0) * (left + 1), np.arange(1.0, 4.0) * (right + 1)  # their weights
keeps = MPI.Op.Create(lambda a, b, datatype: None, commute=True)

def same(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-12)

def pass_on(v, t, n=1):
    for _ in range(n):
        _, t = send(v, t, dest=right)
        v, t = recv(jnp.empty_like(v), t, source=left)
    return v, t

def once(v):
    return pass_on(v, gen_token())[0]

def kept(v):
    # The sent array is used as well.
    v, t = send(v, gen_token(), dest=right)
    y, t = recv(jnp.empty_like(v), t, source=left)
    return v * y

def several(v):
    # They come back in the reverse order.
    _, t = send(v, gen_token(), dest=right)
    _, t = send(v**2, t, dest=right)
    a, t = recv(jnp.zeros(3), t, source=left)
    b, t = recv(jnp.zeros(3), t, source=left)
    return a * weight + b * weight**2

def mixed(v):
    # Collective calls after it, and between them what has no derivative
    y, t = pass_on(v, gen_token())
    _, t = send(jnp.arange(3), t, dest=right, tag=4)
    n, t = recv(jnp.zeros(3, int), t, source=left, tag=4)
    t = barrier(t)
    z, t = allreduce(y * n, t, op=MPI.SUM)
    w, t = allreduce(jnp.ones(3), t, op=MPI.MAX)
    u, t = allreduce(jnp.ones(3), t, op=keeps)
    b, t = bcast(y if rank == 0 else jnp.zeros(3), t, 0)
    return z + w + u + b

def some(v):
    # The first two ranks only, and then all, with what has no tangents
    y, t = v, gen_token()
    if rank < 2:
        _, t = send(v, t, dest=1 - rank)
        y, t = recv(jnp.empty_like(v), t, source=1 - rank)
    w, t = allreduce(jnp.ones(3), t, op=MPI.MAX)
    return y * w

def after_allreduce(v):
    # Its token ties the receive.
    y, t = allreduce(v, gen_token(), op=MPI.SUM)
    if rank == 0:
        send(v, t, dest=1)
    return y * recv(jnp.empty(3), t, source=0)[0] if rank == 1 else y

def loop(v):
    def step(c, _):
        y, t = pass_on(*c)
        return (jnp.sin(y), t), None
    return jax.lax.scan(step, (v, gen_token()), None, length=size)[0][0]

def branch(v):
    return jax.lax.cond(v[0] > -1, pass_on, lambda v, t: (v, t), v, gen_token())[0]

slope, x = np.ones(3), np.arange(3.0) + rank
for _ in range(size):  # round the ring
    slope, x = slope * np.cos(x), np.sin(x)

def plain(f):
    return f

for how, outer in ((plain, plain), (jax.jit, plain), (plain, jax.jit), (jax.checkpoint, jax.jit)):
    def gradient(f, weight=1):
        return outer(jax.grad(lambda v: (how(f)(v) * weight).sum()))(v)
    same(how(once)(v), np.arange(3.0) + left)
    same(gradient(once, weight), rights)
    same(gradient(branch, weight), rights)
    same(gradient(kept), np.arange(3.0) + left + np.arange(3.0) + right)
    same(gradient(lambda v: pass_on(v, gen_token(), 3)[0] ** 2), 2 * v)
    same(gradient(several), rights + 2 * v * rights**2)
    same(gradient(mixed), np.arange(3.0) + (rank == size - 1))
    same(gradient(some), np.ones(3))
    total = sum(np.arange(3.0) + r for r in range(size))
    same(gradient(after_allreduce), (1 + total, np.arange(3.0), np.ones(3))[rank])
    same(gradient(loop), slope)
    same(jax.jvp(how(once), (v,), (weight,))[1], lefts)

    # Second derivatives
    def slope_of_cubes(v):
        return jax.grad(lambda v: (how(once)(v) ** 3).sum())(v)
    same(jax.jit(lambda v: jax.jvp(slope_of_cubes, (v,), (weight,))[1])(v), 6 * v * weight)
    same(jax.grad(lambda v: (slope_of_cubes(v) * weight).sum())(v), 6 * v * weight)

# Under vmap, with templates that have the batch and that have none
def batched(v, template):
    _, t = send(v, gen_token(), dest=right)
    return (recv(template(v), t, source=left)[0] * weight).sum()
for template in (lambda v: v * 0, jnp.empty_like):
    same(jax.vmap(jax.grad(lambda v: batched(v, template)))(jnp.stack([v, 2 * v])), np.stack([rights, rights]))

# With a token of its own nothing ties a call to the others, as in JPI.
def apart(v):
    send(jax.lax.stop_gradient(v), gen_token(), dest=right)
    return v * recv(jnp.empty_like(v), gen_token(), source=left)[0]
same(jax.grad(lambda v: apart(v).sum())(v), np.arange(3.0) + left)

# Without derivatives the program is what it would be without ties: no computation.
lines = [line for line in jax.jit(once).lower(v).as_text().splitlines() if line.startswith("    %")]
words = ("@mpixla_", "constant", "broadcast", "token")
assert all(any(word in line for word in words) for line in lines), lines
print("ok")
"""


@pytest.mark.any_mpi
@pytest.mark.long
@pytest.mark.parametrize("n", [2, 3])
def test_jpi_differentiates_calls_tied_by_tokens(program, n):
    assert program(n, "jpi", JPI_CHAIN, timeout=200).stdout.split() == ["ok"] * n


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("mpi4jax", "mpi4jax.send(jnp.ones(2), dest=size)"),
        ("mpi4jax-tokens", "jax.jit(lambda x: f(x, size))(jnp.ones(2))"),
    ],
)
def test_a_wrong_rank_is_an_error_of_mpi(program, name, code):
    setting = "import mpi4jax\ndef f(x, dest):\n    mpi4jax.send(x, dest=dest)\n"
    result = program(1, name, setting + code, check=False)
    assert result.returncode != 0
    assert re.search(r"^r0 \| MPI_Send returned error code 6: ", result.stderr, re.MULTILINE)


def test_an_error_of_mpi_is_a_line(program):
    """The receiver's buffer is too short, which MPI finds."""
    code = """
import mpi4jax
x = jnp.ones(4)
if rank == 0:
    jax.block_until_ready(jax.jit(lambda x: mpi4jax.recv(x[:1], source=1))(x))
else:
    mpi4jax.send(x, dest=0)
"""
    result = program(2, "mpi4jax", code, check=False)
    assert result.returncode != 0
    assert re.search(r"^r0 \| MPI_Recv ", result.stderr, re.MULTILINE)


def test_debug_lines(program):
    code = "import mpi4jax\nmpi4jax.allreduce(jnp.ones(3), op=MPI.SUM)\n"
    line = r"^r0 \| \w+ \| MPI_Allreduce with 3 items$"
    assert re.search(line, program(1, "mpi4jax", code, MPI4JAX_DEBUG="1").stderr, re.MULTILINE)
    # What a program does before it imports the library: it says so itself, and initializes MPI.
    code = 'import os\nos.environ["MPI4JAX_DEBUG"] = "1"\nassert MPI.Init_thread() == MPI.Query_thread()\n' + code
    assert re.search(line, program(1, "mpi4jax", code).stderr, re.MULTILINE)


@pytest.mark.any_mpi
@pytest.mark.long
def test_command_line(tmp_path):
    """A module, code, and what goes wrong; arguments and paths are what the program would have without us."""
    shows = "import sys, mpi4jax; print(__name__, sys.argv[1:], repr(sys.path[0]), mpi4jax.__name__)"
    (tmp_path / "shows.py").write_text(shows)
    (tmp_path / "elsewhere").mkdir()
    compat = ("-m", "mpixla.compat", "mpi4jax")
    script = alone(*compat, "../shows.py", "-m", "1", cwd=tmp_path / "elsewhere")
    module = alone(*compat, "-m", "shows", "a", "b", cwd=tmp_path)
    code = alone(*compat, "-c", shows, "a", cwd=tmp_path)
    assert script.stdout == f"__main__ ['-m', '1'] {str(tmp_path)!r} mpi4jax\n", script.stderr
    assert module.stdout == f"__main__ ['a', 'b'] {str(tmp_path)!r} mpi4jax\n", module.stderr
    assert code.stdout == "__main__ ['a'] '' mpi4jax\n", code.stderr


@pytest.mark.parametrize("wrong", [(), ("mpi5jax", "shows.py"), ("jpi",), ("jpi", "-c"), ("jpi", "-x", "shows.py")])
def test_bad_command_line(monkeypatch, capsys, wrong):
    monkeypatch.setattr(sys, "argv", ["mpixla.compat", *wrong])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("mpixla.compat", run_name="__main__")
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert all(name in said for name in NAMES)


def test_install():
    code = """
import sys
from types import ModuleType
import mpixla.compat as compat
for name, kind, word in (("mpi5jax", ValueError, "jpi"), ("mpi4jax", RuntimeError, "too late")):
    sys.modules["mpi4jax"] = ModuleType("mpi4jax")
    try:
        compat.install(name)
    except kind as e:
        assert word in str(e), e
    else:
        raise AssertionError(name)
    del sys.modules["mpi4jax"]
compat.install("mpi4jax")
compat.install("mpi4jax")
import mpi4jax
assert mpi4jax.allreduce(1.0, op=__import__("mpi4py.MPI").MPI.SUM) == 1
try:
    compat.install("mpi4jax-tokens")
except RuntimeError:
    print("ok")
"""
    result = alone("-c", code)
    assert result.stdout == "ok\n", result.stderr
