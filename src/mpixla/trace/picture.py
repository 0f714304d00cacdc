"""A picture of a job: what each rank did when, and who waited for whom."""

from pathlib import Path
from typing import Any

import numpy as np

from .read import Call, Job, Timeline
from .tables import amount, who_waited

# Time is drawn in so many steps. In one step a rank may do several things: their shares are stacked.
_STEPS = 1200
_MOST_ROWS = 64
_MOST_WORDS = 8  # ranks of a matrix that has its numbers written into it

_PARTS = ("moving", "gpu", "waiting")
_COLOURS = {"outside": "#dfe5ec", "moving": "#2b6cb0", "gpu": "#38a169", "waiting": "#e8590c"}
_NAMES = {
    "outside": "outside of calls",
    "moving": "in a call, moving",
    "gpu": "in a call, for its GPU",
    "waiting": "in a call, waiting",
}


def _add(shares: Any, begin: float, end: float) -> None:
    """Adds a span, in steps, to the steps that it covers, by how much of each it does."""
    first, last = int(begin), min(int(end), len(shares) - 1)
    if first >= len(shares) or end <= begin:
        return
    if first == last:
        shares[first] += end - begin
        return
    shares[first] += first + 1 - begin
    shares[first + 1 : last] += 1
    shares[last] += end - last


def shares_of(timeline: Timeline, begin: int, end: int, steps: int) -> dict[str, Any]:
    """What part of each step a rank spent in what, as arrays of numbers from 0 to 1."""
    shares = {part: np.zeros(steps) for part in _PARTS}
    scale = steps / max(1, end - begin)
    for call in timeline.calls:
        start, ready, over = ((t - begin) * scale for t in (call.begin, call.ready, call.end))
        waited = ready + call.waiting * scale
        _add(shares["gpu"], start, ready)
        _add(shares["waiting"], ready, waited)
        _add(shares["moving"], waited, over)
    # Calls of several threads may overlap: the worst is seen.
    room = np.ones(steps)
    for part in reversed(_PARTS):
        shares[part] = np.minimum(shares[part], room)
        room -= shares[part]
    return shares


def matrix_of(job: Job, ranks: list[int]) -> Any:
    """Nanoseconds that row i waited for column j."""
    places = {rank: i for i, rank in enumerate(ranks)}
    waited = np.zeros((len(ranks), len(ranks)))
    for (rank, late), wait in who_waited(job).items():
        if rank in places and late in places:
            waited[places[rank], places[late]] += wait.waiting
    return waited


def _unit(nanoseconds: float) -> tuple[float, str]:
    return (1e9, "s") if nanoseconds >= 1e9 else (1e6, "ms") if nanoseconds >= 1e6 else (1e3, "us")


