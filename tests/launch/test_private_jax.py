"""What comes from inside JAX: in one module, each name with a test that it is needed and does its job."""

import ast
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from mpi4py import MPI

import mpixla
from mpixla.runtime import private_jax, sites, tested, versions

pytestmark = pytest.mark.any_mpi

PACKAGE = Path(mpixla.__file__).parent
X = jnp.ones(3)


def private_names(path: Path) -> list[str]:
    """What a module imports from jax._src, and what it uses of the modules that it imports from there."""
    tree = ast.parse(path.read_text())
    names, modules = [], {}
    packages = ("jax._src", "jax._src.interpreters", "jax._src.lax.control_flow")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names if "_src" in alias.name.split(".")]
        if isinstance(node, ast.ImportFrom) and "_src" in (node.module or "").split("."):
            for alias in node.names:
                if node.module in packages:
                    modules[alias.asname or alias.name] = alias.name
                else:
                    names.append(alias.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            names.append(f"{modules[node.value.id]}.{node.attr}")
        if isinstance(node, ast.Attribute) and node.attr == "_src":
            names.append("an attribute _src")
    return sorted(set(names))


def test_one_module_imports_from_inside_jax():
    files = list(PACKAGE.glob("**/*.py"))
    assert len(files) > 10
    assert {path.name for path in files if private_names(path)} == {"private_jax.py"}


def add(x):
    return mpixla.allreduce(x, op=MPI.SUM)


def quiet(x):
    """It has no result, so its effect is not sealed in, and JAX hands it tokens."""
    add(x)


def loop(x):
    return jax.lax.fori_loop(0, 2, lambda i, x: add(x), x)


def lowers(fun: Callable) -> Callable:
    return lambda: "mpixla_allreduce" in jax.jit(lambda x: fun(x)).lower(X).as_text()


@jax.custom_vjp
def custom(x):
    return add(x)


custom.defvjp(lambda x: (add(x), None), lambda _, ct: (ct,), optimize_remat=True)


def keeps_ignored() -> bool:
    """Reverse mode of a checkpoint communicates what leads to no result here."""

    @jax.checkpoint
    def ignores(x):
        return jnp.sin(x), jnp.sin(add(x))

    return "pvary[" in str(jax.make_jaxpr(jax.grad(lambda x: ignores(x)[0].sum()))(X))


def survives_failure() -> bool:
    """The failing program takes a while, so that it fails after its dispatch."""
    comm = MPI.COMM_WORLD.Clone()

    @jax.jit
    def failing(x):
        x = jax.lax.fori_loop(0, 10, lambda i, x: x @ x, x)
        mpixla.allreduce(x, op=MPI.SUM, comm=comm)

    large = jnp.zeros((300, 300))
    failing(large)
    jax.effects_barrier()
    comm.Free()
    failing(large)
    try:
        jax.jit(quiet)(X)  # JAX would hand it the token of the program that fails
        private_jax._dispatch.runtime_tokens.current_tokens[private_jax.ordered].block_until_ready()
    except Exception:
        return False
    finally:
        private_jax.forget_tokens()
    return True


def runs_twice_ahead_of_time() -> bool:
    compiled = jax.jit(quiet).lower(X).compile()
    return [compiled(X) for _ in range(2)] == [None, None]


def dispatches_in_cpp() -> bool:
    """JAX asks for no token."""
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(private_jax._dispatch.RuntimeTokenSet, "get_token_input", lambda *args: asked.append(args))
        jax.jit(lambda x: add(x) + 1)(X).block_until_ready()
    return not asked


def reveals_hidden() -> bool:
    """A primitive without effects communicates."""
    primitive = private_jax.Primitive("hides")
    primitive.def_impl(add)
    primitive.def_abstract_eval(lambda x: x)
    private_jax.mlir.register_lowering(primitive, private_jax.mlir.lower_fun(add, multiple_results=False))
    return list(jax.jit(primitive.bind)(X)) == [1, 1, 1]


def puts_in_place() -> bool:
    """An equation that is traced later comes from the line of another."""
    (eqn,) = jax.make_jaxpr(jnp.sin)(X).eqns
    with private_jax.in_place_of(eqn):
        later = jax.make_jaxpr(jnp.cos)(X).eqns[0].source_info
    return later.traceback is not None and str(later.traceback) == str(eqn.source_info.traceback)


def in_new_process(code: str) -> bool:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    return done.returncode == 0


# A program that fails in the background, where its end or somebody hears of it.
FAILS_LATER = """
import jax, jax.numpy as jnp, mpixla
import mpixla.runtime.exit as end
from mpi4py import MPI
{take}
comm = MPI.COMM_WORLD.Clone()
@{jit}
def failing(x):
    y = mpixla.allreduce(jax.lax.fori_loop(0, 10, lambda i, x: x @ x, x), op=MPI.SUM, comm=comm)
    return {result}
x = jnp.zeros((300, 300))
jax.block_until_ready(failing(x))
jax.effects_barrier()
comm.Free()
y = failing(x)
{look}
"""
LOOK = """
try:
    y.block_until_ready()
except Exception as e:
    pass
"""


def run_failing(jit: str, look: str = "", take: str = "", result: str = "y") -> subprocess.CompletedProcess:
    code = FAILS_LATER.format(jit=jit, look=look, take=take, result=result)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)


