"""JAX's own collectives over MPI: jobs that ``python -m mpixla.distributed`` starts."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import jaxlib
import pytest

from jobs import all_ended, alone, start, together
from mpixla.distributed import _trampoline
from mpixla.distributed._cliques import refuse_where_mpi_cannot
from mpixla.distributed._collectives import collectives_of
from mpixla.satellites import module_run

ROOT = Path(__file__).parents[2]
# How many processes: with more, what the tests of two say is seldom different.
RANKS = [2, pytest.param(3, marks=[pytest.mark.long, pytest.mark.any_mpi])]
LAUNCHER = ("-m", "mpixla.distributed")

# What every program begins with.
START = """
    import sys
    import jax, jax.numpy as jnp, numpy as np
    from functools import partial
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import mpixla.distributed
    mpixla.distributed.initialize()
    size, rank = jax.process_count(), jax.process_index()
    mesh = Mesh(np.array(jax.devices()), "x")

    def shard(data, spec=P("x"), mesh=mesh):
        return jax.make_array_from_callback(data.shape, NamedSharding(mesh, spec), lambda index: data[index])

    def whole(x):
        return jax.jit(lambda x: x, out_shardings=NamedSharding(x.sharding.mesh, P()))(x).addressable_data(0)

    def check(actual, desired, **options):
        actual = np.asarray(whole(actual))
        assert actual.dtype == desired.dtype, (actual.dtype, desired.dtype)
        np.testing.assert_allclose(actual, desired, **options)
"""


@pytest.fixture
def distributed(job):
    """Run a program that begins with START, and check that rank 0 came to its end."""

    def run(n, code, *arguments, **options):
        end = '\nif rank == 0: print("the end")\n'
        done = job(n, START + code + "\n    " + end.strip(), *arguments, python=LAUNCHER, **options)
        if done.returncode == 0:
            # Ranks print in any order.
            assert "the end" in done.stdout.splitlines(), done.stdout + done.stderr
        return done

    return run


@pytest.mark.parametrize("n", [1, *RANKS])
def test_unmodified_program(job, n):
    """What a user of jax.distributed has, with nothing of mpixla's in it."""
    code = """
        import jax, numpy as np
        jax.distributed.initialize()
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        n = jax.process_count()
        mesh = Mesh(np.array(jax.devices()), "x")
        data = np.arange(6.0 * n * n, dtype=np.float32).reshape(2 * n, 3 * n) % 7
        x = jax.make_array_from_callback(data.shape, NamedSharding(mesh, P("x")), lambda index: data[index])
        square = jax.jit(lambda a: a @ a.T, out_shardings=NamedSharding(mesh, P()))(x)
        np.testing.assert_array_equal(square.addressable_data(0), data @ data.T)
        total = jax.shard_map(lambda a: jax.lax.psum(a.sum(), "x"), mesh=mesh, in_specs=P("x"), out_specs=P())(x)
        np.testing.assert_array_equal(total.addressable_data(0), data.sum())
        if jax.process_index() == 0:
            print(n, "processes,", len(jax.devices()), "devices, collectives:",
                  jax.config.jax_cpu_collectives_implementation)
    """
    assert job(n, code, python=LAUNCHER).stdout == f"{n} processes, {n} devices, collectives: mpi\n"


