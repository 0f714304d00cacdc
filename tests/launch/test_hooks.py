"""Check that each name from inside JAX, in one module and in the hooks, is needed, and does its job."""

import ast
import re
import subprocess
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from mpi4py import MPI

import mpixla
from jobs import alone
from mpixla import patches
from mpixla.base import required, tested
from mpixla.distributed import _first_run
from mpixla.jaxprs.effect import CommunicationEffect

pytestmark = pytest.mark.any_mpi

PACKAGE = Path(mpixla.__file__).parent
X = jnp.ones(3)


def inner_names(path: Path) -> set[str]:
    """Return what a module imports from jax._src."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if "_src" in alias.name.split(".")}
        if isinstance(node, ast.ImportFrom) and "_src" in (node.module or "").split("."):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.Attribute) and node.attr == "_src":
            names.add("an attribute _src")
    return names


def test_where_names_from_inside_jax_are():
    files = {path.relative_to(PACKAGE): inner_names(path) for path in PACKAGE.glob("**/*.py")}
    assert len(files) > 10
    assert {str(path) for path, names in files.items() if names and path.parts[0] != "patches"} == {"base/required.py"}
    assert files[Path("base/required.py")] == set(NEEDED)


# Names without which mpixla cannot be


def add(x):
    return mpixla.allreduce(x, op=MPI.SUM)


def quiet(x):
    """Communicate without a result, so that the effect is not sealed in, and JAX hands tokens over."""
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
    """Return whether reverse mode keeps a call that leads to no result, in a rule of the user's."""
    g = jax.custom_jvp(jnp.sin)
    g.defjvp(lambda primals, tangents: (jnp.sin(*primals), (add(*tangents), *tangents)[1]))
    return "pvary[" in str(jax.make_jaxpr(jax.grad(lambda x: g(x).sum()))(X))


def puts_in_place() -> bool:
    """Return whether an equation that is traced later comes from the line of another."""
    (eqn,) = jax.make_jaxpr(jnp.sin)(X).eqns
    with required.user_context(eqn.source_info.traceback, name_stack=eqn.source_info.name_stack):
        later = jax.make_jaxpr(jnp.cos)(X).eqns[0].source_info
    return later.traceback is not None and str(later.traceback) == str(eqn.source_info.traceback)


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    return alone("-c", code, **environment)


TWO_DEVICES = """
import jax, jax.numpy as jnp, mpixla, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from mpi4py import MPI
from mpixla.base import required
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
from mpixla.base.required import jax_has_started
assert not jax_has_started()
jax.numpy.ones(1)
assert jax_has_started()
"""


def refuses_devices_in_words() -> bool:
    """Run a process of its own, where JAX has not started. Without the registration JAX has words of its own."""
    without = TWO_DEVICES.format(take="required.shardable_ordered_effects._effect_types.clear()")
    return run(TWO_DEVICES.format(take="")).returncode == 0 and run(without).returncode != 0


def sees_traces() -> bool:
    seen = []

    def see(x):
        seen.append(required.trace_state_clean())
        return x.sum()

    for transformed in (jax.jit(see), jax.grad(see), jax.vmap(see), jax.make_jaxpr(see), jax.linear_transpose(see, X)):
        transformed(X if len(seen) < 4 else 1.0)
    return required.trace_state_clean() and seen == [False] * 5


def names_this_line() -> bool:
    """Return whether the site of a traced call is a line of this file, not of mpixla or JAX."""
    return required.is_user_filename(__file__) and not required.is_user_filename(str(PACKAGE / "ops" / "halo.py"))


def without_effect(registry: str) -> Callable:
    """Take the effect out of a registry."""

    def take(monkeypatch):
        types = getattr(required, registry)
        assert CommunicationEffect in types._effect_types
        monkeypatch.setattr(types, "_effect_types", types._effect_types - {CommunicationEffect})

    return take