def _draw_timelines(axes: Any, job: Job, ranks: list[int]) -> None:
    scale, unit = _unit(job.end - job.begin)
    span = max(1, job.end - job.begin) / scale
    edges = np.linspace(0, span, _STEPS + 1)
    for row, rank in enumerate(ranks):
        bottom = np.full(_STEPS, row + 0.42)
        axes.fill_between([0, span], row - 0.42, row + 0.42, color=_COLOURS["outside"], linewidth=0)
        if rank not in job.timelines:
            axes.text(span / 2, row, "no timeline", ha="center", va="center", color="#555555", fontsize=8)
            continue
        shares = shares_of(job.timelines[rank], job.begin, job.end, _STEPS)
        for part in _PARTS:
            top = bottom - 0.84 * shares[part]
            axes.stairs(top, edges, baseline=bottom, fill=True, color=_COLOURS[part], linewidth=0)
            bottom = top
    axes.set_xlim(0, span)
    axes.set_ylim(len(ranks) - 0.5, -0.5)
    axes.set_xlabel(f"time, {unit}")
    every = max(1, len(ranks) // 16)
    axes.set_yticks(range(0, len(ranks), every), [f"rank {rank}" for rank in ranks[::every]])
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _draw_arrows(axes: Any, job: Job, ranks: list[int]) -> None:
    """From the one waited for, when it came, to the one who waited: the longest waits, if they can be told apart."""
    scale, _ = _unit(job.end - job.begin)
    places = {rank: i for i, rank in enumerate(ranks)}
    waits: list[Call] = [c for c in job.calls() if c.late_call is not None and c.rank in places and c.late in places]
    waits.sort(key=lambda call: -call.waiting)
    for call in waits[:40]:
        if call.waiting < 0.01 * (job.end - job.begin) or call.late is None:
            break
        x = (call.ready + call.waiting - job.begin) / scale
        style = {"arrowstyle": "-|>", "color": "#333333", "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0}
        down = places[call.rank] > places[call.late]
        ends = (places[call.late] + (0.42 if down else -0.42), places[call.rank] + (-0.1 if down else 0.1))
        axes.annotate("", xy=(x, ends[1]), xytext=(x, ends[0]), arrowprops=style, annotation_clip=True)


def _draw_matrix(figure: Any, axes: Any, job: Job, ranks: list[int]) -> None:
    waited = matrix_of(job, ranks)
    scale, unit = _unit(waited.max(initial=0))
    image = axes.imshow(waited / scale, cmap="Oranges", vmin=0, vmax=max(waited.max(initial=0) / scale, 1e-9))
    if len(ranks) <= _MOST_WORDS:
        for i, j in zip(*np.nonzero(waited), strict=True):
            dark = waited[i, j] > 0.6 * waited.max()
            axes.text(
                j,
                i,
                f"{waited[i, j] / scale:.3g}",
                ha="center",
                va="center",
                fontsize=8,
                color="white" if dark else "black",
            )
    every = max(1, len(ranks) // 8)
    axes.set_xticks(range(0, len(ranks), every), ranks[::every])
    axes.set_yticks(range(0, len(ranks), every), ranks[::every])
    axes.set_xlabel("for rank")
    axes.set_ylabel("rank")
    axes.set_title(f"waited, {unit}", fontsize=9)
    figure.colorbar(image, ax=axes, shrink=0.8)


def _title(job: Job) -> str:
    calls = list(job.calls())
    time, waiting = sum(call.time for call in calls), sum(call.waiting for call in calls)
    sent = amount(sum(call.sends for call in calls))
    part = f", {100 * waiting / time:.0f} % of the time in calls is waiting" if time else ""
    return f"{len(calls):,} calls of {job.ranks} ranks that sent {sent}{part}"


def draw(job: Job, file: Path) -> str | None:
    """Draws into a file, whose ending says the format; returns None, or a sentence that says why not."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        return "The picture needs matplotlib, which is not installed here: pip install matplotlib"
    # Of very many ranks, the ones that the others waited for, and that waited, most.
    ranks = list(range(job.ranks)) if job.ranks <= _MOST_ROWS else []
    if not ranks:
        weights = dict.fromkeys(job.timelines, 0)
        for (rank, late), wait in who_waited(job).items():
            for one in (rank, late):
                weights[one] = weights.get(one, 0) + wait.waiting
        ranks = sorted(sorted(weights, key=lambda rank: (-weights[rank], rank))[:_MOST_ROWS])
    height = 1.6 + 0.34 * max(5, min(len(ranks), 24))
    figure = Figure(figsize=(12, height), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[4, 1])
    _draw_timelines(left, job, ranks)
    _draw_arrows(left, job, ranks)
    _draw_matrix(figure, right, job, ranks)
    parts = [part for part in _NAMES if part != "gpu" or any(call.transport for call in job.calls())]
    left.legend(
        handles=[Patch(color=_COLOURS[part], label=_NAMES[part]) for part in parts],
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(parts),
        frameon=False,
        fontsize=9,
        borderaxespad=0.1,
    )
    few = "" if len(ranks) == job.ranks else f", the {len(ranks)} that waited or were waited for most"
    figure.suptitle(_title(job) + few, fontsize=10)
    try:
        figure.savefig(file, dpi=130)
    except (OSError, ValueError) as e:
        return f"The picture cannot be written to {file}: {e}"
    return None
