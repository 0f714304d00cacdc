"""A picture of a job: each rank's activity over time, and the waits between ranks."""

from collections import Counter
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from .read import Call, Job
from .tables import CallTotals, TimeUnit, format_bytes, sum_all, sum_waits

# The number of time steps in the picture. Within a step the shares of a rank's activities are stacked.
_STEPS = 1200
_MOST_ROWS = 64
_MOST_WORDS = 8  # the most ranks for which the matrix shows numbers
_MOST_ARROWS = 40
_HALF = 0.42  # of a row's height

# The activities of a rank, with colour and name.
_PARTS = {
    "outside": ("#dfe5ec", "outside of calls"),
    "moving": ("#2b6cb0", "in a call, moving"),
    "gpu": ("#38a169", "in a call, for its GPU"),
    "waiting": ("#e8590c", "in a call, waiting"),
}


def _add_span(share: Any, begin: float, end: float) -> None:
    """Add, in place, to each time step the share of the step that the span from ``begin`` to ``end`` covers."""
    first, last = int(begin), min(ceil(end), len(share))
    share[first:last] += np.diff(np.clip(np.arange(first, last + 1), begin, end))


def _activity_shares(calls: list[Call], time: int) -> dict[str, Any]:
    """Return for each activity in calls the share of each time step that a rank spent in it, from 0 to 1."""
    shares = {part: np.zeros(_STEPS) for part in ("moving", "gpu", "waiting")}
    scale = _STEPS / max(1, time)
    for call in calls:
        waited = call.ready + call.waiting
        _add_span(shares["gpu"], call.begin * scale, call.ready * scale)
        _add_span(shares["waiting"], call.ready * scale, waited * scale)
        _add_span(shares["moving"], waited * scale, call.end * scale)
    # Calls of several threads may overlap: waiting takes precedence, then the GPU.
    room = np.ones(_STEPS)
    for part in ("waiting", "gpu", "moving"):
        shares[part] = np.minimum(shares[part], room)
        room -= shares[part]
    return shares


def _draw_timelines(axes: Any, job: Job, ranks: list[int]) -> None:
    """Draw a row for each rank, coloured by the share of each time step that it spent in each activity."""
    unit = TimeUnit(job.time)
    span = max(1, job.time) / unit.nanoseconds
    edges = np.linspace(0, span, _STEPS + 1)
    for row, rank in enumerate(ranks):
        axes.fill_between([0, span], row - _HALF, row + _HALF, color=_PARTS["outside"][0], linewidth=0)
        if rank not in job.timelines:
            axes.text(span / 2, row, "no timeline", ha="center", va="center", color="#555555", fontsize=8)
            continue
        bottom = np.full(_STEPS, row + _HALF)
        for part, share in _activity_shares(job.timelines[rank].calls, job.time).items():
            top = bottom - 2 * _HALF * share
            axes.stairs(top, edges, baseline=bottom, fill=True, color=_PARTS[part][0], linewidth=0)
            bottom = top
    axes.set_xlim(0, span)
    axes.set_ylim(len(ranks) - 0.5, -0.5)
    axes.set_xlabel(f"time, {unit.name}")
    every = max(1, len(ranks) // 16)
    axes.set_yticks(range(0, len(ranks), every), [f"rank {rank}" for rank in ranks[::every]])
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_arrows(axes: Any, job: Job, ranks: list[int]) -> None:
    """Draw the longest waits as arrows, from the rank waited for to the waiting rank, at the end of the wait."""
    rows, scale = {rank: i for i, rank in enumerate(ranks)}, TimeUnit(job.time).nanoseconds
    waits = [call for call in job.all_calls() if call.late_call and call.rank in rows and call.late in rows]
    waits.sort(key=lambda call: -call.waiting)
    style = {"arrowstyle": "-|>", "color": "#333333", "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0}
    for call in waits[:_MOST_ARROWS]:
        if call.late is None or call.waiting < 0.01 * job.time:
            break
        x = (call.ready + call.waiting) / scale
        start, end = rows[call.late], rows[call.rank]
        down = 1 if end > start else -1
        axes.annotate(
            "", xy=(x, end - 0.1 * down), xytext=(x, start + _HALF * down), arrowprops=style, annotation_clip=True
        )


def _draw_matrix(figure: Any, axes: Any, waits: dict[tuple[int, int], CallTotals], ranks: list[int]) -> None:
    """Draw the matrix of waiting times: a row for each waiting rank, a column for each rank waited for."""
    waited = np.array([[waits[rank, late].waiting for late in ranks] for rank in ranks])
    unit = TimeUnit(waited.max())
    waited = waited / unit.nanoseconds
    image = axes.imshow(waited, cmap="Oranges", vmin=0, vmax=max(waited.max(), 1e-9))
    if len(ranks) <= _MOST_WORDS:
        for i, j in zip(*np.nonzero(waited), strict=True):
            colour = "white" if waited[i, j] > 0.6 * waited.max() else "black"
            axes.text(j, i, f"{waited[i, j]:.3g}", ha="center", va="center", fontsize=8, color=colour)
    every = max(1, len(ranks) // 8)
    axes.set_xticks(range(0, len(ranks), every), ranks[::every])
    axes.set_yticks(range(0, len(ranks), every), ranks[::every])
    axes.set_xlabel("for rank")
    axes.set_ylabel("rank")
    axes.set_title(f"waited, {unit.name}", fontsize=9)
    figure.colorbar(image, ax=axes, shrink=0.8)


def _choose_ranks(job: Job, waits: dict[tuple[int, int], CallTotals]) -> list[int]:
    """Return the ranks to draw: all, or of too many the ranks with the longest waits on either side."""
    if job.ranks <= _MOST_ROWS:
        return list(range(job.ranks))
    weights = Counter(dict.fromkeys(job.timelines, 0))
    for pair, s in waits.items():
        for rank in pair:
            weights[rank] += s.waiting
    return sorted(rank for rank, _ in weights.most_common(_MOST_ROWS))


def draw_picture(job: Job, file: Path) -> str | None:
    """Draw the picture into a file in the format of its suffix; return None, or a message if that fails."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        return "The picture needs matplotlib, which is not installed here: pip install matplotlib"
    waits, whole = sum_waits(job), sum_all(job.all_calls())
    ranks = _choose_ranks(job, waits)
    height = 1.6 + 0.34 * max(5, min(len(ranks), 24))
    figure = Figure(figsize=(12, height), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[4, 1])
    _draw_timelines(left, job, ranks)
    _draw_arrows(left, job, ranks)
    _draw_matrix(figure, right, waits, ranks)
    has_gpu = any(call.transport for call in job.all_calls())
    looks = [look for part, look in _PARTS.items() if part != "gpu" or has_gpu]
    left.legend(
        handles=[Patch(color=colour, label=name) for colour, name in looks],
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(looks),
        frameon=False,
        fontsize=9,
        borderaxespad=0.1,
    )
    share = f", {whole.format_waiting_share()} of the time in calls is waiting" if whole.time else ""
    few = "" if len(ranks) == job.ranks else f", the {len(ranks)} that waited or were waited for most"
    figure.suptitle(
        f"{whole.calls:,} calls of {job.ranks} ranks that sent {format_bytes(whole.sends)}{share}{few}", fontsize=10
    )
    try:
        figure.savefig(file, dpi=130)
    except (OSError, ValueError) as e:
        return f"The picture cannot be written to {file}: {e}"
    return None
