"""What the timelines say that ``MPIXLA_TRACE=directory`` has left: ``python -m mpixla.trace directory``."""
