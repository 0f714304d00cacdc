"""List functions whose first sentence or name does not say what they do: `make check` runs this; it must list none.

A sentence that begins with one of WORDS gives a reason, or has its noun elsewhere. In C each function of LINES lines or
more has a comment above its definition, or above its declaration in a header; in Python ruff asks for docstrings.

A name has two words or more, a verb and its object, and begins with none of FIRST_WORDS. In C the file's prefix is one
of the words: `clock_now`. The exceptions are the operations of MPI, the public names of mpixla, and TERMS.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/mpixla"
WORDS = re.compile(r"(What|Whether|Who|Whose|Which|Whoever|Those|Of|That|Has|It|They|Where|Called)\b")
FIRST_WORDS = "of|in|on|by|at|over|what|who|whose|when|while|where|both|tell"
LINES = 5
ATTRIBUTE = re.compile(r"^__attribute__\(\(.*?\)\)\)? ", re.MULTILINE)
FUNCTION = re.compile(r"^(?!typedef)[A-Za-z_][\w *,()]*?\b(\w+)\([^;{]*?(;|\{\n.*?^\})", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"/\*((?:(?!\*/).)*)\*/\n(?:(?:#|/\*)[^\n]*\n)*\Z", re.DOTALL)

# Names of one word that are allowed, by the reason why they are.
TERMS = {
    "JAX's names of rules, methods and functions": "batch bind initialize jvp lower trace transpose",
    "the standard library's names of methods": "exit write",
    "the command lines, and the hooks in JAX, which patches/ installs by this name": "install main run",
    "names of MPI_Pack and MPI_Unpack": "pack unpack",
    "adjectives: they are decorators. The function inside a decorator with arguments": "eager public decorate",
    "types of MPI: its objects, and columns of the library's tables": "Comm Dtype Op Process Reduction Status",
    "types of JAX and XLA: stages, primitives, graphs, collectives": "Collective Compiled Graph Primitive Program",
    "types in ARCHITECTURE.md's glossary, or in docs/trouble.md": "Box Call Job Plan Timeline",
    "types of which the package has one": "Degrees Library Rules State",
}
ALLOWED = {name for names in TERMS.values() for name in names.split()}


def c_functions(path: Path) -> list[tuple[str, str, str]]:
    """Return name, comment and body (";" of a declaration) of the functions in a file of C."""
    text = ATTRIBUTE.sub("", path.read_text())
    found = []
    for match in FUNCTION.finditer(text):
        comment = COMMENT.search(text[: match.start()].rsplit("\n\n", 1)[-1])
        found.append((match[1], comment[1].strip() if comment else "", match[0]))
    return found


def list_in_c() -> Iterator[str]:
    """Yield a line for each function of C whose first sentence does not say what it does, or whose name is one word."""
    operations = set(re.findall(r"^MPIXLA_OP\((\w+)", (ROOT / "native/tables/ops.def").read_text(), re.MULTILINE))
    files = [p for p in sorted(ROOT.glob("[in]*/**/*.[chi]*")) if "test" not in p.relative_to(ROOT).parts]
    functions = [(path, *function) for path in files for function in c_functions(path)]
    declared = {name: comment for path, name, comment, _ in functions if path.suffix == ".h" and comment}
    for path, name, comment, body in functions:
        sentence = comment or declared.get(name, "")
        is_long = body.endswith("}") and body.count("\n") >= LINES
        if (is_long and not sentence) or WORDS.match(sentence):
            yield f"{path.relative_to(ROOT)}: {name}: {sentence[:60] or 'no comment'}"
        if "_" not in name and name.islower() and body.endswith("}") and name not in operations:
            yield f"{path.relative_to(ROOT)}: {name}: a name of one word"


def public_names() -> set[str]:
    """Return the names in mpixla's ``__all__``."""
    nodes = ast.parse((PACKAGE / "__init__.py").read_text()).body
    lists = [node for node in nodes if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    return set(ast.literal_eval(lists[0].value))


def fault_of_name(node: ast.FunctionDef | ast.ClassDef) -> str:
    """Return the fault of a name, or "". Properties are values, and names between two underscores are Python's."""
    if node.name.startswith("__") or any(ast.unparse(x).endswith("property") for x in node.decorator_list):
        return ""
    if re.match(rf"_?({FIRST_WORDS})_", node.name):
        return "a name that begins with neither verb nor noun"
    return "a name of one word" if re.fullmatch(r"_?[A-Za-z]?[a-z0-9]+", node.name) else ""


def list_in_python() -> Iterator[str]:
    """Yield a line for each function or class whose docstring says no action, or whose name has a fault."""
    allowed = ALLOWED | public_names()
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                if WORDS.match(ast.get_docstring(node) or ""):
                    yield f"{path.relative_to(ROOT)}: {node.name}: {(ast.get_docstring(node) or '')[:60]}"
                if (fault := fault_of_name(node)) and node.name.lstrip("_") not in allowed:
                    yield f"{path.relative_to(ROOT)}: {node.name}: {fault}"


if __name__ == "__main__":
    lines = [*list_in_c(), *list_in_python()]
    print("\n".join(lines), end="\n" if lines else "")
    sys.exit(bool(lines))
