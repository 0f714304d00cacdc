"""Parts of command lines, for which neither MPI nor JAX is needed."""

import argparse
from contextlib import suppress

# The options for the number of ranks.
RANKS = ("-n", "-np", "--ranks")


def parse_positive(text: str) -> int:
    """Convert a word of the command line to an integer of at least 1; raise argparse's error for any other word."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"it must be a whole number, at least 1, but is '{text}'.")
    return int(text)


def parse_seconds(text: str) -> float:
    """Convert a word of the command line to a number of seconds above 0; raise argparse's error for any other word."""
    with suppress(ValueError):
        if 0 < (number := float(text)) < 1e9:
            return number
    raise argparse.ArgumentTypeError(f"it must be a number of seconds greater than 0, but is '{text}'.")


def is_kind(word: str) -> bool:
    """Return whether a word is ``-m`` or ``-c``, which may have their value in the same word."""
    return word[:2] in ("-m", "-c")


def program_of(words: list[str]) -> list[str]:
    """Return a program and its arguments, without a leading ``--``, ``-mmodule`` as two words; [] for no program."""
    program = words[words[:1] == ["--"] :]
    if program and is_kind(program[0]):
        program[:1] = filter(None, (program[0][:2], program[0][2:]))
        return program if len(program) > 1 else []
    return program if program and not program[0].startswith("-") else []
