"""Pages of which a part is written by a program, between two marks."""

import re

END = "<!-- until here -->\n"


def _place(text: str, begin: str) -> re.Match[str]:
    found = re.search(f"(?<={re.escape(begin)}).*?(?={re.escape(END)})", text, re.DOTALL)
    if not found:
        raise ValueError(f"the page has no place between {begin!r} and {END!r}")
    return found


def between(text: str, begin: str) -> str:
    """Return the text of a page between the mark ``begin`` and the next ``END``.

    Raises:
        ValueError: if the page has no such marks.
    """
    return _place(text, begin)[0]


def fill(text: str, begin: str, block: str) -> str:
    """Return the text of a page with ``block`` there.

    Raises:
        ValueError: if the page has no such marks.
    """
    place = _place(text, begin)
    return f"{text[: place.start()]}\n{block}\n\n{text[place.end() :]}"
