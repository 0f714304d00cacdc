"""The examples in the docstrings of the public API do what they say."""

import doctest
import inspect

import jax
import pytest

import mpixla


@pytest.mark.parametrize("name", sorted(mpixla.__all__))
def test_docstring(name):
    thing = getattr(mpixla, name)
    finder = doctest.DocTestFinder(recurse=False)
    (test,) = finder.find(thing, name, globs={})
    assert test.examples, f"{name} has no example"
    with jax.enable_x64(False):
        result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    assert result.failed == 0


@pytest.mark.parametrize("name", sorted(mpixla.__all__))
def test_docstring_is_complete(name):
    """Every argument is explained."""
    thing = getattr(mpixla, name)
    for argument in inspect.signature(thing).parameters:
        assert f"\n    {argument}: " in inspect.getdoc(thing)