def ends_without_a_traceback() -> bool:
    """JAX's exit handlers wait for the tokens of failed programs; before 0.11 they print the failure."""
    takes = ["", "end.forget_tokens = lambda: None"]
    with_it, without = ("Traceback" in run_failing("jax.jit", take=take, result="None").stderr for take in takes)
    return not with_it and (without or jax.__version_info__ >= (0, 11))


TWO_DEVICES = """
import jax, jax.numpy as jnp, mpixla, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from mpi4py import MPI
from mpixla.runtime import private_jax
jax.config.update("jax_num_cpu_devices", 2)
{take}
x = jax.device_put(jnp.ones(4), NamedSharding(Mesh(np.array(jax.devices()), "i"), PartitionSpec("i")))
try:
    jax.jit(lambda x: mpixla.send(x, MPI.PROC_NULL))(x)
except NotImplementedError as e:
    assert "2 local devices" in str(e)
else:
    raise AssertionError("not refused")
"""
HAS_STARTED = """
import jax, mpixla
from mpixla.runtime.private_jax import jax_has_started
assert not jax_has_started()
jax.numpy.ones(1)
assert jax_has_started()
"""


# A program is prepared once, before its first run, with its devices.
PREPARES = """
import jax, jax.numpy as jnp
from mpixla.runtime import private_jax
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.sharding.Mesh(jax.devices(), "x")
spec = jax.sharding.PartitionSpec("x")
x = jnp.ones(2)
rows = jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))
seen = []
private_jax.before_first_execution(lambda executable, devices: seen.append((len(executable.hlo_modules()), devices)))
f = jax.jit(jax.shard_map(lambda x: x + 1, mesh=mesh, in_specs=spec, out_specs=spec))
compiled = f.lower(x).compile()
assert not seen
for _ in range(3):
    f(x), compiled(rows)
assert 1 <= len(seen) <= 2 and set(seen) == {(1, tuple(jax.devices()))}, seen
"""


TURNS = """
import jax
from mpixla.runtime import private_jax
seen = []
def take(key):
    seen.append(key)
    return lambda: seen.append("end")
private_jax.take_turns(take)
jax.jit(lambda x: x + 1)(1.0)
assert len(seen) == 2 and seen[0].startswith("jit__lambda-") and seen[1] == "end", seen
"""


CACHE = """
import tempfile, jax, jax.numpy as jnp
from mpixla.runtime import private_jax
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_compilation_cache_dir", tempfile.mkdtemp())
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
seen = []
private_jax._compiler._cache_write = lambda *args: seen.append(args)
private_jax.keep_sharded_tokens_out_of_cache()
mesh = jax.make_mesh((2,), ("x",))
rows = jax.NamedSharding(mesh, jax.P("x"))
jax.jit(lambda x: x + 1)(jax.device_put(jnp.ones(2), rows))
assert any(args[0].startswith("jit__lambda-") for args in seen), seen
"""