def test_trampoline_has_the_names_that_jaxlib_looks_up():
    """MPItrampoline has variables of these names; it ends the process if a library lacks one."""
    (library,) = Path(jaxlib.__file__).parent.glob("libjax_common.so")
    symbols = subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout
    variables = set(re.findall(r" [bBdD] (MPIX?(?:ABI)?_\w+)$", symbols, re.MULTILINE))
    functions = {name for name in variables if re.match("MPIX?ABI_", name)}
    wanted = functions | {re.sub("^(MPIX?)_", r"\1ABI_", name) for name in variables - functions}
    table = (ROOT / "native/trampoline/symbols.def").read_text()
    rows = re.findall(r"^MPIXLA_ABI_(\w+)\((\w+)", table, re.MULTILINE)
    assert len(wanted) > 600
    assert {name for _, name in rows} == wanted
    assert {name for kind, name in rows if kind in ("CALL", "UNCALLED")} == functions
    exported = subprocess.run(
        ["nm", "-D", "--defined-only", _trampoline.LIBRARY],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert wanted <= set(re.findall(r" [A-Za-z] (\w+)$", exported, re.MULTILINE))


@pytest.mark.parametrize("n", RANKS)
def test_collectives(distributed, n):
    """Each of JAX's, for each data type that XLA takes, against NumPy."""
    code = """
    jax.config.update("jax_enable_x64", True)
    pairs = [(i, (i + 1) % size) for i in range(size)]

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=P("x"), out_specs=(P("x"), P(), P(), [P()] * 3), check_vma=False)
    def everything(x):
        real = not jnp.issubdtype(x.dtype, jnp.complexfloating)
        moved = [
            jax.lax.psum_scatter(x[0], "x", tiled=True),
            jax.lax.all_to_all(x, "x", 1, 0, tiled=True).ravel(),
            jax.lax.ppermute(x[0], "x", pairs),
            jax.lax.ppermute(x[0], "x", [(0, size - 1)]),
        ]
        functions = (jax.lax.psum, jax.lax.pmax, jax.lax.pmin)
        reduced = [f(x[0], "x") if real or f is jax.lax.psum else x[0] for f in functions]
        return moved, jax.lax.all_gather(x, "x", tiled=True), jax.lax.psum(jnp.ones(2, bool), "x"), reduced

    names = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 bfloat16 float32 float64 complex64 complex128"
    for name in names.split():
        data = (np.arange(size * size * 4).reshape(size, size * 4) % 5 + 1).astype(jnp.dtype(name))
        if name.startswith("complex"):
            data = (data + 1j * data[::-1]).astype(name)
        to_last = np.zeros_like(data)
        to_last[-1] = data[0]
        moved, gathered, ones, reduced = everything(shard(data))
        for y, expected in zip(
            moved,
            (
                data.sum(0, dtype=data.dtype),
                data.reshape(size, size, 4).swapaxes(0, 1).ravel(),
                np.roll(data, 1, 0).ravel(),
                to_last.ravel(),
            ),
            strict=True,
        ):
            parts = np.split(expected, size)
            np.testing.assert_array_equal(np.asarray(y.addressable_data(0)), parts[rank])
        np.testing.assert_array_equal(gathered.addressable_data(0), data)
        np.testing.assert_array_equal(ones.addressable_data(0), [size, size])
        for y, f in zip(reduced, (np.sum, np.max, np.min), strict=True):
            if f is np.sum or not name.startswith("complex"):
                expected = f(data, axis=0).astype(data.dtype)
                np.testing.assert_array_equal(np.asarray(y.addressable_data(0)), expected)
    """
    distributed(n, code)


@pytest.mark.parametrize("n", RANKS)
def test_collectives_inserted_by_jit(distributed, n):
    """Sharded arrays without a word about communication, in loops, branches and gradients."""
    code = """
    data = np.random.default_rng(1).standard_normal((size * 2, size * 3)).astype(np.float32)
    x, y = shard(data), shard(data, P(None, "x"))
    options = dict(rtol=2e-5, atol=1e-5)
    check(jax.jit(lambda a, b: a @ b.T)(x, y), data @ data.T, **options)
    check(jax.jit(lambda a: a.T + a.sum(0, keepdims=True).T)(x), data.T + data.sum(0)[:, None], **options)
    check(jax.jit(lambda a: jnp.sort(a, axis=0))(x), np.sort(data, axis=0))
    check(jax.jit(lambda a: jnp.roll(a, 1, 0))(x), np.roll(data, 1, 0))
    check(jax.jit(lambda a: jnp.cumsum(a, 0))(x), np.cumsum(data, 0), **options)
    check(jax.jit(jax.grad(lambda a: (jnp.sin(a.sum(0)) ** 2).sum()))(x),
          np.broadcast_to(np.sin(2 * data.sum(0)), data.shape), rtol=1e-3, atol=1e-3)

    @jax.jit
    def loop(a):
        step = lambda a, _: (a / (1e-3 + jnp.linalg.norm(a)), a.max())
        return jax.lax.scan(step, a, length=5)

    a, peaks = loop(x)
    expected = data
    for peak in np.asarray(whole(peaks)):
        np.testing.assert_allclose(peak, expected.max(), rtol=1e-5)
        expected = expected / (1e-3 + np.linalg.norm(expected))
    check(a, expected, **options)

    @jax.jit
    def branch(a, flag):
        return jax.lax.cond(flag, lambda a: a.sum(), lambda a: a.max(), a)

    for flag in (True, False, True):
        check(branch(x, flag), data.sum() if flag else data.max(), **options)
    from jax.experimental import multihost_utils
    np.testing.assert_array_equal(multihost_utils.process_allgather(np.array([rank])), np.arange(size)[:, None])
    multihost_utils.sync_global_devices("here")
    assert multihost_utils.broadcast_one_to_all(np.float32(rank + 5)) == 5
    """
    distributed(n, code)


def test_groups_of_ranks(distributed):
    """Each clique has its own members; some have the same first device and the same places."""
    code = """
    data = np.arange(12.0, dtype=np.float32).reshape(12, 1)
    devices = np.array(jax.devices())

    def total(places):
        if rank not in places:
            return
        mesh = Mesh(devices[places], "x")
        part = data[: 2 * len(places)]
        f = jax.shard_map(lambda x: jax.lax.psum(x.sum(), "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
        x = shard(part, mesh=mesh)
        jax.config.update("jax_transfer_guard", "disallow")  # what a program forbids itself
        y = jax.block_until_ready(jax.jit(f)(x))
        jax.config.update("jax_transfer_guard", "allow")
        np.testing.assert_array_equal(y.addressable_data(0), part.sum())

    for places in ([0, 1], [0, 2], [1, 2], [0, 1, 2], [1, 0], [2, 0, 1], [1]):
        total(places)
    for shape in ((3, 1), (1, 3)):
        mesh = Mesh(devices.reshape(shape), ("a", "b"))
        part = data[:9].reshape(3, 3)
        for axis in ("a", "b"):
            f = jax.shard_map(lambda x: jax.lax.psum(x, axis), mesh=mesh, in_specs=P("a", "b"), out_specs=P("a", "b"))
            f = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, axis) + jax.lax.psum(x, ("a", "b")), mesh=mesh,
                                      in_specs=P("a", "b"), out_specs=P("a", "b"), check_vma=False))
            y = np.asarray(whole(f(shard(part, P("a", "b"), mesh=mesh))))
            blocks = part.reshape(shape[0], 3 // shape[0], shape[1], 3 // shape[1]).swapaxes(1, 2)
            sums = blocks.sum(0 if axis == "a" else 1, keepdims=True) + blocks.sum((0, 1), keepdims=True)
            np.testing.assert_array_equal(y, np.broadcast_to(sums, blocks.shape).swapaxes(1, 2).reshape(3, 3))
    from mpi4py import MPI
    MPI.Finalize()  # as a program may
    __import__("time").sleep(0.5)
    """
    distributed(3, code)


# What is refused.


@pytest.mark.parametrize("local", ["1", "0"])
def test_sums_are_made_in_the_order_of_the_ranks(distributed, local):
    """Through memory that the ranks share: psum, psum_scatter and all_gather, of few bytes and of many."""
    done = distributed(
        3,
        """
    from pathlib import Path
    def sums(x):
        return jax.lax.psum(x, "x"), jax.lax.psum_scatter(x, "x", tiled=True), jax.lax.all_gather(x, "x", tiled=True)

    for items in (3, 3 * 1000, 3 * 50_000):
        data = np.random.default_rng(7).normal(size=(3, items)) * 1e3 ** np.arange(3)[:, None]
        data = data.astype("float32")
        f = jax.shard_map(sums, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
        total, part, gathered = jax.jit(f)(shard(data.reshape(-1)))
        in_order = (data[0] + data[1]) + data[2]
        mine = lambda x: np.asarray(x.addressable_data(0))
        if sys.argv[1] == "1":
            np.testing.assert_array_equal(mine(total), in_order)
            np.testing.assert_array_equal(mine(part), in_order.reshape(3, -1)[rank])
        np.testing.assert_allclose(mine(total), in_order, rtol=1e-4)
        np.testing.assert_array_equal(mine(gathered), data.reshape(-1))
    assert ("/dev/shm/mpixla-" in Path("/proc/self/maps").read_text()) == (sys.argv[1] == "1")
        """,
        local,
        MPIXLA_LOCAL=local,
    )
    assert done.returncode == 0, done.stderr


def test_without_the_launcher(job):
    code = """
        import mpixla.distributed
        try:
            mpixla.distributed.initialize()
        except RuntimeError as e:
            print(e)
    """
    said = job(1, code).stdout
    assert said.startswith(
        "mpixla.distributed.initialize() needs the launcher, and this process was not started by it."
    )
    assert "mpirun -n 4 python -m mpixla.distributed script.py" in said


def test_rank_that_never_calls_initialize(job):
    code = """
        from mpi4py import MPI
        import mpixla.distributed
        from mpixla.mpi import arrival
        arrival._LEAST = 1
        if MPI.COMM_WORLD.Get_rank() == 0:
            mpixla.distributed.initialize()
    """
    done = job(2, code, python=LAUNCHER, check=False, MPIXLA_TIMEOUT="1")
    assert done.returncode == 1
    assert "mpixla: rank 0 has waited for 1 s in `mpixla.distributed.initialize()`, longer than" in done.stderr


def test_rank_that_calls_initialize_late(job):
    """The import has had a word on a late rank, too."""
    code = """
        import os, threading, time
        from mpi4py import MPI
        import mpixla.distributed
        from mpixla.mpi import arrival
        import_is_done = threading.Event()
        import_is_done.set()
        arrival._report_waiting("import mpixla", "rank 1 was late", import_is_done)
        arrival._LEAST = 1
        report = arrival.print_message
        arrival.print_message = lambda sentence: report(sentence) or open("said", "w").close()
        while MPI.COMM_WORLD.Get_rank() == 1 and not os.path.exists("said"):
            time.sleep(0.01)
        mpixla.distributed.initialize()
    """
    said = job(2, code, python=LAUNCHER, MPIXLA_TIMEOUT="").stderr
    assert said.count("in `mpixla.distributed.initialize()`, and goes on") == 1


def test_launcher_refuses_jaxlib_that_was_loaded_before(job, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import jaxlib._jax")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = job(2, "print('not run')", python=LAUNCHER, check=False, PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("python -m mpixla.distributed: jaxlib was loaded before it") == 1


@pytest.mark.parametrize("fits", [True, False])
def test_unknown_jaxlib_is_tried(job, tmp_path, fits):
    """In a process of its own: MPItrampoline ends the process in which it does not find what it looks for."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as m; of = m.version; m.version = lambda n: '99.0' if n == 'jaxlib' else of(n)\n"
        "import os, sys\n"
        f"if not {fits} and 'import jaxlib._jax' in sys.orig_argv: os.environ['MPITRAMPOLINE_LIB'] = '/nowhere.so'"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    code = "import mpixla.distributed as d; d.initialize(); import jax; print(jax.process_index())"
    done = job(2, code, python=LAUNCHER, check=False, PYTHONPATH=path)
    if fits:
        assert sorted(done.stdout.split()) == ["0", "1"], done.stderr
        return
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("jaxlib 99.0 does not take the library by which mpixla gives it MPI: MPItrampoline") == 1


def test_refusals_of_initialize(job):
    """One after the other; after the first three it can still be called."""
    code = """
        import jax, mpixla.distributed as d

        def refused(said, call=d.initialize):
            try:
                call()
            except Exception as e:
                assert said in str(e), e
            else:
                raise AssertionError(said)

        asked = jax.config.values["jax_num_cpu_devices"]
        jax.config.update("jax_num_cpu_devices", 2)
        refused("JAX was told to have 2 CPU devices in a process")
        jax.config.update("jax_num_cpu_devices", asked)
        refused(
            "was given process_id=7 and num_processes=None, but this process is rank 0 of 1 under MPI.",
            lambda: jax.distributed.initialize(process_id=7),
        )
        d.initialize()
        refused("was called before. Call it once.")
        print("the end")
    """
    assert job(1, code, python=LAUNCHER).stdout == "the end\n"


def test_initialize_after_jax_has_started(job):
    code = """
        import jax, mpixla.distributed
        jax.devices()
        try:
            mpixla.distributed.initialize()
        except Exception as e:
            print(e)
    """
    said = "called after JAX had started. Call it before anything that computes"
    assert said in job(1, code, python=LAUNCHER).stdout


def test_two_local_devices(distributed):
    """Sums would be silently wrong."""
    code = """
    assert len(jax.devices()) == 2 * size
    data = np.ones(2 * size, np.float32)
    f = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
    try:
        f(shard(data))
    except NotImplementedError as e:
        assert "sharded over 4 devices of 2 processes, but over MPI a process communicates for one device" in str(e)
    else:
        raise AssertionError("not refused")
    one_each = Mesh(np.array(jax.devices())[::2], "x")
    f = jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=one_each, in_specs=P("x"), out_specs=P())
    assert jax.jit(f)(shard(data[:2], mesh=one_each)).addressable_data(0) == 2
    """
    distributed(2, code, XLA_FLAGS="--xla_force_host_platform_device_count=2")


def test_large_counts_are_refused():
    """XLA hands MPI the count as an int: of items in reductions, else of bytes."""
    for text, items in (
        ("%a = f32[2147483648]{0} all-reduce(%p), channel_id=1, replica_groups={{0,1}}, to_apply=%add", 2**31),
        ("ROOT %a = (f32[1]{0}, f32[65536,8192]{1,0}) all-to-all(%p, %q), replica_groups=[1,2]<=[2]", 2**29),
        ("%a = f64[268435456]{0} collective-permute-start(%p), source_target_pairs={{0,1}}", 2**28),
    ):
        (collective,) = collectives_of(text, 2)
        assert (collective.items, collective.groups) == (items, ((0, 1),))
        with pytest.raises(NotImplementedError, match=r"hands MPI at most 2147483647 (items|bytes) in one call"):
            refuse_where_mpi_cannot(collective)
    (fits,) = collectives_of("%a = f32[2147483647]{0} all-reduce(%p), replica_groups={}", 2)
    refuse_where_mpi_cannot(fits)


@pytest.mark.parametrize(
    ("groups", "read"),
    [
        ("replica_groups={{0,2},{1,3}}", ((0, 2), (1, 3))),
        ("replica_groups={}", ((0, 1, 2, 3),)),
        ("replica_groups=[2,2]<=[4]", ((0, 1), (2, 3))),
        ("replica_groups=[2,2]<=[2,2]T(1,0)", ((0, 2), (1, 3))),
        ("replica_groups=mesh['a'=2,'b'=2] {'b'}", ((0, 1), (2, 3))),
        ("replica_groups=mesh['a'=2,'b'=2] {'a'}", ((0, 2), (1, 3))),
        ("replica_groups=mesh['a'=2,'b'=2] {'b','a'}", ((0, 2, 1, 3),)),
        ("replica_groups=mesh['a'=2,'b'=2] {}", ((0,), (1,), (2,), (3,))),
        ("replica_groups=mesh['a'=4] {'a':(2)2}", ((0, 1), (2, 3))),
        ("replica_groups=mesh['a'=4] {'a':(2)2,'a':(1)2}", ((0, 2, 1, 3),)),
        ("replica_groups=mesh['a'=4] {'a':(1)2}", ((0, 2), (1, 3))),
        ("replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}", ((0, 2), (1, 3))),
        ("replica_groups=mesh['a'=2,'b'=2], device_ids=(3,1,2,0) {'b'}", ((3, 1), (2, 0))),
    ],
)
def test_groups_of_a_collective(groups, read):
    """The forms in which XLA writes them."""
    (collective,) = collectives_of(f"  %a.1 = f32[3]{{0}} all-gather(%p), channel_id=1, {groups}, dimensions={{0}}", 4)
    assert collective == ("all-gather", read, "f32", 3)


def test_unknown_groups_are_refused():
    with pytest.raises(ValueError, match="cannot read the groups of this collective of XLA's: all-gather"):
        list(collectives_of("%a = f32[3]{0} all-gather(%p), replica_groups=new{0}, dimensions={0}", 4))


def test_rank_that_does_not_come(distributed):
    """It is named, within the time limit."""
    code = """
    import time
    if rank == 1:
        time.sleep(60)
    check(shard(np.ones(3, np.float32)), np.ones(3, np.float32))
    """
    done = distributed(3, code, check=False, MPIXLA_TIMEOUT="2")
    assert done.returncode != 0
    assert (
        "that is sharded over the ranks 0, 1, 2, but rank 1 has not come to run it, so the whole job ends"
        in done.stderr
    )


def test_rank_that_comes_late_where_there_is_no_limit(distributed):
    code = """
    import time
    from mpixla.distributed import _cliques
    _cliques._LIMIT = 0.5
    if rank == 1:
        time.sleep(3)
    check(shard(np.ones(2, np.float32)), np.ones(2, np.float32))
    """
    assert distributed(2, code, MPIXLA_TIMEOUT="0").returncode == 0


@pytest.mark.parametrize("program", [("-m", "script"), ("-c", "import script")])
def test_distributed_launcher_runs_scripts_modules_and_code(tmp_path, program):
    code = """
        import sys, jax
        jax.distributed.initialize()
        sys.stdout.write(f"{jax.process_count()} {sys.argv[1:]}\\n")
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(code))
    done = start(2, *program, "one", "-m", python=LAUNCHER, cwd=tmp_path)
    assert done.stdout == "2 ['one', '-m']\n" * 2, done.stderr


