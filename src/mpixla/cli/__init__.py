"""What ``python -m mpixla`` does."""