TOKENS = """
import jax, jax.numpy as jnp
from mpixla import compat
from mpixla.runtime import private_jax
compat.install("mpi4jax-tokens")
import mpi4jax
{take}
def f(x):
    mpi4jax.send(x, 0, token=jax.lax.create_token())
    return x
assert "@mpixla_send(" in jax.jit(f).lower(jnp.ones(2)).as_text()
"""


def keeps_a_trailing_send() -> bool:
    return in_new_process(TOKENS.format(take="")) and not in_new_process(
        TOKENS.format(take="private_jax.dce_rules.clear()")
    )


def refuses_devices_in_words() -> bool:
    """In a process of its own, since JAX must not have started; without the registration JAX has words of its own."""
    without = TWO_DEVICES.format(take="private_jax._effects.shardable_ordered_effects._effect_types.clear()")
    return in_new_process(TWO_DEVICES.format(take="")) and not in_new_process(without)


def sees_traces() -> bool:
    seen = []

    def see(x):
        seen.append(private_jax.trace_state_clean())
        return x.sum()

    for transformed in (jax.jit(see), jax.grad(see), jax.vmap(see), jax.make_jaxpr(see), jax.linear_transpose(see, X)):
        transformed(X if len(seen) < 4 else 1.0)
    return private_jax.trace_state_clean() and seen == [False] * 5


def without_effect(registry: str) -> Callable:
    """Takes away that the effect is registered there."""

    def take(monkeypatch):
        types = getattr(private_jax._effects, registry)
        assert private_jax.CommunicationEffect in types._effect_types
        monkeypatch.setattr(types, "_effect_types", types._effect_types - {private_jax.CommunicationEffect})

    return take


def without_dispatch_in_python(monkeypatch):
    monkeypatch.setattr(private_jax._pxla.MeshExecutable, "create_cpp_call", private_jax._dispatch_in_cpp)


def names_this_line() -> bool:
    """The site of a traced call is a line of this file, not of mpixla or JAX."""
    lines = []

    def note(ctx):
        lines.extend(code.co_filename for code, _ in private_jax.frames_of(ctx.traceback))
        return of_lowering(ctx)

    of_lowering, sites.of_lowering = sites.of_lowering, note
    try:
        jax.jit(lambda x: add(x)).lower(X)
    finally:
        sites.of_lowering = of_lowering
    users = [file for file in lines if private_jax.is_user_file(file)]
    return str(PACKAGE / "ops" / "collective.py") in lines and users[:1] == [__file__]


def keeps_ignored_checkpoint() -> bool:
    """Reverse mode of a checkpoint within another, whose result leads to nothing here, communicates."""

    @jax.checkpoint
    def ignores(x):
        jax.checkpoint(add)(x)
        return jnp.sin(x)

    return "pvary[" in str(jax.make_jaxpr(jax.grad(lambda x: ignores(x).sum()))(X))


def stays_in_its_loop(derive) -> Callable[[], bool]:
    """A call whose operand does not change in a loop is made in each iteration, in a derivative too."""

    def works():
        jaxpr = str(jax.make_jaxpr(derive(lambda x: jax.lax.fori_loop(0, 3, lambda _, a: (add(x), a)[1], x)))(X))
        before, _, looped = jaxpr.partition("scan[")
        return "allreduce[" in looped and "allreduce[" not in before

    return works


def derived(f):
    return lambda x: jax.vjp(f, x)[0]


def derived_in_checkpoint(f):
    return lambda x: jax.vjp(jax.checkpoint(f), x)[0]


def without_staying_in_loops(monkeypatch):
    monkeypatch.setattr(private_jax._partial_eval.JaxprTrace, "process_primitive", private_jax._process_primitive)


def stays_in_its_loop_below_a_derivative_of_its_own() -> bool:
    g = jax.custom_jvp(add)
    g.defjvp(lambda primals, tangents: (add(*primals), add(*tangents)))
    jaxpr = str(jax.make_jaxpr(derived(lambda x: jax.lax.scan(lambda a, _: (a * g(X), None), x, None, 3)[0]))(X))
    return "allreduce[" not in jaxpr.partition("scan[")[0]