# Each name: what works thanks to it, and how to take it away, by which that must stop working.
NEEDED = {
    "Effect": (lambda: str(jax.make_jaxpr(add)(X).effects) == "{MPI}", None),
    "Primitive": (lambda: "allreduce[" in str(jax.make_jaxpr(add)(X)), None),
    "backends_are_initialized": (lambda: run(HAS_STARTED).returncode == 0, None),
    "control_flow_allowed_effects": (lowers(loop), without_effect("control_flow_allowed_effects")),
    "custom_derivatives_allowed_effects": (
        lowers(jax.grad(lambda x: custom(x).sum())),
        without_effect("custom_derivatives_allowed_effects"),
    ),
    "is_user_filename": (names_this_line, None),
    "ordered_effects": (lowers(quiet), without_effect("ordered_effects")),
    "partial_eval_kept_effects": (keeps_ignored, without_effect("partial_eval_kept_effects")),
    "register_exclusion": (names_this_line, None),
    "remat_allowed_effects": (
        lowers(jax.grad(jax.checkpoint(lambda x: jnp.sin(add(x)).sum()))),
        without_effect("remat_allowed_effects"),
    ),
    "shardable_ordered_effects": (refuses_devices_in_words, None),
    "trace_state_clean": (sees_traces, None),
    "user_context": (puts_in_place, None),
}


@pytest.mark.parametrize("name", NEEDED)
def test_hook_has_its_effect(name, monkeypatch):
    works, take = NEEDED[name]
    assert works()
    if take is not None:
        take(monkeypatch)
        jax.clear_caches()
        try:
            still = works()
        except Exception:
            still = False
        finally:
            monkeypatch.undo()
            jax.clear_caches()
        assert not still, f"this JAX does not need {name} any more: take it out of required.py"


def test_a_name_that_is_missing():
    """Expect the import to say what to install."""
    done = run("from jax._src import effects; del effects.ordered_effects; import mpixla")
    assert done.returncode != 0
    said = done.stderr.splitlines()[-1]
    assert said.startswith(
        f"ImportError: mpixla cannot use JAX {jax.__version__}: cannot import name 'ordered_effects'"
    )
    assert f"pip install 'jax<={tested.NEWEST}'" in said


def test_a_name_that_is_missing_where_a_hook_is_off():
    """Expect the refusals that stand in for the hook to do without the name."""
    lost = "from jax._src.interpreters import ad; del ad.primitive_linearizations"
    done = run(f"{lost}; import mpixla; print(mpixla.__name__)", MPIXLA_HOOKS_OFF="scan")
    assert done.stdout == "mpixla\n", done.stderr


# Hooks: for each a program that ends well where it is on, and not where it is off.

