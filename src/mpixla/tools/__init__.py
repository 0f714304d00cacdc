"""The commands of ``python -m mpixla``: report, self test and benchmark."""
