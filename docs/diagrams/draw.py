"""Draws the diagrams of these pages: python docs/diagrams/draw.py writes them beside itself.

They have a light ground of their own, so they can be read in dark themes.
"""

from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path

INK, FAINT, GROUND, EDGE = "#1f2328", "#59636e", "#ffffff", "#d1d9e0"
BLUE, AMBER, GREEN, GREY, RED = (
    ("#ddf4ff", "#0969da"),
    ("#fff8c5", "#9a6700"),
    ("#dafbe1", "#1a7f37"),
    ("#f6f8fa", "#818b98"),
    ("#ffebe9", "#cf222e"),
)
RANKS = (BLUE, AMBER, GREEN)
Colour = tuple[str, str]


class Drawing:
    """An SVG of a size, to which shapes are added."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = (width, height)
        self._title = title
        self._shapes: list[str] = []

    def box(
        self, x: float, y: float, w: float, h: float, lines: str = "", colour: Colour = GREY, size: int = 14
    ) -> None:
        """Draw a rectangle with lines of text in its middle; a line in backquotes is code."""
        self._shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="6" fill="{colour[0]}" stroke="{colour[1]}"/>'
        )
        rows = lines.split("\n") if lines else []
        for i, row in enumerate(rows):
            self.text(x + w / 2, y + h / 2 + (i - (len(rows) - 1) / 2) * size * 1.3 + size * 0.35, row, size=size)

    def text(
        self, x: float, y: float, text: str, size: int = 14, colour: str = INK, at: str = "middle", bold: bool = False
    ) -> None:
        """Draw a line of text; in backquotes it is code."""
        is_code = text.startswith("`") and text.endswith("`")
        kind = ' class="code"' if is_code else ""
        weight = ' font-weight="600"' if bold else ""
        self._shapes.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{at}" fill="{colour}"{kind}{weight}>'
            f"{escape(text.strip('`'))}</text>"
        )

    def arrow(self, *points: tuple[float, float], colour: str = INK, dashed: bool = False) -> None:
        """Draw a line through points, with a head at its end."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        head = {INK: "ink", RED[1]: "red", FAINT: "faint"}[colour]
        self._shapes.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dash} '
            f'marker-end="url(#{head})"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """Draw a faint line that separates its two sides."""
        self._shapes.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{EDGE}"/>')

    def __str__(self) -> str:
        width, height = self._size
        heads = "".join(
            f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0,0.5 L10,5 L0,9.5 z" fill="{colour}"/></marker>'
            for name, colour in (("ink", INK), ("red", RED[1]), ("faint", FAINT))
        )
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                f'height="{height}" role="img">',
                f"<title>{escape(self._title)}</title>",
                "<style>text { font-family: system-ui, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif; } "
                ".code { font-family: ui-monospace, 'SF Mono', Menlo, 'DejaVu Sans Mono', monospace; }</style>",
                f"<defs>{heads}</defs>",
                f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10" fill="{GROUND}" '
                f'stroke="{EDGE}"/>',
                *self._shapes,
                "</svg>\n",
            )
        )