def test_usage_is_printed_once():
    done = start(2, "--what", python=LAUNCHER, check=False)
    assert done.returncode == 2
    assert (done.stdout + done.stderr).count("usage: mpirun -n N python -m mpixla.distributed") == 1


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python -m a.b / c", ("a.b", [])),
        ("python -ummpixla / -m c", ("mpixla", ["-u"])),
        ("python -W error -X dev -Om a / -m b", ("a", ["-W", "error", "-X", "dev", "-O"])),
        ("python --check-hash-based-pycs never -m a /", ("a", ["--check-hash-based-pycs", "never"])),
    ],
)
def test_the_module_that_python_runs(command, found, monkeypatch):
    """What is behind the slash follows the module."""
    before, rest = (part.split() for part in command.split("/"))
    monkeypatch.setattr(sys, "orig_argv", [*before, *rest])
    monkeypatch.setattr(sys, "argv", ["-m", *rest])
    assert module_run() == found
    monkeypatch.setattr(sys, "argv", ["a.py", *rest])  # it is found, or it is a script
    assert module_run() is None


# mpixla's operations in sharded programs.

BOTH = """
    import mpixla
    from mpi4py import MPI

    def mapped(f, out=P("x"), ins=P("x"), **options):
        return jax.shard_map(f, mesh=mesh, in_specs=ins, out_specs=out, **options)

    data = np.random.default_rng(3).standard_normal((size, 4)).astype(np.float32)
    x = shard(data)
    scans = np.cumsum(data, 0)
    total = data.sum(0)
"""


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("jit", ["jax.jit", pytest.param("mpixla.jit", marks=pytest.mark.long)])
def test_operations_in_shard_map(distributed, jit, n):
    """In one program with JAX's own, in any order."""
    code = f"""
    jit = {jit}
    for check_vma in (True, False):
        of = partial(mapped, check_vma=check_vma)
        options = dict(rtol=1e-5, atol=1e-5)
        both = jit(of(lambda x: mpixla.scan(x, op=MPI.SUM) + jax.lax.psum(x, "x") * mpixla.allreduce(x, op=MPI.SUM)))
        for _ in range(3):
            check(both(x), scans + total**2, **options)
        twice = of(lambda x: mpixla.allreduce(jax.lax.psum(x, "x"), op=MPI.SUM), P())
        check(jit(twice)(x), size * total[None], **options)
        right, left = (rank + 1) % size, (rank - 1) % size
        check(jit(of(lambda x: mpixla.sendrecv(x, x, source=left, dest=right)))(x), np.roll(data, 1, 0))
        half = lambda x: mpixla.wait(mpixla.isendrecv(x, x, source=left, dest=right))
        check(jit(of(half))(x), np.roll(data, 1, 0))
        check(jit(of(lambda x: mpixla.shift(x, 1)))(x), np.roll(data, 1, 0))
        check(jit(of(lambda x: x + mpixla.rank()))(x), data + np.arange(size, dtype=np.float32)[:, None])
        ring = MPI.COMM_WORLD.Create_cart([size], periods=[True], reorder=False)

        def edges(x):
            padded = mpixla.halo_exchange(jnp.pad(x.ravel(), 1), ring)
            return (padded[2:] - padded[:-2]).reshape(x.shape)

        flat = data.ravel()
        check(jit(of(edges))(x), (np.roll(flat, -1) - np.roll(flat, 1)).reshape(data.shape), **options)

        def loop(x):
            return jax.lax.fori_loop(0, 3, lambda i, y: mpixla.scan(y, op=MPI.SUM) + jax.lax.psum(y, "x"), x)

        expected = data
        for _ in range(3):
            expected = np.cumsum(expected, 0) + expected.sum(0)
        check(jit(of(loop))(x), expected, rtol=1e-4, atol=1e-4)
        check(jit(of(lambda x: mpixla.allgather(x[0]).sum(0)[None], P()))(x), total[None], **options)
        double = jax.vmap(lambda x: mpixla.scan(x, op=MPI.SUM), 1, 1)
        check(jit(of(double))(x), scans, **options)
    """
    distributed(n, BOTH + code)


