"""The JAX side of the operations: primitives, their rules, and eager calls. Not for users."""
