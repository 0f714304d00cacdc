"""A file uses no file above it in ARCHITECTURE.md's tree of the sources, and the tree has every file."""

import ast
import fnmatch
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

pytestmark = pytest.mark.any_mpi

ROOT = Path(__file__).parents[2]
NATIVE, PACKAGE = "native", "src/mpixla"
TOPS = ("include", NATIVE, PACKAGE, "tests", "bench", "docs", "examples")
BUILT = ("*.so", "*.pyc")


def tree() -> list[str]:
    """Return the entries of the tree, from the bottom up: paths and patterns of paths; folders end with a slash."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    block = re.search(r"## Reading order\n.*?\n```\n(.*?)```", text, re.DOTALL)[1]
    entries, parents = [], []
    for line in block.splitlines():
        indent, name = re.fullmatch(r"( *)(\S+)(?:  +\S.*)?", line).groups()
        parents = [*parents[: len(indent) // 2], name]
        entries.append("".join(parents))
    return entries


ENTRIES = tree()
FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for top in (NATIVE, PACKAGE)
    for path in (ROOT / top).rglob("*")
    if path.is_file() and not any(map(path.match, BUILT))
)


def floor(file: str) -> int:
    """Return the place in the tree of a file's folder, or of the file itself where it stands right under the top."""
    top = NATIVE if file.startswith(NATIVE + "/") else PACKAGE
    inner = PurePosixPath(file).relative_to(top)
    if len(inner.parts) > 1:
        return ENTRIES.index(f"{top}/{inner.parts[0]}/")
    return next(i for i, entry in enumerate(ENTRIES) if fnmatch.fnmatch(file, entry))


def included(file: str) -> Iterator[str]:
    for name in re.findall(r'^\s*#\s*include\s*"(.+)"', (ROOT / file).read_text(), re.MULTILINE):
        beside = os.path.normpath(f"{PurePosixPath(file).parent}/{name}")
        yield from [path for path in (beside, f"{NATIVE}/{name}") if (ROOT / path).is_file()][:1]


def module_file(parts: tuple[str, ...]) -> str | None:
    path = "/".join(("src", *parts))
    return next((f for f in (f"{path}.py", f"{path}/__init__.py") if (ROOT / f).is_file()), None)


def imported(file: str) -> Iterator[str]:
    """Yield the files that a file imports, also within functions and for type checkers."""
    package = PurePosixPath(file).relative_to("src").parent.parts
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            found = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = (*above, *(node.module.split(".") if node.module else ()))
            found = [
                (*base, alias.name) if base[:1] == ("mpixla",) and module_file((*base, alias.name)) else base
                for alias in node.names
            ]
        else:
            continue
        for parts in found:
            if parts[:1] == ("mpixla",):
                used = module_file(parts)
                assert used, f"{file} imports {'.'.join(parts)}, which is nowhere"
                yield used


USES = {
    file: {used for used in (imported if file.startswith(PACKAGE) else included)(file) if used != file}
    for file in FILES
    if not file.startswith(f"{PACKAGE}/") or file.endswith(".py")
}


def test_the_tree_has_every_file():
    named = [f"{entry}__init__.py" if entry.endswith("/") else entry for entry in ENTRIES]
    missing = [file for file in FILES if not any(fnmatch.fnmatch(file, entry) for entry in named)]
    assert not missing, f"ARCHITECTURE.md's tree lacks {missing}"


def test_files_in_the_tree_of_architecture_exist():
    patterns = [entry.replace("[ch]", end) for entry in ENTRIES for end in ("ch" if entry.endswith(".[ch]") else "c")]
    assert [pattern for pattern in patterns if not list(ROOT.glob(pattern))] == []


def test_no_file_uses_a_later_folder():
    """Some files are there to be used, so the search finds what it should."""
    upward = [(file, used) for file, all_used in USES.items() for used in all_used if floor(used) > floor(file)]
    assert not upward
    assert sum(map(len, USES.values())) > 200


def assigned(file: str) -> Iterator[str]:
    """Yield the assignments to variables of other modules of the package."""
    tree = ast.parse((ROOT / file).read_text())
    modules = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("mpixla"))
        for alias in node.names
        if list((ROOT / PACKAGE).glob(f"**/{alias.name}.py")) and alias.name != "state"
    }
    stored = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    for node in stored:
        if isinstance(node.value, ast.Name) and node.value.id in modules:
            yield f"{file}:{node.lineno}: {ast.unparse(node)}"


def test_no_module_sets_variables_of_another():
    """What modules share is in base/state.py: `from ..base.state import state`."""
    assert [found for file in FILES if file.endswith(".py") for found in assigned(file)] == []


# Packages that use mpixla, and without which it works. What they use of it: public names, extend.py, and base/.
SATELLITES = ("run", "compat", "distributed", "trace", "tools")
COMMANDS = f"{PACKAGE}/__main__.py"  # the command line, which is that of the satellites


def satellite(file: str) -> str | None:
    """Return the satellite that has a file of the package; None for the kernel's."""
    return next((name for name in SATELLITES if file.startswith(f"{PACKAGE}/{name}/")), None)


def of_package() -> Iterator[tuple[str, str]]:
    yield from ((file, used) for file in USES if file.startswith(PACKAGE) for used in USES[file])