def test_operations_in_shard_map_with_a_compilation_cache(distributed, tmp_path):
    """They are found there; but one that has no result takes a token, which jaxlib cannot serialize."""
    code = """
    for f in (lambda x: jax.lax.psum(x, "x"), lambda x: jax.lax.psum(x, "x") + mpixla.scan(x, op=MPI.SUM)):
        y = jax.jit(mapped(f))(x)
    jax.jit(mapped(lambda x: mpixla.send(x, MPI.PROC_NULL), out=None))(x)
    check(y, total + scans, rtol=1e-5)
    """
    cache = tmp_path / "cache"
    for _ in range(2):
        distributed(
            2,
            BOTH + code,
            JAX_COMPILATION_CACHE_DIR=str(cache),
            JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
            JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
        )
        assert len(list(cache.glob("jit__lambda-*-cache"))) == 3  # psum, both, and the reader of `check`


@pytest.mark.parametrize("n", RANKS)
def test_gradients_through_both(distributed, n):
    """Against derivatives by hand, with types that say what varies and without."""
    code = """
    weights = np.arange(1, size * 4 + 1, dtype=np.float32).reshape(size, 4)
    w = shard(weights)
    back = np.cumsum(weights[::-1], 0)[::-1]  # the transpose of the scan
    options = dict(rtol=1e-4, atol=1e-4)
    p = jnp.arange(4.0)
    for check_vma in (True, False):
        of = partial(mapped, check_vma=check_vma)
        scan = of(lambda x: mpixla.scan(x, op=MPI.SUM))
        check(jax.jit(jax.grad(lambda x: (scan(x) * weights).sum()))(x), back, **options)
        inside = of(lambda x, w: jax.lax.psum((mpixla.scan(x, op=MPI.SUM) * w).sum(), "x"), P(), (P("x"), P("x")))
        check(jax.jit(jax.grad(inside))(x, w), back, **options)
        reduce = of(lambda x: mpixla.allreduce(x, op=MPI.SUM), P())
        check(jax.jit(jax.grad(lambda x: (reduce(x) ** 2).sum()))(x), np.broadcast_to(2 * total, data.shape), **options)
        inner = of(lambda x: (mpixla.allreduce(x, op=MPI.SUM) ** 2).sum(), P())
        check(jax.jit(jax.grad(inner))(x), np.broadcast_to(2 * total, data.shape), **options)
        mixed = of(lambda x: jax.lax.psum((mpixla.allreduce(x, op=MPI.SUM) * x).sum(), "x"), P())
        check(jax.jit(jax.grad(mixed))(x), np.broadcast_to(2 * total, data.shape), **options)
        gather = of(lambda x: (mpixla.allgather(x[0]) ** 2).sum(), P())
        check(jax.jit(jax.grad(gather))(x), 2 * data, **options)
        root = of(lambda x: (mpixla.bcast(x, root=1) ** 2).sum(), P())
        expected = np.zeros_like(data)
        expected[1] = 2 * data[1]
        check(jax.jit(jax.grad(root))(x), expected, **options)
        # Parameters that all have: with and without pvary.
        for pvary in (lambda p: p, mpixla.pvary):
            model = of(lambda p, x: mpixla.allreduce(((x @ pvary(p)) ** 2).sum(), op=MPI.SUM), P(), (P(), P("x")))
            gradient = jax.jit(jax.grad(model))(p, x)
            np.testing.assert_allclose(whole(gradient), 2 * data.T @ (data @ np.arange(4.0)), rtol=1e-4)
        right, left = (rank + 1) % size, (rank - 1) % size
        for send in (
            lambda x: mpixla.sendrecv(x, x, source=left, dest=right),
            lambda x: mpixla.wait(mpixla.isendrecv(x, x, source=left, dest=right)),
            lambda x: sum(mpixla.overlap(mpixla.isendrecv(x, x, source=left, dest=right), jnp.negative, x)) + x,
        ):
            moved = of(lambda x: jnp.sin(send(x)))
            expected = np.cos(data) * np.roll(weights, -1, 0)
            check(jax.jit(jax.grad(lambda x: (moved(x) * weights).sum()))(x), expected, **options)
        # What is waited for varies to JAX, so the weights of all ranks count.
        sums = np.broadcast_to(weights.sum(0), data.shape)
        on_root = np.zeros_like(data)
        on_root[1] = sums[1]
        for begin, expected in [
            (lambda x: mpixla.iallreduce(x, op=MPI.SUM), sums),
            (lambda x: mpixla.iallreduce(x, op=MPI.MAX), np.where(data == data.max(0), sums, 0)),
            (lambda x: mpixla.iallgather(x[0]), sums),
            (lambda x: mpixla.ibcast(x, root=1), on_root),
        ]:
            use = lambda x, w: (mpixla.wait(begin(x)).sum(0) * w).sum()
            started = of(lambda x, w: jax.lax.psum(use(x, w), "x"), P(), (P("x"), P("x")))
            check(jax.jit(jax.grad(started))(x, w), expected, **options)
            # The transpose of the transpose is the derivative of the operation itself.
            again = jax.jit(jax.grad(lambda w, x: (jax.grad(started)(x, w) * weights).sum()))(w, x)
            along = jax.jit(lambda x, w: jax.jvp(lambda x: jax.grad(started, argnums=1)(x, w), (x,), (w,))[1])(x, w)
            check(again, whole(along), **options)
        ring = MPI.COMM_WORLD.Create_cart([size], periods=[True], reorder=False)
        edges = of(lambda x: mpixla.halo_exchange(jnp.pad(x.ravel(), 1), ring)[2:].reshape(x.shape) ** 2)
        shifted = np.roll(weights.ravel(), 1).reshape(data.shape)
        check(jax.jit(jax.grad(lambda x: (edges(x) * weights).sum()))(x), 2 * data * shifted, **options)
        jvp = jax.jit(lambda x, t: jax.jvp(lambda x: scan(x) ** 2, (x,), (t,))[1])
        check(jvp(x, w), 2 * scans * np.cumsum(weights, 0), **options)
        remat = jax.checkpoint(of(lambda x: jnp.sin(mpixla.scan(x, op=MPI.SUM))))
        expected = np.cumsum((np.cos(scans) * weights)[::-1], 0)[::-1]
        check(jax.jit(jax.grad(lambda x: (remat(x) * weights).sum()))(x), expected, **options)
    """
    distributed(n, BOTH + code)