def life_of_a_call() -> Drawing:
    """Draw a call from a line of Python to MPI and back."""
    d = Drawing(880, 470, "The life of a call, from a line of Python to MPI and back")

    def row(y: float, name: str, when: str, boxes: Iterable[tuple[str, Colour]]) -> None:
        d.text(24, y - 14, name, bold=True, at="start")
        d.text(856, y - 14, when, colour=FAINT, size=13, at="end")
        boxes = list(boxes)
        w, gap = 184, (832 - 4 * 184) / 3
        for i, (lines, colour) in enumerate(boxes):
            x = 24 + i * (w + gap)
            d.box(x, y, w, 66, lines, colour, size=13)
            if i:
                d.arrow((x - gap + 2, y + 33), (x - 3, y + 33))

    row(
        46,
        "Tracing and compiling",
        "once for each shape",
        [
            ("`allreduce(x, op)`\narguments are checked", BLUE),
            ("a primitive\nwith an ordered effect", BLUE),
            ("lowered: a custom call\nwith a token", AMBER),
            ("compiled by XLA,\nsealed in one program", AMBER),
        ],
    )
    d.arrow((764, 112), (764, 140), (116, 140), (116, 182))
    d.line(24, 128, 856, 128)
    row(
        186,
        "Each run",
        "no Python below this line",
        [
            ("JAX dispatches\nthe program", AMBER),
            ("XLA computes, until\nx and the token are there", AMBER),
            ("libmpixla reads\nand checks the call", GREEN),
            ("`MPI_Allreduce`\non XLA's own memory", GREEN),
        ],
    )
    d.box(672, 300, 184, 46, "the other ranks", GREY, size=13)
    d.arrow((748, 254), (748, 297))
    d.arrow((780, 299), (780, 255))
    d.arrow((700, 254), (700, 275), (300, 275), (300, 256))
    d.text(432, 268, "success: XLA goes on with the result", size=13, colour=FAINT)
    d.line(24, 366, 856, 366)
    d.text(24, 392, "A failure", bold=True, at="start")
    d.text(856, 392, "when somebody looks at a result", colour=FAINT, size=13, at="end")
    d.box(24, 404, 400, 46, "a sentence: rank, call, peers, tag, count, your line", RED, size=13)
    d.box(458, 404, 398, 46, "an exception in Python; uncaught, it ends the job", RED, size=13)
    d.arrow((424, 427), (455, 427), colour=RED[1])
    d.arrow((560, 253), (560, 335), (224, 335), (224, 401), colour=RED[1])
    return d


def _columns(d: Drawing, left: float, title: str, above: str, below: str, draw: Callable[[list[float]], None]) -> None:
    """Draw three ranks, with a value of each above and below."""
    xs = [left + 38 + 82 * r for r in range(3)]
    d.text(left + 120, 34, title, bold=True)
    for r, x in enumerate(xs):
        d.text(x, 60, f"rank {r}", size=12, colour=FAINT)
        d.box(x - 32, 70, 64, 34, above.replace("r", "₀₁₂"[r]), RANKS[r])
        d.box(x - 32, 196, 64, 34, below.replace("r", "₀₁₂"[r]), GREY if below in ("y", "ȳ") else RANKS[r])
    draw(xs)


def cotangents_of_allreduce() -> Drawing:
    """Draw the cotangents of an allreduce, and of pvary."""
    d = Drawing(1060, 290, "Which cotangents of an allreduce go where")

    def into_all(xs: list[float]) -> None:
        d.box(xs[1] - 17, 132, 34, 34, "Σ", GREY)
        for x in xs:
            d.arrow((x, 104), (xs[1] + (x - xs[1]) * 0.2, 130))
            d.arrow((xs[1] + (x - xs[1]) * 0.2, 167), (x, 193))

    def back_to_all(xs: list[float]) -> None:
        d.box(xs[1] - 17, 132, 34, 34, "Σ", GREY)
        for x in xs:
            d.arrow((x, 195), (xs[1] + (x - xs[1]) * 0.2, 168), colour=RED[1])
            d.arrow((xs[1] + (x - xs[1]) * 0.2, 131), (x, 107), colour=RED[1])

    def straight_back(xs: list[float]) -> None:
        for x in xs:
            d.arrow((x, 195), (x, 107), colour=RED[1])

    _columns(d, 16, "allreduce, forward", "xr", "y", into_all)
    _columns(d, 276, "backward, replicated", "x̄r", "ȳ", straight_back)
    _columns(d, 536, "backward, varying", "x̄r", "ȳr", back_to_all)
    _columns(d, 796, "pvary, backward", "x̄", "ȳr", back_to_all)
    for x in (271, 531, 791):
        d.line(x, 20, x, 270)
    for x, words in (
        (136, "the sum, on every rank"),
        (396, "one loss: ȳ counts once"),
        (656, "n losses: all ȳ are added up"),
        (916, "one parameter, n ranks' work"),
    ):
        d.text(x, 262, words, size=13, colour=FAINT)
    return d


