"""Fewer tests in less time: of a test with many cases a sample, and none that is marked long; or just the rest."""

import zlib


def add_options(parser):
    parser.addoption("--sample", type=int, metavar="N", help="run each test's first case, and one of N others")
    parser.addoption("--rest", type=int, metavar="N", help="run what --sample N leaves out")


def _sampled(items, every):
    """Return the names of those that are in the sample, the same in each process and each run."""
    quick = [item for item in items if not item.get_closest_marker("long")]
    first = {item.nodeid.partition("[")[0]: item.nodeid for item in reversed(quick)}
    return set(first.values()) | {item.nodeid for item in quick if zlib.crc32(item.nodeid.encode()) % every == 0}


def take(config, items):
    """Leave those tests in the list that the command line asks for."""
    sample, rest = config.getoption("sample"), config.getoption("rest")
    if sample or rest:
        names = _sampled(items, sample or rest)
        elsewhere = [item for item in items if (item.nodeid in names) != bool(sample)]
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if (item.nodeid in names) == bool(sample)]