@pytest.mark.parametrize("cores", [(), ("--one-core",)], ids=["cores", "one core"])
@pytest.mark.parametrize("n", [*RANKS, pytest.param(4, marks=[pytest.mark.long, pytest.mark.any_mpi])])
def test_random_programs(n, cores):
    """Mixtures of mpixla's operations and XLA's collectives, neither of which blocks the other, on one core either."""
    script = ROOT / "tests/soak/sharded.py"
    done = start(n, script, "--programs", "12", "--seed", "3", *cores, python=LAUNCHER, MPIXLA_TIMEOUT="60")
    assert f"12 programs on {n} ranks, 0 wrong" in done.stdout


# None of these ends the job, so they share a start.
PROGRAMS = {
    "max and min with NaN": """
    data = np.array([[1, np.nan, 3], [4, 5, np.nan]], np.float32)
    for f in (jax.lax.pmax, jax.lax.pmin):
        y = jax.jit(jax.shard_map(lambda x: f(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))(shard(data))
        reduce = np.max if f is jax.lax.pmax else np.min
        np.testing.assert_array_equal(y.addressable_data(0)[0], reduce(data, axis=0))
    """,
    # Each on all ranks, before anything is communicated; and the next program runs.
    "programs that are refused": """
    def refused(f, data, said):
        try:
            jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))(shard(data))
        except NotImplementedError as e:
            assert said in str(e), e
        else:
            raise AssertionError("not refused")

    for dtype in (jnp.float16, jnp.float8_e4m3fn):
        refused(lambda x: jax.lax.psum(x, "x"), np.ones((size, 2), dtype), "does not take its type f16")
        refused(lambda x: jax.lax.all_gather(x, "x"), np.ones((size, 2), dtype), "does not take its type f16")
        data = np.arange(size, dtype=dtype)
        swap = lambda x: jax.lax.ppermute(x, "x", [(0, 1), (1, 0)])
        moved = jax.shard_map(swap, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
        check(jax.jit(lambda x: moved(x).astype("float32"))(shard(data)), data[::-1].astype("float32"))
        named = jax.named_scope("as before the all-gather(x)")(lambda x: x + 1)  # which communicates nothing
        check(jax.jit(named)(shard(data)).astype("float32"), data.astype("float32") + 1)
    """,
    # XLA's collectives fit together only if all ranks have the same program: also where an operation has a root.
    "one program for all": """
    import re
    weights = np.arange(1, size * 4 + 1, dtype=np.float32).reshape(size, 4)
    ops = {
        "bcast": lambda x: mpixla.bcast(x, 1),
        "reduce": lambda x: mpixla.reduce(x, MPI.SUM, 1),
        "reduce, MAX": lambda x: mpixla.reduce(x, MPI.MAX, 1),
        "ibcast": lambda x: mpixla.wait(mpixla.ibcast(x, 1)),
    }
    models = {
        "bcast": np.tile(data[1], (size, 1)),
        "reduce": np.where(np.arange(size)[:, None] == 1, total, data),
        "reduce, MAX": np.where(np.arange(size)[:, None] == 1, data.max(0), data),
        "ibcast": np.tile(data[1], (size, 1)),
    }
    for name, op in ops.items():
        for check_vma in (True, False):
            f = mapped(lambda x: op(x) + jax.lax.psum(x, "x"), check_vma=check_vma)
            for g in (f, jax.grad(lambda x: (f(x) * weights).sum())):
                text = re.sub(r"site = \\d+", "", jax.jit(g).lower(x).as_text())
                assert set(MPI.COMM_WORLD.allgather(text)) == {text}, name
                y = jax.jit(g)(x)
            check(jax.jit(f)(x), models[name] + total, rtol=1e-5)
    for name, call in {
        "gather": lambda x: mpixla.gather(x, 0),
        "gatherv": lambda x: mpixla.gatherv(x, [1] * size, 0),
        "scatter": lambda x: mpixla.scatter(x, 0),
        "scatterv": lambda x: mpixla.scatterv(x, [1] * size, 0),
    }.items():
        try:
            jax.jit(mapped(call))(x)
        except NotImplementedError as e:
            assert str(e).startswith(f"{name} has an array of another shape on the root than elsewhere"), e
        else:
            raise AssertionError(name)
    """,
    # None of XLA's, nor the one that calls it, waits in MPI.
    "calls are made by threads of the library": """
    import threading
    threads = set()

    def add(a, b, _):
        threads.add(threading.get_ident())
        np.frombuffer(b, np.float32)[:] += np.frombuffer(a, np.float32)

    op = MPI.Op.Create(add, commute=True)
    x = jnp.arange(3.0, dtype=jnp.float32)
    assert (mpixla.allreduce(x, op=op) == 2 * np.arange(3)).all()
    assert threading.get_ident() not in threads
    assert max(MPI.COMM_WORLD.allgather(len(threads))) == 1
    """,
    # XLA has collectives of one device, too; and threads may come to cliques in other orders on other ranks.
    "programs of one process": """
    import threading
    own = Mesh(np.array(jax.local_devices()), "x")
    mine = jax.device_put(np.arange(4.0, dtype=np.float32)[None], NamedSharding(own, P("x")))
    for f in (
        lambda x: jax.lax.all_gather(x, "x", tiled=True),
        lambda x: jax.lax.ppermute(x, "x", [(0, 0)]),
        lambda x: jax.lax.psum_scatter(x, "x", tiled=True),
        lambda x: jax.lax.psum(x, "x"),
    ):
        alone = jax.jit(jax.shard_map(f, mesh=own, in_specs=P("x"), out_specs=P("x"), check_vma=False))
        np.testing.assert_array_equal(alone(mine), np.arange(4.0)[None])

    def total(ranks):
        part = Mesh(np.array(jax.devices())[ranks], "x")
        ones = shard(np.ones(len(ranks), np.float32), mesh=part)
        sums = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=part, in_specs=P("x"), out_specs=P()))
        assert sums(ones).addressable_data(0) == len(ranks)

    orders = [[0, 1], [1, 0]]
    threads = [threading.Thread(target=total, args=(ranks,)) for ranks in (orders if rank else orders[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    """,
    "operations outside of shard_map": """
    add_rank = lambda x: x + mpixla.rank()
    for f in (lambda x: mpixla.allreduce(x, op=MPI.SUM), lambda x: mpixla.scan(x.T, op=MPI.SUM), add_rank):
        try:
            jax.jit(f)(x)
        except NotImplementedError as e:
            assert "in a program that is sharded over 2 processes, outside of jax.shard_map" in str(e), e
        else:
            raise AssertionError("not refused")
    np.testing.assert_array_equal(mpixla.allreduce(jnp.ones(2), op=MPI.SUM), np.full(2, size))

    from jax.experimental.custom_partitioning import custom_partitioning
    part = custom_partitioning(lambda x: x)
    rows = NamedSharding(mesh, P("x", None))
    part.def_partition(
        partition=lambda mesh, args, result: (mesh, lambda x: mpixla.allreduce(x, op=MPI.SUM), rows, (rows,)),
        infer_sharding_from_operands=lambda mesh, args, result: rows,
        sharding_rule="i j -> i j",
    )
    try:
        jax.jit(part)(x)
    except Exception as e:
        assert "does not show the effects" in str(e) and "hook" not in str(e), e
    else:
        raise AssertionError("not refused")
    """,
    # From which JAX would know the devices.
    "operations without an array": """
    def programs(f):
        return {
            "no argument": lambda: jax.jit(mapped(f, None, (), check_vma=False))(),
            "one that is not used": lambda: jax.jit(mapped(lambda x: f(), None, check_vma=False))(x),
        }

    def total():
        mpixla.allreduce(jnp.ones(1), op=MPI.SUM)

    for f in (mpixla.barrier, total):
        for name, call in programs(lambda: (f(), None)[1]).items():
            try:
                call()
            except NotImplementedError as e:
                assert "neither uses an argument nor gives a result" in str(e), e
            else:
                raise AssertionError(name)
    check(jax.jit(lambda x: (mapped(lambda: mpixla.barrier(), None, (), check_vma=False)(), x)[1])(x), data)
    jax.jit(mapped(lambda x: (mpixla.allreduce(x, op=MPI.SUM), None)[1], None, check_vma=False))(x)
    """,
    # As if each rank were on a host of its own: the mesh is the one that JAX makes on one.
    "a mesh over hosts": """
    Auto = jax.sharding.AxisType.Auto
    calls = [
        lambda: jax.make_mesh((size,), ("x",)),
        lambda: jax.make_mesh([size, 1], ("x", "y"), (Auto, Auto)),
        lambda: jax.make_mesh(axis_shapes=(1, size), axis_names=("x", "y"), axis_types=(Auto, Auto)),
        lambda: jax.make_mesh((size,), ("x",), devices=jax.devices()[::-1]),
        lambda: jax.make_mesh((1,), ("x",)),
    ]
    of_jax = [call() for call in calls]
    mpixla.distributed._initialize._are_cpus_of_several_hosts = lambda devices: True
    made = [call() for call in calls]
    assert made == of_jax
    assert [mesh.axis_types for mesh in made] == [mesh.axis_types for mesh in of_jax]
    try:
        jax.make_mesh((size + 1,), ("x",))
    except ValueError as e:
        assert str(e).startswith("Number of devices 2 must be"), e
    else:
        raise AssertionError("not refused")
    """,
}