def cotangents_of_sendrecv() -> Drawing:
    """Draw the cotangents of a message: one to the right comes back from there."""
    d = Drawing(760, 190, "Which cotangents of a sendrecv go where")
    for left, title, above, below, colour in (
        (20, "sendrecv, forward", "x", "y", INK),
        (390, "backward", "x̄", "ȳ", RED[1]),
    ):
        xs = [left + 58 + 117 * r for r in range(3)]
        d.text(left + 175, 32, title, bold=True)
        for r, x in enumerate(xs):
            d.box(x - 32, 50, 64, 34, above + "₀₁₂"[r], RANKS[r])
            d.box(x - 32, 120, 64, 34, below + "₀₁₂"[r], RANKS[(r - 1) % 3])
        ends = [((xs[r] + 8, 85), (xs[r + 1] - 8, 118)) for r in range(2)]
        around = ((xs[2] + 20, 85), (xs[2] + 44, 102), (xs[2] + 52, 102))
        back = ((xs[0] - 52, 102), (xs[0] - 44, 102), (xs[0] - 20, 118))
        for start, end in ends:
            d.arrow(*((start, end) if colour == INK else (end, start)), colour=colour)
        if colour == INK:
            d.arrow(*around, colour=colour)
            d.arrow(*back, colour=colour)
        else:
            d.arrow(*reversed(back), colour=colour)
            d.arrow(*reversed(around), colour=colour)
        d.text(
            left + 175,
            178,
            ("each rank sends to the right", "what came from the left goes back there")[colour != INK],
            13,
            FAINT,
        )
    d.line(380, 20, 380, 170)
    return d


def cotangents_of_halo_exchange() -> Drawing:
    """Draw the cotangents of a halo exchange: those of ghosts are added to the originals'."""
    d = Drawing(760, 300, "Which cotangents of a halo exchange go where")
    cell = 48
    for top, title, letter, colour in ((52, "halo_exchange, forward", "u", INK), (186, "backward", "ū", RED[1])):
        d.text(24, top - 22, title, bold=True, at="start")
        for rank in range(2):
            left = 40 + rank * 360
            for i in range(6):
                is_ghost = i in (0, 5)
                shown = RANKS[rank] if not is_ghost else ("#ffffff", RANKS[rank][1])
                name = "ghost" if is_ghost else letter + "₁₂₃₄"[i - 1]
                d.box(left + i * (cell + 4), top, cell, 36, name, shown, size=12 if is_ghost else 14)
            d.text(left + 154, top + 92, f"rank {rank}", size=12, colour=FAINT)
        middle = [40 + 360 * rank + i * (cell + 4) + cell / 2 for rank in range(2) for i in range(6)]
        y = top + 38
        to_right = ((middle[4], y), (middle[4], y + 30), (middle[6], y + 30), (middle[6], y + 2))
        to_left = ((middle[7], y), (middle[7], y + 18), (middle[5], y + 18), (middle[5], y + 2))
        for way in (to_right, to_left):
            d.arrow(*(way if colour == INK else tuple(reversed(way))), colour=colour)
    d.text(736, 30, "a ghost becomes a copy of the neighbour's cell", 13, FAINT, "end")
    d.text(736, 164, "its cotangent is added to that cell's, and cleared", 13, FAINT, "end")
    return d


DIAGRAMS = (life_of_a_call, cotangents_of_allreduce, cotangents_of_sendrecv, cotangents_of_halo_exchange)

if __name__ == "__main__":
    for diagram in DIAGRAMS:
        Path(__file__).with_name(f"{diagram.__name__}.svg").write_text(str(diagram()))
