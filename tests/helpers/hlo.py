"""Reads programs as XLA prints them, optimized and scheduled: what runs, in which order, and what is copied."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod


@dataclass(frozen=True)
class Instruction:
    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str

    @property
    def target(self) -> str | None:
        found = re.search(r'custom_call_target="([^"]*)"', self.attributes)
        return found[1] if found else None

    @property
    def has_token(self) -> bool:
        return "token[]" in self.shape

    @property
    def size(self) -> int:
        """The elements of the largest array of the result."""
        return max((prod(map(int, s.split(","))) for s in re.findall(r"\w\[([\d,]+)\]", self.shape)), default=1)

    def called(self) -> list[str]:
        """Return the computations that it runs, in their order: of a loop the condition comes first."""
        found = dict(
            re.findall(
                r"\b(condition|body|to_apply|true_computation|false_computation|calls)=%([\w.-]+)", self.attributes
            )
        )
        order = ("condition", "body", "to_apply", "true_computation", "false_computation", "calls")
        branches = re.search(r"branch_computations=\{([^}]*)\}", self.attributes)
        return [found[what] for what in order if what in found] + re.findall(
            r"%([\w.-]+)", branches[1] if branches else ""
        )


@dataclass
class Computation:
    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)
    root: str = ""

    def source(self, name: str, index: int | None = None) -> Instruction:
        """Return the instruction that makes a value, or one part of a tuple, seen through what only hands it on."""
        made = self.instructions[name]
        if made.opcode == "get-tuple-element":
            found = re.search(r"index=(\d+)", made.attributes)
            assert found
            return self.source(made.operands[0], int(found[1]))
        if made.opcode == "tuple" and index is not None:
            return self.source(made.operands[index])
        if made.opcode in ("bitcast", "copy"):
            return self.source(made.operands[0])
        return made

    def ordered(self) -> list[Instruction]:
        """Return the instructions that take or give a token, in the order of the schedule."""
        kinds = ("custom-call", "while", "conditional")
        return [
            x
            for x in self.instructions.values()
            if x.opcode in kinds and (x.has_token or any(self.instructions[name].has_token for name in x.operands))
        ]

    def before(self, instruction: Instruction) -> Instruction:
        """Return the instruction that gave an instruction its token, or the array that stands for a token."""
        for name in instruction.operands:
            operand = self.instructions[name]
            if operand.has_token:
                return self.before(operand) if operand.opcode == "tuple" else self.source(name)
        return self.source(instruction.operands[0])


class Program:
    """A module in XLA's text form."""

    def __init__(self, text: str) -> None:
        assert "is_scheduled=true" in text.partition("\n")[0]
        self.computations: dict[str, Computation] = {}
        self.entry = ""
        current: Computation | None = None
        for line in text.splitlines():
            head = re.match(r"(ENTRY )?%([\w.-]+) \(.*\{$", line)
            if head:
                current = self.computations[head[2]] = Computation(head[2])
                self.entry = head[2] if head[1] else self.entry
            elif line == "}":
                current = None
            elif current is not None:
                is_root, instruction = _instruction(line.strip())
                current.instructions[instruction.name] = instruction
                current.root = instruction.name if is_root else current.root
        assert self.entry

    def running(self, name: str | None = None, loops: int = 0) -> Iterator[tuple[int, Computation, Instruction]]:
        """Yield all instructions that run, in their order, fusions as one, and the number of loops around each."""
        computation = self.computations[name or self.entry]
        for instruction in computation.instructions.values():
            yield loops, computation, instruction
            if instruction.opcode in ("while", "conditional", "call"):
                for called in instruction.called():
                    yield from self.running(called, loops + (instruction.opcode == "while"))

    def calls(self, prefix: str) -> list[str]:
        """Return the targets of custom calls with this prefix, without it, in the order of the schedule."""
        return [x.target[len(prefix) :] for _, _, x in self.running() if x.target and x.target.startswith(prefix)]

    def places(self, *names: str) -> list[list[int]]:
        """Return for each operation or opcode the steps of the schedule at which it runs, alone or in a fusion."""
        steps = [{*self._opcodes(x), (x.target or "").removeprefix("mpixla_")} for _, _, x in self.running()]
        return [[i for i, step in enumerate(steps) if name in step] for name in names]

    def _opcodes(self, instruction: Instruction) -> set[str]:
        """Return its opcode, or of a fusion the opcodes of the fused instructions."""
        if instruction.opcode != "fusion":
            return {instruction.opcode}
        (name,) = instruction.called()
        return {x.opcode for x in self.computations[name].instructions.values()}

    def copies(self, least: int) -> list[tuple[int, Instruction]]:
        """Return the copies of this many elements or more, and the number of loops around each."""
        return [(loops, x) for loops, _, x in self.running() if x.size >= least and self._only_copies(x)]

    def _only_copies(self, instruction: Instruction) -> bool:
        """Return whether it only moves an array: fusions of copies, reshapes and transpositions compute nothing."""
        opcodes = self._opcodes(instruction)
        if instruction.opcode != "fusion":
            return bool(opcodes & {"copy", "copy-start", "transpose"})
        return bool(opcodes & {"copy", "transpose"}) and opcodes <= {
            "parameter", "copy", "transpose", "bitcast", "reshape", "tuple", "get-tuple-element",
        }  # fmt: skip


def _closing(text: str, start: int) -> int:
    """Return the place behind the parenthesis that closes the one at ``start``."""
    depth = 0
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i + 1
    raise AssertionError(f"a parenthesis is open: {text}")


def _instruction(line: str) -> tuple[bool, Instruction]:
    head = re.match(r"(ROOT )?%([\w.-]+) = ", line)
    assert head, line
    rest = line[head.end() :]
    end = _closing(rest, 0) if rest[0] == "(" else rest.index(" ")
    shape, rest = re.sub(r"/\*.*?\*/", "", rest[:end]), rest[end:].lstrip()
    opens = rest.index("(")
    closes = _closing(rest, opens)
    operands = tuple(re.findall(r"%([\w.-]+)", rest[opens:closes]))
    return bool(head[1]), Instruction(head[2], shape, rest[:opens], operands, rest[closes:])
