"""The layout of the files that native/watch/timeline.h writes."""

from enum import IntEnum

import numpy as np

MAGIC = b"mpixla"
VERSION = 4
GLOB = "rank-*.trace"

HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "u4"),
        ("record_bytes", "u4"),
        ("rank", "i4"),
        ("ranks", "i4"),
        ("process", "i8"),
        ("host", "S256"),
        ("job", "S128"),
        ("clock", "S256"),
        ("stopped", "S352"),
    ]
)


# The kinds of records.
Kind = IntEnum("Kind", "NOTHING CALL TEXT COMMUNICATOR MEMBERS SOURCES DESTS CLOCK AGREED", start=0)

ANY, NOBODY, NONE = -1, -2, -3  # in place of a rank or a tag
CATEGORIES = ("collective", "message", "start", "wait")
MEETINGS = ("each for all", "each for root", "root for all", "each for those before", "each for neighbours")
OPEN, OVER, FAILED = range(3)
WINDOWS = ("", "sent", "received", "sent and received")

BYTES = 128
TEXTS = ("op", "mpi", "site", "dtype", "reduction", "waits_for", "started_at", "transport")


def _record_dtype(*fields: tuple[str, str]) -> np.dtype[np.void]:
    names, formats = zip(("kind", "u4"), ("number", "u4"), *fields, strict=True)
    return np.dtype({"names": names, "formats": formats, "itemsize": BYTES})


CALL = _record_dtype(
    *((name, "i8") for name in ("sequence", "sends", "receives", "items", "began", "took", "gpu")),
    *((name, "i4") for name in ("thread", "root", "to", "sendtag", "from", "recvtag", "request", "generation")),
    *((name, "u2") for name in TEXTS),
    *((name, "u1") for name in ("category", "meeting", "is_reverse", "neighbours", "state", "windows")),
)
COMMUNICATOR = _record_dtype(("in_process", "i8"), ("rank", "i4"), ("size", "i4"), ("name", "S64"))
PART = _record_dtype(("used", "u4"), ("bytes", "V116"))
AGREED = _record_dtype(("in_process", "i8"), ("agreed", "i8"))
CLOCK = _record_dtype(("when", "i8"), ("ahead", "i8"), ("round_trip", "i8"))