def without_staying_below(monkeypatch):
    trace = private_jax._partial_eval.JaxprTrace
    monkeypatch.setattr(trace, "process_custom_jvp_call", trace.process_custom_jvp_call.__wrapped__)


def chooses_by_example() -> bool:
    """A batch of loops, of which one ends before the other."""
    loop = jax.vmap(lambda x: jax.lax.while_loop(lambda y: add(y) < 4, lambda y: y + 1, x))
    return list(loop(jnp.array([1.0, 3.0]))) == [4, 4]


def refuses_next_checkpoint() -> bool:
    jax.config.update("jax_remat3", True)
    try:
        jax.grad(jax.checkpoint(lambda x: jnp.sin(add(x)).sum()))(X)
    except NotImplementedError as e:
        return "jax_remat3" in str(e)
    finally:
        jax.config.update("jax_remat3", False)
    return False


def without_staying_in_checkpoints(monkeypatch):
    rules = private_jax._partial_eval.partial_eval_jaxpr_custom_rules
    monkeypatch.setitem(rules, private_jax._loops.scan_p, private_jax._scan_in_checkpoint)


def without_kept_recipes(monkeypatch):
    monkeypatch.setattr(private_jax._partial_eval, "new_eqn_recipe", private_jax._new_recipe)


def without_exclusion(monkeypatch):
    paths = private_jax._source_info._exclude_paths
    monkeypatch.setattr(
        private_jax._source_info, "_exclude_paths", [path for path in paths if not path.startswith(str(PACKAGE))]
    )
    private_jax._source_info._exclude_path_regex.cache_clear()
    private_jax.is_user_file.cache_clear()


def without_rewriting(monkeypatch):
    monkeypatch.setattr(private_jax._pxla, "lower_sharding_computation", private_jax._lower)


def without_sealing(monkeypatch):
    monkeypatch.setattr(private_jax._pxla, "_cached_lowering_to_hlo", private_jax._lower_to_hlo)


def without_same_token(monkeypatch):
    monkeypatch.setattr(private_jax._dispatch.RuntimeTokenSet, "get_token_input", private_jax._next_token)


def wrong() -> None:
    mpixla.allreduce(X, op="sum")


def frames_of_a_mistake(mode: str = "quiet_remove_frames") -> list:
    """The functions in the traceback of an eager call that is refused, from this file on."""
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", mode)
    try:
        wrong()
    except TypeError as e:
        frames = [frame for frame, _ in traceback.walk_tb(e.__traceback__)]
    finally:
        jax.config.update("jax_traceback_filtering", before)
    return frames[1:]


def ends_at_the_users_line() -> bool:
    return [frame.f_code.co_name for frame in frames_of_a_mistake()] == ["wrong"]


def asks_for_the_mode() -> bool:
    return ends_at_the_users_line() and len(frames_of_a_mistake("off")) > 3


def marks_hidden_frames() -> bool:
    _, *hidden = frames_of_a_mistake("tracebackhide")
    return len(hidden) > 2 and all(frame.f_locals.get("__tracebackhide__") for frame in hidden)


def leaves_filtering_to_jax() -> bool:
    """Inside a jitted function the exception keeps all frames until it leaves JAX: where is then said once."""
    seen = []

    def see(x):
        try:
            wrong()
        except TypeError as e:
            seen.append(len(list(traceback.walk_tb(e.__traceback__))))
        return x

    jax.jit(see)(X)
    return seen[0] > 3


def without_filtering(name):
    return lambda monkeypatch: monkeypatch.setattr(private_jax._traceback_util, name, lambda tb: tb)


def says_what_varies() -> bool:
    """JAX takes the result of an allreduce for one that is the same on all devices, and refuses that of a scan."""
    mesh, spec = jax.sharding.Mesh(jax.devices()[:1], "x"), jax.sharding.PartitionSpec

    def trace(f):
        jax.make_jaxpr(jax.shard_map(f, mesh=mesh, in_specs=spec("x"), out_specs=spec()))(X)

    trace(add)
    with pytest.raises(ValueError, match="require replication"):
        trace(lambda x: mpixla.scan(x, op=MPI.SUM))
    return True