START = """
import jax, jax.numpy as jnp, mpixla, numpy as np, traceback
from mpi4py import MPI
from mpixla import patches
X = np.ones(3, np.float32)
def add(x):
    return mpixla.allreduce(x, op=MPI.SUM)
def refusal(fun, *args):
    try:
        fun(*args)
    except NotImplementedError as e:
        return str(e)
    return ""
"""
START += """
from jax.extend.core import Primitive
from jax.interpreters import mlir
def hide(fun):
    primitive = Primitive("hides")
    primitive.def_impl(fun)
    primitive.def_abstract_eval(lambda x: x)
    mlir.register_lowering(primitive, mlir.lower_fun(fun, multiple_results=False))
    return primitive.bind
hides = hide(add)
"""
FAILS_LATER = """
comm = MPI.COMM_WORLD.Clone()
@jax.jit
def failing(x):
    y = mpixla.allreduce(jax.lax.fori_loop(0, 10, lambda i, x: x @ x, x), op=MPI.SUM, comm=comm)
    return {result}
large = jnp.zeros((300, 300))
jax.block_until_ready(failing(large))
jax.effects_barrier()
comm.Free()
y = failing(large)
try:
    {look}
except Exception:
    pass
"""
TWO = 'jax.config.update("jax_num_cpu_devices", 2)\n'
NEEDS_HOOK = {
    "ahead": """
compiled = jax.jit(lambda x: (add(x), None)[1]).lower(X).compile()
assert [compiled(X) for _ in range(2)] == [None, None]
""",
    "cache": """
import tempfile
from mpixla.core import primitive
jax.config.update("jax_compilation_cache_dir", tempfile.mkdtemp())
primitive.keep_from_cache()
""",
    "checkpoints": """
@jax.checkpoint
def ignores(x):
    jax.checkpoint(add)(x)
    return jnp.sin(x)
assert "pvary[" in str(jax.make_jaxpr(jax.grad(lambda x: ignores(x).sum()))(X))
fun = jax.checkpoint(lambda x: jax.lax.fori_loop(0, 3, lambda _, a: (jax.jit(add)(x), a)[1], x))
before, _, looped = str(jax.make_jaxpr(lambda x: jax.vjp(fun, x)[0])(X)).partition("scan[")
assert "allreduce[" in looped and "allreduce[" not in before
""",
    "failures": FAILS_LATER.format(look="y.block_until_ready()", result="y"),
    "first_run": TWO
    + """
mesh = jax.sharding.Mesh(jax.devices(), "x")
spec = jax.sharding.PartitionSpec("x")
x = jnp.ones(2)
rows = jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))
seen = []
from mpixla.distributed import _first_run
patches.require_hook(_first_run, "a test", lambda program, devices: seen.append((len(program.hlo_modules()), devices)))
f = jax.jit(jax.shard_map(lambda x: x + 1, mesh=mesh, in_specs=spec, out_specs=spec))
compiled = f.lower(x).compile()
assert not seen
for _ in range(3):
    f(x), compiled(rows)
assert 1 <= len(seen) <= 2 and set(seen) == {(1, tuple(jax.devices()))}, seen
""",
    "frames": """
try:
    jax.jit(lambda x: mpixla.allreduce(x, op="sum"))(X)
except TypeError:
    assert "collective.py" not in traceback.format_exc()
""",
    "lowering": "assert list(jax.jit(hides)(X)) == [1, 1, 1]",
    "nan": """
with jax.debug_nans(True):
    assert list(add(X)) == [1, 1, 1]
""",
    "refusals": """
try:
    jax.jit(mpixla.allreduce)(X, MPI.SUM)
except ValueError as e:
    assert "functools.partial(mpixla.allreduce, op=MPI.SUM)" in str(e), e
""",
    "remat3": """
jax.config.update("jax_remat3", True)
for communicates in (lambda x: jnp.sin(add(x)).sum(), lambda x: jnp.sin(x * hides(jax.lax.stop_gradient(x))).sum()):
    for derive in (jax.grad, lambda f: lambda x: jax.linearize(f, x)):
        assert "has no derivative under jax_remat3" in refusal(derive(jax.checkpoint(communicates)), X)
    assert jax.jvp(jax.checkpoint(communicates), (X,), (X,))[0] == communicates(X)
jax.grad(jax.checkpoint(lambda x: jnp.sin(x).sum()))(X)
""",
    "scan": """
g = jax.custom_jvp(add)
g.defjvp(lambda primals, tangents: (add(*primals), add(*tangents)))
for call in (add, g):
    fun = lambda x: jax.lax.scan(lambda a, _: (a * call(X), None), x, None, 3)[0]
    jaxpr = str(jax.make_jaxpr(lambda x: jax.vjp(fun, x)[0])(X))
    assert "allreduce[" not in jaxpr.partition("scan[")[0]
""",
    "sealing": """
from jax._src.dispatch import RuntimeTokenSet
asked = []
RuntimeTokenSet.get_token_input = lambda *args: asked.append(args)
assert list(mpixla.jit(lambda x: add(x) + 1)(X)) == [2, 2, 2] and not asked
try:
    jax.jit(lambda x: add(x) + 1)(X).block_until_ready()
except AttributeError:
    pass    # what was asked for a token gave none
assert not asked
""",
    "tokens": FAILS_LATER.format(look="pass", result="None")
    + """
import os
from jax._src.dispatch import runtime_tokens
from mpixla.jaxprs.effect import ordered
jax.jit(lambda x: (add(x), None)[1])(X)    # JAX would hand it the token of the program that fails
runtime_tokens.current_tokens[ordered].block_until_ready()
os._exit(0)    # what failed, nobody has looked at
""",
    "while_loops": """
def total(x):
    return mpixla.allreduce(x.sum(), op=MPI.SUM)
def halve(x):
    return jax.lax.while_loop(lambda x: total(x) > 3, lambda x: x / 2, x)
np.testing.assert_array_equal(jax.vmap(halve)(np.stack([X, 4 * X])), np.stack([X, X]))
fun = jax.checkpoint(lambda x: jnp.sin(halve(jax.lax.stop_gradient(x)) * x).sum())
assert str(jax.make_jaxpr(jax.grad(fun))(X)).count("allreduce[") == 1
only_compares = lambda x: jax.lax.while_loop(lambda s: s > 1, lambda s: s / (2 + 0 * total(x < s)), 4.0) * x.sum()
np.testing.assert_array_equal(jax.grad(only_compares)(X), X)
""",
}


