"""Reading XLA's optimized programs: which calls are left, and what it copies around them."""

import re

_ITEM_BYTES = {"pred": 1, "s8": 1, "u8": 1, "f16": 2, "bf16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "f64": 8}
_COPY = re.compile(r"= (\w+)\[([\d,]*)\]\S* (?:copy|copy-start)\(")


def communications(text: str) -> list[str]:
    """Return the targets of calls of mpixla, mpi4jax or the benchmarks in a program, in order, without packing."""
    targets = re.findall(r'custom_call_target="(\w+)"', text)
    return [name for name in targets if re.match("mpixla_(?!(un)?pack$)|mpi_|bench_", name)]


def copies(text: str, at_least: int) -> list[str]:
    """Return the lines of a program that copy an array of this many bytes or more."""

    def size(dtype: str, shape: str) -> int:
        size = _ITEM_BYTES.get(dtype, 0)
        for length in filter(None, shape.split(",")):
            size *= int(length)
        return size

    return [line.strip() for line in text.splitlines() if (m := _COPY.search(line)) and size(*m.groups()) >= at_least]


def loop_body(text: str) -> str:
    """Return the body of the one loop of a program.

    Raises:
        ValueError: if it has not exactly one.
    """
    names = re.findall(r" while\(.*body=%([\w.-]+)", text)
    if len(names) != 1:
        raise ValueError(f"the program has {len(names)} loops, not one")
    begin = re.search(rf"^%{re.escape(names[0])} .*{{$", text, re.MULTILINE)
    if begin is None:
        raise ValueError(f"the body {names[0]} of the program's loop was not found")
    return text[begin.start() : text.index("\n}", begin.start())]
