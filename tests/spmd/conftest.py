"""These tests run on every rank at once: mpirun -n N python -m pytest tests/spmd.

A rank that fails would leave the others waiting in a communication call. So the first failure on any rank prints
its report and aborts the job, and a rank that is stuck does the same after a while (pytest-timeout, pyproject).
"""

import gc
import os
import re
import sys
import time
from pathlib import Path

import jax
import pytest
from mpi4py import MPI

import sample
from mpixla import patches
from mpixla.mpi import native
from mpixla.mpi.comm import channel_of_reports

jax.config.update("jax_enable_x64", True)

WORLD = MPI.COMM_WORLD

# Compiling is what takes the time. So compiled programs are kept for the other ranks and the next runs, whichever MPI
# they use: a program is the same text in each, and what depends on the MPI is behind the handlers' names. The limits
# are those below which JAX would not keep a program.
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[2] / "build" / "programs"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# And XLA does not optimize here, but on two ranks in these files: what they test its optimizations might change, which
# is the order of calls, which arrays share memory, and what is copied. A sample of their cases is enough (sample.py).
OPTIMIZED = (
    "test_control_flow.py",
    "test_halo.py",
    "test_in_place.py",
    "test_order.py",
    "test_requests.py",
    "test_windows.py",
)


def _optimizes(config, file):
    if config.getoption("every_test"):
        return True
    is_cheap = "MPIXLA_FAKE_DEVICE" not in os.environ and not config.getoption("rest")
    return file in OPTIMIZED and WORLD.Get_size() == 2 and is_cheap


# And only two ranks run every test, and of the fake GPU's transports only one; the others leave out what they would
# hardly add to: these files, and tests that are marked two_ranks. `--every-test` changes all of this.
TWO_RANKS = (
    "test_control_flow.py",
    "test_freed.py",
    "test_gpu_lowering.py",
    "test_in_place.py",
    "test_jit.py",
    "test_keys.py",
    "test_large_counts.py",
    "test_lineax.py",
    "test_pairs.py",
    "test_eager.py",
    "test_reveal.py",
    "test_short_floats.py",
    "test_status.py",
    "test_to_oneself.py",
    "test_tree.py",
    "test_vmap.py",
)
# And on one rank:
SEVERAL_RANKS = (
    "test_inner.py",
    "test_jvp.py",
    "test_nan.py",
    "test_requests.py",
    "test_run_time_counts.py",
    "test_run_time_ranks.py",
    "test_transpose.py",
)


def pytest_addoption(parser):
    parser.addoption("--every-test", action="store_true", help="run every test on any number of ranks, optimized")
    sample.add_options(parser)


def _leaves_out(config):
    is_fake = "MPIXLA_FAKE_DEVICE" in os.environ
    elsewhere = is_fake and os.environ.get("MPIXLA_GPU_TRANSPORT") in ("nccl", "mpi")
    return (elsewhere or WORLD.Get_size() != 2) and not config.getoption("every_test")


def pytest_ignore_collect(collection_path, config):
    left_out = (*TWO_RANKS, *SEVERAL_RANKS) if WORLD.Get_size() == 1 else TWO_RANKS
    return True if collection_path.name in left_out and _leaves_out(config) else None


def pytest_collection_modifyitems(config, items):
    sample.take(config, items)
    if os.environ.get("MPIXLA_GPU_TRANSPORT") == "nccl":
        unfit = pytest.mark.skip(reason="NCCL does not notice that ranks disagree")
        for item in items:
            if item.get_closest_marker("not_through_nccl"):
                item.add_marker(unfit)
    if os.environ.get("MPIXLA_CHECK", "") not in ("", "0"):
        refused = pytest.mark.skip(
            reason="MPIXLA_CHECK refuses calls that do not fit, and gives each line its programs"
        )
        for item in items:
            if item.get_closest_marker("not_checked"):
                item.add_marker(refused)
    if _leaves_out(config):
        elsewhere = [item for item in items if item.get_closest_marker("two_ranks")]
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if item not in elsewhere]