# Each name: what works thanks to it, and how to take it away, by which that must stop working.
NEEDED = {
    "RematTraced": (refuses_next_checkpoint, None),
    "backends_are_initialized": (lambda: in_new_process(HAS_STARTED), None),
    "compiler._cache_read": (lambda: in_new_process(TURNS), None),
    # What it is for is tested in test_distributed.py.
    "compiler._cache_write": (lambda: in_new_process(CACHE), None),
    "compiler.compile_or_get_cached": (lambda: in_new_process(TURNS), None),
    "config._check_vma": (says_what_varies, None),
    "core.Primitive": (lambda: "allreduce[" in str(jax.make_jaxpr(add)(X)), None),
    "core.abstract_token": (lambda: "!stablehlo.token" in jax.jit(quiet).lower(X).as_text(), None),
    # What it is for is tested in test_jax_machinery.py.
    "core.jaxpr_const_args": (dispatches_in_cpp, None),
    "core.set_current_trace": (stays_in_its_loop_below_a_derivative_of_its_own, without_staying_below),
    "core.trace_state_strong_ref": (sees_traces, None),
    "core.eval_trace": (sees_traces, None),
    # Its method, replaced.
    "dispatch.RuntimeTokenSet": (survives_failure, without_same_token),
    "dispatch.runtime_tokens": (ends_without_a_traceback, None),
    "effects.Effect": (lambda: str(jax.make_jaxpr(add)(X).effects) == "{MPI}", None),
    "effects.control_flow_allowed_effects": (lowers(loop), without_effect("control_flow_allowed_effects")),
    "effects.custom_derivatives_allowed_effects": (
        lowers(jax.grad(lambda x: custom(x).sum())),
        without_effect("custom_derivatives_allowed_effects"),
    ),
    "effects.ordered_effects": (lowers(quiet), without_effect("ordered_effects")),
    "effects.remat_allowed_effects": (
        lowers(jax.grad(jax.checkpoint(lambda x: jnp.sin(add(x)).sum()))),
        without_effect("remat_allowed_effects"),
    ),
    "effects.shardable_ordered_effects": (refuses_devices_in_words, None),
    "loops._scan_known_hoisting": (stays_in_its_loop(derived), without_staying_in_loops),
    "loops._while_lowering": (chooses_by_example, None),
    "loops.scan_p": (stays_in_its_loop(derived_in_checkpoint), without_staying_in_checkpoints),
    "partial_eval.EffectHandle": (keeps_ignored, None),
    "partial_eval.JaxprTrace": (stays_in_its_loop(derived), without_staying_in_loops),
    "partial_eval.JaxprTracer": (stays_in_its_loop(derived), without_staying_in_loops),
    "partial_eval.PartialVal": (stays_in_its_loop(derived), without_staying_in_loops),
    "partial_eval.partial_eval_jaxpr_custom_rules": (
        stays_in_its_loop(derived_in_checkpoint),
        without_staying_in_checkpoints,
    ),
    "partial_eval.new_eqn_recipe": (keeps_ignored_checkpoint, without_kept_recipes),
    "pxla.ExecuteReplicated": (lambda: in_new_process(PREPARES), None),
    "pxla.UnloadedMeshExecutable": (lambda: in_new_process(PREPARES), None),
    "pxla._cached_lowering_to_hlo": (dispatches_in_cpp, without_sealing),
    "pxla.MeshExecutable": (runs_twice_ahead_of_time, without_dispatch_in_python),
    "pxla.lower_sharding_computation": (reveals_hidden, without_rewriting),
    "source_info_util.current": (stays_in_its_loop(derived), without_staying_in_loops),
    "source_info_util.is_user_filename": (names_this_line, None),
    "source_info_util.register_exclusion": (names_this_line, without_exclusion),
    "source_info_util.user_context": (puts_in_place, None),
    "traceback_util._add_tracebackhide_to_hidden_frames": (
        marks_hidden_frames,
        without_filtering("_add_tracebackhide_to_hidden_frames"),
    ),
    "traceback_util._filtering_mode": (asks_for_the_mode, None),
    "traceback_util._is_under_reraiser": (leaves_filtering_to_jax, None),
    "traceback_util.filter_traceback": (ends_at_the_users_line, without_filtering("filter_traceback")),
    "traceback_util.register_exclusion": (ends_at_the_users_line, None),
}