def test_programs(distributed):
    programs = {name: textwrap.dedent(code) for name, code in PROGRAMS.items()}
    code = textwrap.indent(together(programs, BOTH), "    ")
    assert all_ended(distributed(2, code), programs, 2)


# Ranks that fail or leave.


@pytest.mark.long
@pytest.mark.parametrize(
    ("leaves", "known", "limit", "said"),
    [
        ("sys.exit()", True, "", "Rank 1 has not come: it is at the end of its script"),
        (
            "sys.exit()",
            False,
            "0",
            "rank 0 waits .*, but rank 1 has come to the end of its script|but rank 1 has not come",
        ),
        ("raise OSError('no')", True, "0", "rank 1 ended with an uncaught OSError"),
        ("os._exit(0)", False, "0", "rank 1 called os._exit"),
    ],
)
def test_rank_that_leaves(distributed, leaves, known, limit, said):
    """The job ends, whether the program ran before or not; only who is in a program needs the watching thread."""
    code = f"""
    import os
    x = shard(np.ones((size, 2), np.float32))
    f = jax.jit(lambda x: x.sum(0))
    if {known}:
        check(f(x), np.full(2, size, np.float32))
    if rank == 1:
        {leaves}
    print(f(x).addressable_data(0))
    """
    done = distributed(2, code, check=False, MPIXLA_TIMEOUT=limit)
    assert done.returncode != 0
    assert re.search(said, done.stderr), done.stderr


