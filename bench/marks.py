"""Pages of which a part is written by a program, between two marks."""

import re

END = "<!-- until here -->\n"


def fill(text: str, begin: str, block: str) -> str:
    """The text of a page with ``block`` between the mark ``begin`` and the next ``END``.

    Raises:
        ValueError: if the page has no such marks.
    """
    between = f"(?<={re.escape(begin)}).*?(?={re.escape(END)})"
    text, found = re.subn(between, lambda _: f"\n{block}\n\n", text, count=1, flags=re.DOTALL)
    if not found:
        raise ValueError(f"the page has no place between {begin!r} and {END!r}")
    return text
