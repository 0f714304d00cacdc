"""The operations, one module for each family. Users have them from ``mpixla``."""