def test_the_kernel_uses_no_satellite():
    """Nor does it import one by a name that it makes, but in satellites.py."""
    kernel = [file for file in FILES if file.startswith(PACKAGE) and file != COMMANDS and not satellite(file)]
    assert {folder for file in FILES if file.startswith(PACKAGE) and (folder := satellite(file))} == set(SATELLITES)
    assert [(file, used) for file, used in of_package() if file in kernel and satellite(used)] == []
    named = re.compile(rf"""import_module\(\s*f?["'](?:mpixla|\.)*\.(?:{"|".join(SATELLITES)})\b""")
    found = {file for file in kernel if file.endswith(".py") and named.search((ROOT / file).read_text())}
    assert found == {f"{PACKAGE}/satellites.py"}


def test_satellites_use_only_exported_names():
    """No satellite uses another one; the command line begins those that have commands."""
    allowed = (f"{PACKAGE}/__init__.py", f"{PACKAGE}/extend.py", f"{PACKAGE}/base/")
    found = [
        (file, used)
        for file, used in of_package()
        if (own := satellite(file)) and not used.startswith((*allowed, f"{PACKAGE}/{own}/"))
    ]
    assert found == []
    own = tuple(f"{PACKAGE}/{name}/" for name in ("tools", "trace"))
    assert [used for used in USES[COMMANDS] if not used.startswith((*allowed, *own))] == []


def test_the_c_part_of_distributed_uses_the_public_header_only():
    """And no other C file uses it; its own tests may."""
    own = f"{NATIVE}/trampoline/"
    uses = [
        (file, used) for file, all_used in USES.items() if not file.startswith(f"{NATIVE}/test/") for used in all_used
    ]
    crossing = [(file, used) for file, used in uses if file.startswith(own) != used.startswith(own)]
    assert crossing == []
    assert [file for file, used in uses if file.startswith(own)]


def test_satellites_find_no_file_beside_their_folder_by_its_path():
    """So a satellite's folder can be moved elsewhere."""
    upward = re.compile(r"""parents\[|parent\.parent|["'](\.\./|base["'/])""")
    files = [file for file in USES if satellite(file)]
    assert [file for file in files if upward.search((ROOT / file).read_text())] == []


def names_from(file: str, module: str | None = None) -> set[str]:
    """Return the names that a file imports from modules, or from one of this name."""
    nodes = [node for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in nodes if module in (None, node.module) for alias in node.names}


def test_every_exported_name_is_used_by_a_satellite():
    files = [file for file in FILES if file.endswith(".py") and (file == COMMANDS or satellite(file))]
    assert names_from(f"{PACKAGE}/extend.py") == set().union(*(names_from(file, "extend") for file in files))


def test_public_functions_have_one_decorator():
    """It shows an exception as one of the user's line, and says where the function is: in mpixla."""
    init = ast.parse((ROOT / PACKAGE / "__init__.py").read_text())
    lists = [node.value for node in init.body if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"]
    public, found = set(ast.literal_eval(lists[0])), {}
    for file in FILES:
        if file.startswith(PACKAGE) and file.endswith(".py") and not satellite(file):
            for node in ast.parse((ROOT / file).read_text()).body:
                decorators = [ast.unparse(x).partition("(")[0] for x in getattr(node, "decorator_list", ())]
                if isinstance(node, ast.FunctionDef) and node.name in public and "overload" not in decorators:
                    found[node.name] = decorators
    assert public - found.keys() == {"MPIError", "MessageStatus", "Request", "Shift"}
    assert {x for names in found.values() for x in names} == {"call_per_dtype", "call_per_leaf", "eager", "public"}
    assert {name: names for name, names in found.items() if len(names) != 1} == {}


def test_no_circles_within_a_folder():
    """A C file and its header are one here."""
    unit = {file: file if file.startswith(PACKAGE) else str(PurePosixPath(file).with_suffix("")) for file in FILES}
    uses = {unit[file]: set() for file in USES}
    for file, all_used in USES.items():
        same = {unit[used] for used in all_used if PurePosixPath(used).parent == PurePosixPath(file).parent}
        uses[unit[file]] |= same - {unit[file]}
    while free := [name for name, used in uses.items() if not used & uses.keys()]:
        for name in free:
            del uses[name]
    assert not uses, "these use each other in a circle, or what does"


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_files_that_a_document_names_exist(document):
    """By their paths, or the ends of these."""
    text = re.sub(r"```.*?```", "", (ROOT / document).read_text(), flags=re.DOTALL)
    known = [f"/{path.relative_to(ROOT)}" for top in TOPS for path in (ROOT / top).rglob("*")]
    named = set(re.findall(r"`([\w./-]+\.(?:c|h|py|def|inc|md))`", text)) - {"mpi.h"}
    assert len(named) > 8
    assert not [name for name in named if not any(path.endswith(f"/{name}") for path in known)]


# Writing to standard error, and the files that do: base/program.py and run/rank.py import nothing of mpixla's.
WRITES = {
    NATIVE: (r"\bstderr\b|\bSTDERR_FILENO\b|\bdprintf\(|\bwrite\(", {"base/output.c"}),
    PACKAGE: (
        r"sys\.stderr\.write|file=sys\.stderr|os\.write\(2|\(sys\.stderr if",
        {"base/speaker.py", "base/program.py", "run/rank.py"},
    ),
}


@pytest.mark.parametrize("top", WRITES)
def test_sentences_go_through_one_file(top):
    pattern, allowed = WRITES[top]
    files = [path for path in (ROOT / top).rglob("*.[chdip]*") if "native/test" not in path.as_posix()]
    found = {path.relative_to(ROOT / top).as_posix() for path in files if re.search(pattern, path.read_text("latin-1"))}
    assert "base/output.c" in found or top == PACKAGE
    assert found <= allowed