def test_rank_that_leaves_a_permutation(distributed):
    code = """
    x = shard(np.arange(size, dtype=np.float32))
    f = jax.jit(jax.shard_map(lambda x: jax.lax.ppermute(x, "x", [(0, 1), (1, 0)]), mesh=mesh, in_specs=P("x"),
                              out_specs=P("x")))
    check(f(x), np.arange(size, dtype=np.float32)[::-1])
    if rank == 1:
        sys.exit()
    f(x).block_until_ready()
    """
    done = distributed(2, code, check=False)
    assert done.returncode != 0
    assert "Rank 1 has not come: it is at the end of its script" in done.stderr, done.stderr


@pytest.mark.parametrize("leaves", ["sys.exit()", pytest.param("MPI.Finalize()", marks=pytest.mark.long)])
def test_rank_that_leaves_an_operation(distributed, leaves):
    """Of mpixla's, of which the time limit's thread knows: there is none."""
    code = f"""
    import mpixla
    from mpi4py import MPI
    f = jax.jit(jax.shard_map(lambda x: mpixla.allreduce(x, op=MPI.SUM), mesh=mesh, in_specs=P("x"), out_specs=P("x"),
                              check_vma=False))
    x = shard(np.ones((size, 2), np.float32))
    check(f(x), np.full((size, 2), size, np.float32))
    if rank == 1:
        {leaves}
    f(x).block_until_ready()
    """
    done = distributed(2, code, check=False)
    assert done.returncode != 0
    assert "for a rank that is at the end of its script, so the whole job ends" in done.stderr, done.stderr
    assert "Rank 1 has not come: it is at the end of its script." in done.stderr, done.stderr


@pytest.mark.long
def test_ranks_that_end_early_are_waited_for(distributed):
    """Others go on without them, as long as they do not need them."""
    code = """
    import time
    check(shard(np.ones(size, np.float32)), np.ones(size, np.float32))
    if rank == 2:
        sys.exit()
    time.sleep(1)
    pair = Mesh(mesh.devices[:2], "x")
    f = jax.jit(lambda x: x.sum(0), out_shardings=NamedSharding(pair, P()))
    for _ in range(3):
        np.testing.assert_array_equal(f(shard(np.ones(2, np.float32), mesh=pair)).addressable_data(0), 2)
        time.sleep(0.5)
    """
    distributed(3, code)