def test_every_name_is_in_the_table():
    assert private_names(PACKAGE / "runtime" / "private_jax.py") == sorted(NEEDED)


@pytest.mark.parametrize("name", NEEDED)
def test_does_its_job(name, monkeypatch):
    works, take = NEEDED[name]
    assert works()
    if take is not None:
        take(monkeypatch)
        jax.clear_caches()
        try:
            still = works()
        except (Exception, pytest.fail.Exception):
            still = False
        finally:
            monkeypatch.undo()
            private_jax._source_info._exclude_path_regex.cache_clear()
            private_jax.is_user_file.cache_clear()
            jax.clear_caches()
            jax.jit(add)(X).block_until_ready()  # a failed program's token would fail the exit
        assert not still, f"this JAX does not need {name} any more: take it out of private_jax.py"


def test_keeps_a_trailing_send():
    assert keeps_a_trailing_send()


# A JAX newer than tested.

IMPORT = (
    "import sys, jax; jax.__version__ = sys.argv[1]; import mpixla; mpixla.barrier(); sys.stdout.write('imported\\n')"
)


@pytest.mark.parametrize(("version", "notices"), [("999.0", 1), (tested.NEWEST, 0)])
def test_notice_for_a_newer_jax(job, version, notices):
    """One, on one rank, that says since when; and everything goes on."""
    done = job(2, IMPORT, version)
    assert done.stdout.split() == ["imported", "imported"]
    assert done.stderr.count("JaxVersionWarning: mpixla was tested with JAX up to") == notices
    if notices:
        assert f"up to {tested.NEWEST} ({tested.NEWEST_IN}), and this is JAX {version}." in done.stderr


def test_notice_can_be_turned_off(monkeypatch):
    monkeypatch.setattr(jax, "__version__", "999.0")
    with pytest.warns(mpixla.JaxVersionWarning, match="mpixla was tested") as seen:
        versions.notice()
    assert len(seen) == 1
    assert 'filterwarnings("ignore", "mpixla was tested")' in str(seen[0].message)
    with warnings.catch_warnings(record=True) as seen:
        warnings.filterwarnings("ignore", "mpixla was tested")
        versions.notice()
    assert not seen
    monkeypatch.setenv("MPI4JAX_NO_WARN_JAX_VERSION", "1")
    with warnings.catch_warnings(record=True) as seen:
        versions.notice()
    assert not seen


@pytest.mark.parametrize(
    ("older", "newer"), [("0.12.0", "0.12.0.1"), ("0.9.2", "0.10.0"), ("0.12.0.1", "0.13.0.dev20261101+abc")]
)
def test_order_of_versions(older, newer):
    assert versions._parts(older) < versions._parts(newer)


@pytest.mark.parametrize("jit", ["jax.jit", "mpixla.jit"])
@pytest.mark.parametrize("looks", [True, False])
def test_failures_are_heard_of(jit, looks):
    """By the constructor of JAX's exception, which is not promised to be called."""
    done = run_failing(jit, LOOK if looks else "")
    assert (done.returncode == 0) == looks
    assert ("a call failed, and nobody has looked at its result" in done.stderr) == (not looks)


def test_search_for_a_nan_is_seen(monkeypatch):
    """By the name of JAX's function that is on the stack."""
    seen = []

    def f(x):
        seen.append(private_jax.looks_for_nan())
        return jnp.log(x)

    with jax.debug_nans(True):
        with pytest.raises(FloatingPointError):
            jax.jit(f)(-1.0)
        f(1.0)
    assert seen == [False, True, False]