def test_every_hook_is_tried():
    assert set(NEEDS_HOOK) == {*patches.HOOKS, *patches.ON_REQUEST}
    assert {p.stem for p in (PACKAGE / "patches").glob("*.py")} - {"__init__"} <= set(NEEDS_HOOK)


def test_the_page_has_the_table_of_hooks():
    page = (Path(__file__).parents[2] / "docs/other_tools.md").read_text()
    rows = re.search(r"^\| without \| what is lost \|\n\|---\|---\|\n((?:\|.*\n)+)", page, re.MULTILINE)[1]
    names = sorted({*patches.HOOKS, *patches.ON_REQUEST})
    lost = {name: patches.module_of(name).LOST for name in patches.HOOKS} | {"first_run": _first_run.LOST}
    assert rows == "".join(f"| `{name}` | {lost[name]} |\n" for name in names)


# What mpixla itself says then.
REFUSED = {
    "cache": "a sharded program that communicates cannot be kept in JAX's compilation cache",
    "checkpoints": "a jax.checkpoint that communicates has no derivative here",
    "first_run": r"a test needs a part of JAX that mpixla replaces \(first_run\)",
    "lowering": "is used inside a primitive that does not show the effects",
    "nan": "is called outside of a compiled program while jax_debug_nans",
    "scan": "a scan whose body calls allreduce with operands that do not change",
    "while_loops": "a jax.lax.while_loop whose condition communicates has no batch",
}

# Each of these is refused, in a sentence that names the hook: where it is off, JAX would drop or repeat calls, or find
# no token for them.
LOADED = {
    "checkpoints": """
jax.grad(lambda x: jax.checkpoint(lambda x: (add(x), jnp.sin(x).sum())[1])(x))
jax.grad(jax.checkpoint(lambda x: jax.lax.scan(lambda a, _: (a * add(X), None), x, None, 3)[0].sum()))
jax.grad(jax.checkpoint(lambda x: jnp.sin(x * hides(X)).sum()))
jax.grad(lambda x: branching(x).sum())
""",
    "lowering": """
jax.jit(hides)
jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, x: hides(x), x))
jax.jit(hide(lambda x: jax.lax.fori_loop(0, 3, lambda _, x: add(x), x)))
jax.jit(hide(lambda x: jax.lax.while_loop(lambda x: add(x)[0] < 3, lambda x: x + 1, x)))
jax.jit(hide(lambda x: jax.lax.scan(lambda a, _: (add(a), None), x, None, 3)[0]))
jax.jit(hide(lambda x: jax.lax.cond(x[0] > 0, add, jnp.sin, x)))
jax.jit(hide(jax.checkpoint(add)))
jax.jit(hide(jax.jit(add)))
jax.jit(hide(hides))
jax.jit(jax.lax.composite(add, "of.mpixla"))
jax.jit(lambda x: add(hide(jax.jit(add))(x)))
mpixla.jit(hide(jax.jit(add)))
jax.jit(hide(jax.jit(add))).lower
jax.export.export(jax.jit(hide(jax.jit(add))))
""",
    "scan": """
scanned(lambda a: jax.jit(lambda a: add(X) + a)(a))
scanned(lambda a: jax.lax.cond(X[0] > 0, lambda a: add(X) * a, jnp.sin, a))
scanned(lambda a: hides(X))
""",
    "while_loops": """
jax.vmap(lambda x: jax.lax.while_loop(lambda x: add(x)[0] > 3, lambda x: x / 2, jnp.stack([x, x])))
jax.grad(jax.checkpoint(lambda x: (x * jax.lax.while_loop(lambda s: s[0] > 3, add, X)).sum()))
""",
}
LOADED_START = """
def scanned(f):
    return jax.grad(lambda x: jax.lax.scan(lambda a, _: (a * f(a), None), x, None, 3)[0].sum())
# A branch in a derivative rule of the program's own.
branching = jax.custom_jvp(jnp.sin)
branching.defjvp(lambda p, t: (jnp.sin(*p), jax.lax.cond(p[0][0] > 0, lambda t: (add(t), t)[1], lambda t: t, *t)))
"""


@pytest.mark.parametrize("name", LOADED)
def test_programs_that_need_a_hook_are_refused_without_it(name):
    lines = LOADED[name].split("\n")
    asserts = [f"assert '(the hook {name} is off)' in refusal({line}, X), {line!r}" for line in lines if line]
    done = run("\n".join([START, LOADED_START, *asserts]), MPIXLA_HOOKS_OFF=name)
    assert done.returncode == 0, done.stderr