def test_time_limit_names_the_missing_ranks(distributed):
    """XLA's calls are in the reports of MPIXLA_TIMEOUT."""
    code = """
    import time
    x = shard(np.ones((size, 2), np.float32))
    f = jax.jit(lambda x: x.sum(0))
    check(f(x), np.full(2, size, np.float32))
    if rank == 1:
        time.sleep(60)
    f(x).block_until_ready()
    """
    done = distributed(2, code, check=False, MPIXLA_TIMEOUT="2")
    assert done.returncode != 0
    assert "on rank 0 of 2 of communicator 'JAX's, ranks 0, 1'" in done.stderr
    assert "time.sleep(60)" in done.stderr


@pytest.mark.any_mpi
@pytest.mark.long
def test_examples_of_the_page(distributed):
    page = (ROOT / "docs/distributed.md").read_text()
    first, second = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code = first.replace("mpixla.distributed.initialize()", "pass") + second
    code += "desired = np.cos(np.arange(32, dtype=np.float32)).reshape(8, 4)\n"
    code += "check(jax.jit(lambda x: x - laplacian(x))(solution), desired, atol=1e-3)\n"
    assert "61824.0" in distributed(2, textwrap.indent(code, "    ")).stdout


@pytest.mark.long
def test_timeline_and_debug_lines(distributed, tmp_path):
    """XLA's calls are in both, and whoever reads timelines finds out which belong together."""
    code = """
    def f(x):
        return jax.lax.psum(x, "x") + jax.lax.ppermute(x, "x", [(0, 1), (1, 0)]) + jax.lax.all_to_all(x, "x", 1, 1)

    data = np.ones((size, size), np.float32)
    out = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))(shard(data))
    np.testing.assert_array_equal(out.addressable_data(0), 4 * data[:1])
    """
    done = distributed(2, code, MPIXLA_TRACE=str(tmp_path / "trace"), MPIXLA_DEBUG="1")
    for rank in range(2):
        assert f"r{rank} | " in done.stderr + done.stdout
    assert "MPI_Allreduce with 2 items" in done.stderr + done.stdout
    read = alone("-m", "mpixla.trace", tmp_path / "trace")
    assert read.returncode == 0, read.stderr
    for operation in ("allreduce", "send", "recv", "sendrecv"):
        assert re.search(rf"^  {operation} ", read.stdout, re.MULTILINE), read.stdout
    assert "never came" not in read.stdout
    assert "not the same on its ranks" not in read.stdout


@pytest.mark.long
def test_timeline_of_two_communicators(distributed, tmp_path):
    """XLA's communicators have numbers of their own: one that two have is damage to who reads timelines."""
    code = """
    def f(x):
        return jax.lax.psum(jax.lax.psum(x, "a"), "b")

    grid = jax.make_mesh((2, 2), ("a", "b"))
    x = jax.jit(lambda: jnp.ones(4), out_shardings=jax.NamedSharding(grid, P(("a", "b"))))()
    out = jax.jit(jax.shard_map(f, mesh=grid, in_specs=P(("a", "b")), out_specs=P()))(x)
    np.testing.assert_array_equal(out.addressable_data(0), [4])
    """
    distributed(4, code, MPIXLA_TRACE=str(tmp_path / "trace"))
    read = alone("-m", "mpixla.trace", tmp_path / "trace")
    assert read.returncode == 0, read.stderr
    assert re.search(r"^  allreduce ", read.stdout, re.MULTILINE), read.stdout
    assert "Note: " not in read.stdout


def test_meeting_on_several_hosts(job):
    """The first address of rank 0 that all ranks reach; if there is none, all of them hear of it."""
    code = """
        import sys
        from mpi4py import MPI
        from mpixla.distributed import _coordinator as c
        rank = MPI.COMM_WORLD.Get_rank()
        c.has_several = lambda comm: True
        c._own_addresses = lambda: ["240.0.0.1", "127.0.0.1"]
        host, port = c.find_coordinator().split(":")
        assert host == "127.0.0.1" and 0 < int(port) < 65536
        c._own_addresses = lambda: ["240.0.0.1"]
        try:
            c.find_coordinator()
        except RuntimeError as e:
            sys.stdout.write(f"{e}\\n")
    """
    said = job(3, code).stdout
    assert said.count("No address of rank 0 is reached by all ranks: 240.0.0.1 not by rank 1, 2.") == 3, said


@pytest.mark.any_mpi
@pytest.mark.long
def test_docstring(job):
    code = """
        import doctest, sys
        import mpixla.distributed
        (test,) = doctest.DocTestFinder(recurse=False).find(mpixla.distributed.initialize, "initialize", globs={})
        sys.stdout.write(f"{doctest.DocTestRunner().run(test)}\\n")
    """
    assert job(2, code, python=LAUNCHER).stdout == "TestResults(failed=0, attempted=3)\n" * 2


ASKS = 'jax.config.update("jax_cpu_collectives_implementation", "gloo")'


@pytest.mark.parametrize(
    ("begin", "environment"),
    [
        ("", {}),
        (ASKS, {}),
        ("", {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}),
    ],
    ids=["nobody", "the program", "the job's environment"],
)
def test_program_that_asks_for_gloo(job, begin, environment):
    """It gets MPI, and is told so, once."""
    code = f"""
        import jax, mpixla.distributed
        {begin}
        mpixla.distributed.initialize()
        print(jax.config.jax_cpu_collectives_implementation)
    """
    done = job(2, code, python=LAUNCHER, **environment)
    assert done.stdout.split() == ["mpi", "mpi"]
    asks = bool(begin or environment)
    assert done.stderr.count("mpixla: the program asks for gloo (jax_cpu_collectives_implementation), but") == asks
    assert ("start the program without it" in done.stderr) == asks


@pytest.mark.any_mpi
def test_call_under_a_mesh_of_several_local_devices():
    """Which of the two is to leave is said: the mesh that was set, or the sharding."""
    code = """
import jax, jax.numpy as jnp, mpixla
from mpi4py import MPI
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("x",))
def refusal(x):
    try:
        jax.jit(lambda x: mpixla.allreduce(x, op=MPI.SUM))(x)
    except NotImplementedError as e:
        return str(e).partition("(no sharding).")[2]
print(repr(refusal(jax.device_put(jnp.ones(2), jax.NamedSharding(mesh, jax.P("x"))))))
with jax.set_mesh(mesh):
    print(refusal(jnp.ones(2)))
"""
    done = alone("-c", code)
    assert done.stdout.splitlines() == [
        "''",
        " Here jax.set_mesh has set a mesh of 2 devices, for all of which JAX makes every program: make the call "
        "outside of it.",
    ], done.stderr
