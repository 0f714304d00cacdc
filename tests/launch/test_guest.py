"""Compare what `import mpixla` changes in a process that another program owns with the tables of docs/guest.md."""

import json
import re
import textwrap
from pathlib import Path

import pytest

from jobs import soon

ROOT = Path(__file__).parents[2]

# Prints what changes, as names. JAX and mpi4py are imported before, and have started.
PROBE = """
import ctypes, gc, json, os, signal, sys, types, warnings
import asyncio, concurrent.futures, importlib.metadata, multiprocessing.util, pkgutil, runpy, secrets, subprocess
import multiprocessing.spawn, multiprocessing.popen_spawn_posix, tempfile, traceback
import jax, jax.experimental.jet, jax.export, jax.numpy as jnp, numpy
tempfile.gettempdir(), pkgutil.resolve_name("os:path")
jax.jit(jnp.negative)(jnp.ones(2)).block_until_ready()
registries = {}  # names by id: several modules have the same

def members(owner, name):
    for key, value in list(vars(owner).items()):
        path = f"{name}.{key}"
        is_none_of_ours = path.startswith("threading._") or path == "typing._overload_registry"
        if name == "posix" or key == "__warningregistry__" or path == "sys.modules" or is_none_of_ours:
            continue
        if "cache" in key.lower() and isinstance(value, (dict, list, set)):
            continue
        if isinstance(value, dict) and not key.startswith("__"):
            path = registries.setdefault(id(value), path)
            yield from ((f"{path}[{entry}]", id(entry), found) for entry, found in list(value.items()))
        elif isinstance(value, (set, list)) and not key.startswith("__"):
            path = registries.setdefault(id(value), path)
            yield from ((f"{path}[{entry}]", id(entry), None) for entry in list(value))
        else:
            yield path, 0, value
            if isinstance(value, type) and value.__module__ in (name, "builtins"):
                yield from ((f"{path}.{inner}", 0, found) for inner, found in vars(value).items())

def handler(number):
    found = ctypes.create_string_buffer(256)  # at least a struct sigaction, which begins with the handler
    ctypes.CDLL(None).sigaction(number, None, found)
    return found[:8]

def look():
    tops = {"jax", "jaxlib", "mpi4py", *sys.stdlib_module_names}
    found = {}
    for name, module in sorted(sys.modules.items(), key=lambda pair: pair[0]):
        if name.partition(".")[0] in tops and isinstance(module, types.ModuleType):
            found |= {(path, key): value for path, key, value in members(module, name)}
    found |= {(f"os.environ[{name}]", 0): value for name, value in os.environ.items()}
    found |= {(f"SIG{number}", 0): (signal.getsignal(number), handler(number)) for number in signal.valid_signals()}
    found |= {(f"gc.callbacks[{callback}]", 0): None for callback in gc.callbacks}
    return found, len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

def report(who, before, threads, files):
    after, more_threads, more_files = look()
    is_same = lambda then, now: then is now or isinstance(then, (tuple, str)) and then == now
    changed = {name for (name, key), value in before.items() if not is_same(value, after.get((name, key), gc))}
    new = {name for name, _ in after.keys() - before.keys()}
    # Of entries in JAX's registries, which are by primitives and effects of its own, the registry.
    added = {name.partition("[")[0] if name[:3] == "jax" else name for name in new}
    print(json.dumps([who, sorted(changed), sorted(added), more_threads - threads, more_files - files]), flush=True)

def import_refused():
    before = look()
    try:
        import mpixla
    except ImportError:
        report("refused", *before)

if __name__ == "__main__":
    from mpi4py import MPI
    warnings.simplefilter("ignore")    # JAX's of forks
    before = look()
    import mpixla
    if MPI.COMM_WORLD.rank == 0:
        report("rank", *before)
        if (child := os.fork()) == 0:
            report("forked", *before)
            os._exit(0)
        os.waitpid(child, 0)
        process = multiprocessing.get_context("spawn").Process(target=import_refused)
        process.start()
        process.join()
"""


def listed(title):
    """Return the names in the first column of a table of the page, by the heading above it."""
    page = (ROOT / "docs/guest.md").read_text()
    table = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)[1]
    return {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall("`(.+?)`", row)}


def reports_of(done):
    """Return what changed in the rank, and in processes that it started, by their names."""
    return {who: rest for who, *rest in map(json.loads, done.stdout.splitlines())}


def test_hooks_that_are_off_leave_refusals_in_jax(job):
    """Find refusals in place of the rules and the function that the hooks would put there."""
    changed = reports_of(job(2, PROBE, MPIXLA_HOOKS_OFF="all"))["rank"][0]
    of_jax = {name for name in changed if name.startswith("jax")}
    names = {re.sub(r".*[.\[]|\]", "", name) for name in of_jax}
    assert names == {"cond", "lower_sharding_computation", "remat2", "scan", "while"}
    assert of_jax <= listed("In JAX")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux says what a process has")
def test_import_changes_only_the_objects_on_the_page(job):
    """Compare a process that the rank forks, too. One that multiprocessing starts is left as it is."""
    reports = reports_of(job(2, PROBE))
    assert reports.pop("refused") == [[], [], 0, 0]
    assert reports.keys() == {"rank", "forked"}
    for changed, added, threads, files in reports.values():
        of_jax = {name for name in changed if name.startswith("jax")}
        registries = {name for name in added if name.startswith("jax")}
        assert set(changed) - of_jax | set(added) - registries == listed("In the interpreter")
        # Which functions JAX has, and which hooks fit it, depends on its version.
        assert of_jax <= listed("In JAX")
        assert registries <= listed("In JAX's registries")
        page = (ROOT / "docs/guest.md").read_text()
        most_threads, most_files = map(int, re.search(r"at most (\d+) threads? and (\d+) descriptors?", page).groups())
        assert threads <= most_threads
        assert files <= most_files
    # A rank alone is asked by nobody, and nobody ends it.
    assert reports_of(job(1, PROBE))["rank"][2] == 0


# What holds under every launcher: the end of the program, and what rank 1 or the whole job says.
PROMISES = {
    "exception": (
        "if rank == 1: raise KeyError('lost')\nmpixla.recv(x, 1 - rank)",
        "rank 1 ended with an uncaught",
    ),
    "end": ("rank == 1 or mpixla.recv(x, 1)", "is at the end of its script"),
    "wait": ("rank == 1 and time.sleep(5)\nmpixla.barrier()", "has waited for"),
    "disagreement": ("mpixla.bcast(x, root=rank)", "root"),
}


@pytest.mark.parametrize("by_run", [False, True], ids=["mpirun", "run"])
@pytest.mark.parametrize("promise", PROMISES)
def test_promises_of_the_page_hold_without_options(job, promise, by_run):
    code, said = PROMISES[promise]
    begin = "import time, jax.numpy as jnp, mpixla\nfrom mpi4py import MPI\nrank, x = MPI.COMM_WORLD.rank, jnp.ones(3)"
    told_soon = textwrap.dedent(soon(1)) if promise == "wait" else ""
    done = job(2, f"{told_soon}\n{begin}\nmpixla.barrier()\n{code}\n", check=False, by_run=by_run)
    assert (done.returncode == 0) == (promise == "wait"), done.stderr
    assert said in done.stderr