NEEDS_NONE = """
def step(c, _):
    return jax.lax.cond(c[0] > -1e9, lambda c: jnp.sin(add(c)), lambda c: c, c), None
def loss(x):
    y = jax.jit(lambda x: jax.lax.scan(step, x, None, 3)[0])(x)
    quiet = jax.checkpoint(lambda x: jax.lax.scan(lambda c, _: (jnp.cos(c), None), x, None, 3)[0])
    return (jax.vmap(lambda x: jax.lax.fori_loop(0, 3, lambda _, x: add(x), x))(jnp.stack([y, quiet(y)])) ** 2).sum()
def alone(x):
    y = jnp.sin(jnp.sin(jnp.sin(x)))
    return (y**2).sum() + (jnp.cos(jnp.cos(jnp.cos(y))) ** 2).sum()
for jit in (jax.jit, mpixla.jit):
    np.testing.assert_allclose(jit(jax.grad(loss))(X), jax.grad(alone)(X), rtol=1e-5)
    assert jit(lambda x: (add(x), None)[1])(X) is None
"""


@pytest.mark.parametrize("name", ["all", *patches.HOOKS])
def test_programs_that_need_no_hook_run_without_it(name):
    done = run(START + NEEDS_NONE, MPIXLA_HOOKS_OFF=name)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NEEDS_HOOK)
def test_hook(name):
    if name == "remat3" and not hasattr(jax.config, "jax_remat3"):
        pytest.skip("this JAX has no jax_remat3 yet")
    done = run(START + NEEDS_HOOK[name])
    assert done.returncode == 0, done.stderr
    without = run(START + NEEDS_HOOK[name], MPIXLA_HOOKS_OFF=name)
    assert without.returncode != 0, f"this JAX does not need the hook {name} any more"
    assert re.search(REFUSED.get(name, ""), without.stderr)


def test_unknown_hook_name_raises_value_error():
    done = run("import mpixla", MPIXLA_HOOKS_OFF="sealing,speed")
    assert done.stderr.splitlines()[-1].startswith(
        "ValueError: MPIXLA_HOOKS_OFF names speed, and there is no such hook."
    )


MOVED = """
from jax._src import dispatch
from jax._src.interpreters import pxla
import jax
{change}
import warnings
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import mpixla
    from mpixla import patches
print(len(seen), seen[0].category.__name__, seen[0].message)
assert set(patches.HOOKS) - patches.installed == {{"{name}"}}
"""


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        (
            "sealing",
            "del pxla._cached_lowering_to_hlo",
            "there is no jax._src.interpreters.pxla:_cached_lowering_to_hlo",
        ),
        (
            "tokens",
            "dispatch.RuntimeTokenSet.get_token_input = lambda self, effects: None",
            "jax._src.dispatch:RuntimeTokenSet.get_token_input takes self, effects, not self, eff, devices",
        ),
        (
            "sealing",
            "from jax._src.interpreters import mlir; mlir.LoweringParameters = object",
            "there is no jax._src.interpreters.mlir:LoweringParameters.for_export",
        ),
        (
            "checkpoints",
            "from jax._src import pjit; from jax.interpreters import partial_eval;"
            "del partial_eval.custom_partial_eval_rules[pjit.jit_p]",
            "jax._src.interpreters.partial_eval:custom_partial_eval_rules has no rule for jit",
        ),
        (
            "while_loops",
            "from jax._src.interpreters import batching; del batching.fancy_primitive_batchers[jax.lax.while_p]",
            "jax._src.interpreters.batching:fancy_primitive_batchers has no rule for while",
        ),
        (
            "lowering",
            "pxla.lower_sharding_computation = lambda closed_jaxpr, name: None",
            "jax._src.interpreters.pxla:lower_sharding_computation takes closed_jaxpr, name, not closed_jaxpr, "
            "api_name, fun_name",
        ),
        (
            "scan",
            "from jax._src.lax.control_flow import loops; loops._scan_known_hoisting = None",
            "jax._src.lax.control_flow.loops:_scan_known_hoisting does not say what it takes",
        ),
    ],
)
def test_hook_that_does_not_fit(name, change, reason):
    """Expect it to be left off, and one notice that says which, why, and what is lost."""
    done = run(MOVED.format(name=name, change=change))
    assert done.returncode == 0, done.stderr
    lost = patches.module_of(name).LOST
    assert done.stdout.startswith(f"1 JaxVersionWarning parts of mpixla do not fit JAX {jax.__version__}, and are off.")
    assert f"{name} ({reason}): {lost}" in done.stdout


