"""List functions whose first sentence does not say what they do: `make check` runs this, and it must list none.

A sentence that begins with one of WORDS gives a reason, or has its noun elsewhere. In C each function of LINES lines or
more has a comment above its definition, or above its declaration in a header; in Python ruff asks for docstrings.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORDS = re.compile(r"(What|Whether|Who|Whose|Which|Whoever|Those|Of|That|Has|It|They|Where|Called)\b")
LINES = 5
ATTRIBUTE = re.compile(r"^__attribute__\(\(.*?\)\)\)? ", re.MULTILINE)
FUNCTION = re.compile(r"^(?!typedef)[A-Za-z_][\w *,()]*?\b(\w+)\([^;{]*?(;|\{\n.*?^\})", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"/\*((?:(?!\*/).)*)\*/\n(?:(?:#|/\*)[^\n]*\n)*\Z", re.DOTALL)


def c_functions(path: Path) -> list[tuple[str, str, str]]:
    """Return name, comment and body (";" of a declaration) of the functions in a file of C."""
    text = ATTRIBUTE.sub("", path.read_text())
    found = []
    for match in FUNCTION.finditer(text):
        comment = COMMENT.search(text[: match.start()].rsplit("\n\n", 1)[-1])
        found.append((match[1], comment[1].strip() if comment else "", match[0]))
    return found


def odd_sentences() -> list[str]:
    """Return a line for each function without a first sentence, or with one that does not say what it does."""
    odd = []
    files = [p for p in sorted(ROOT.glob("[in]*/**/*.[chi]*")) if "test" not in p.relative_to(ROOT).parts]
    functions = [(path, *function) for path in files for function in c_functions(path)]
    declared = {name: comment for path, name, comment, _ in functions if path.suffix == ".h" and comment}
    for path, name, comment, body in functions:
        sentence = comment or declared.get(name, "")
        is_long = body.endswith("}") and body.count("\n") >= LINES
        if (is_long and not sentence) or WORDS.match(sentence):
            odd.append(f"{path.relative_to(ROOT)}: {name}: {sentence[:60] or 'no comment'}")
    for path in sorted((ROOT / "src/mpixla").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and WORDS.match(ast.get_docstring(node) or ""):
                odd.append(f"{path.relative_to(ROOT)}: {node.name}: {(ast.get_docstring(node) or '')[:60]}")
    return odd


if __name__ == "__main__":
    lines = odd_sentences()
    print("\n".join(lines), end="\n" if lines else "")
    sys.exit(bool(lines))
