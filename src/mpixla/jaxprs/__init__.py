"""Programs as JAX writes them (jaxprs): the effect, the axes over which values vary, and rewriting."""
