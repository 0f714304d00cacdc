"""Analysis of the timelines that ``MPIXLA_TRACE=directory`` has left: ``python -m mpixla.trace directory``."""