_capture = None  # pytest's capture manager: while tests run, file descriptors 1 and 2 are its own


def _abort(text):
    """Print on the real standard error, and end the job: other ranks may be waiting for this one."""
    with _capture.global_and_fixture_disabled():
        sys.stderr.write(f"\n== rank {WORLD.Get_rank()} of {WORLD.Get_size()}: {text}\n")
        sys.stderr.flush()
        time.sleep(0.3)  # mpirun drops what it has not forwarded when a job aborts
        WORLD.Abort(1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Skip tests that are refused for want of a hook that is off, or by the one for JAX's next checkpoint.

    A test that one rank alone would be refused says so by needs_hook.
    """
    marker = item.get_closest_marker("needs_hook")
    if marker is not None and patches.off & {"all", *marker.args}:
        pytest.skip(f"needs a hook: {marker.args[0]}")
    try:
        return (yield)
    except Exception as e:
        if re.search(r"\(the hook \w+ is off\)|has no derivative under jax_remat3", str(e)):
            pytest.skip(f"refused: {str(e).splitlines()[0]}")
        raise


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed and WORLD.Get_size() > 1:
        captured = "".join(f"-- {name}\n{text}\n" for name, text in report.sections)
        _abort(f"{item.nodeid} failed in {report.when}\n{report.longreprtext}\n{captured}")
    return report


def pytest_collectreport(report):
    if report.failed and WORLD.Get_size() > 1:
        _abort(f"{report.nodeid} cannot be collected\n{report.longreprtext}")


def pytest_report_header():
    return f"MPI: {MPI.Get_library_version().splitlines()[0]}, {WORLD.Get_size()} rank(s)"


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    global _capture
    _capture = config.pluginmanager.getplugin("capturemanager")
    # JAX writes a kept program in place, so another rank may read half of it. It notices, and compiles.
    config.addinivalue_line("filterwarnings", "ignore:Error reading persistent compilation cache entry")
    # Every rank runs the tests; the first one reports.
    if WORLD.Get_rank() > 0:
        config.pluginmanager.unregister(name="terminalreporter")


def pytest_collection_finish():
    gc.freeze()  # what was imported stays: it need not be searched for garbage again and again


@pytest.fixture(autouse=True, scope="module")
def compiled_programs(request):
    """Set how programs are compiled; and drop them, since thousands of them take gigabytes."""
    jax.config.update("jax_disable_most_optimizations", not _optimizes(request.config, request.path.name))
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True)
def as_mpi_finds_them(request):
    """Turn the comparison of calls off for a test that is marked not_checked."""
    is_off = request.node.get_closest_marker("not_checked") is not None and os.environ.get("MPIXLA_CHECK", "") == ""
    if is_off:
        native.check_result(native.lib.mpixla_check_set(b"off", channel_of_reports()))
    yield
    if is_off:
        native.check_result(native.lib.mpixla_check_set(b"first", channel_of_reports()))


@pytest.fixture
def comm():
    return WORLD


@pytest.fixture
def rank():
    return WORLD.Get_rank()


@pytest.fixture
def size():
    return WORLD.Get_size()


@pytest.fixture
def below(rank, size):
    """Return the rank before this one, on a ring of all."""
    return (rank - 1) % size


@pytest.fixture
def above(rank, size):
    return (rank + 1) % size


@pytest.fixture
def cart(comm):
    """Return Cartesian communicators for grids (tests/halo_model.py), freed at the end."""
    made = []

    def make(grid):
        made.append(comm.Create_cart(grid.dims, grid.periods))
        return made[-1]

    yield make
    for c in made:
        c.Free()


@pytest.fixture
def compilations():
    """Yield a list that grows by one entry for each program that XLA compiles, or would but for the disk's cache."""
    seen = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)