UNSEALED = """
import jax
from jax._src.interpreters import pxla
pxla._cached_lowering_to_hlo = lambda jaxpr, *rest, **options: jaxpr
import mpixla
from mpi4py import MPI
jaxpr = jax.make_jaxpr(lambda x: mpixla.allreduce(x, op=MPI.SUM))(1.0)
assert pxla._cached_lowering_to_hlo(jaxpr, "f", None, 0) is jaxpr
"""


def test_program_is_not_sealed_if_the_export_is_unknown():
    done = run(UNSEALED)
    assert done.returncode == 0, done.stderr


def test_end_after_a_failure():
    """Expect no traceback, though JAX's exit handlers wait for the tokens of failed programs."""
    assert "Traceback" not in run(START + FAILS_LATER.format(look="pass", result="None")).stderr


# Tracebacks


def wrong() -> None:
    mpixla.allreduce(X, op="sum")


def frames_of_a_mistake(mode: str) -> list[str]:
    """Return the functions in the traceback of an eager call that is refused, from this file on."""
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", mode)
    try:
        wrong()
    except TypeError as e:
        frames = [frame.f_code.co_name for frame, _ in traceback.walk_tb(e.__traceback__)]
    finally:
        jax.config.update("jax_traceback_filtering", before)
    return frames[1:]


def test_tracebacks_end_at_the_users_line():
    assert frames_of_a_mistake("auto") == ["wrong"]
    assert len(frames_of_a_mistake("off")) > 3


# shard_map


def test_results_have_varying_types():
    """Expect JAX to take an allreduce's result for one that is the same on all devices, and to refuse a scan's."""
    mesh, spec = jax.sharding.Mesh(jax.devices()[:1], "x"), jax.sharding.PartitionSpec

    def trace(f, **options):
        jax.make_jaxpr(jax.shard_map(f, mesh=mesh, in_specs=spec("x"), out_specs=spec(), **options))(X)

    def scan(x):
        return mpixla.scan(x, op=MPI.SUM)

    trace(add)
    trace(scan, check_vma=False)
    with pytest.raises(ValueError, match="require replication"):
        trace(scan)


# A JAX newer than tested

IMPORT = (
    "import sys, jax; jax.__version__ = sys.argv[1]; import mpixla; mpixla.barrier(); sys.stdout.write('imported\\n')"
)


@pytest.mark.parametrize(("version", "notices"), [("999.0", 1), (tested.NEWEST, 0)])
def test_notice_for_a_newer_jax(job, version, notices):
    """Expect one notice, on one rank, that says since when; and everything goes on."""
    done = job(2, IMPORT, version)
    assert done.stdout.split() == ["imported", "imported"]
    assert done.stderr.count("JaxVersionWarning: mpixla was tested with JAX up to") == notices
    if notices:
        assert f"up to {tested.NEWEST} ({tested.NEWEST_IN}), and this is JAX {version}." in done.stderr


def test_notice_can_be_turned_off(monkeypatch):
    monkeypatch.setattr(jax, "__version__", "999.0")
    with pytest.warns(mpixla.JaxVersionWarning, match="mpixla was tested") as seen:
        patches.warn_of_newer_jax()
    assert len(seen) == 1
    assert 'filterwarnings("ignore", "mpixla was tested")' in str(seen[0].message)
    with warnings.catch_warnings(record=True) as seen:
        warnings.filterwarnings("ignore", "mpixla was tested")
        patches.warn_of_newer_jax()
    assert not seen
    monkeypatch.setenv("MPI4JAX_NO_WARN_JAX_VERSION", "1")
    with warnings.catch_warnings(record=True) as seen:
        patches.warn_of_newer_jax()
    assert not seen


@pytest.mark.parametrize(
    ("older", "newer"),
    [("0.12.0", "0.12.0.1"), ("0.9.2", "0.10.0"), ("0.12.0.1", "0.12.1rc1"), ("0.12.0.1", "0.13.0.dev20261101+abc")],
)
def test_order_of_versions(older, newer):
    assert patches._version_numbers(older) < patches._version_numbers(newer)
