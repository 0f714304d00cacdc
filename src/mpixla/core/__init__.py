"""How an operation becomes part of a JAX program: primitives, their rules, and the calls of users. Not for users."""
