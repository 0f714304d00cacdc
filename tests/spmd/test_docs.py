"""The examples in the docstrings of the public API do what they say."""

import doctest
import inspect
import pydoc
import re
import typing

import jax
import pytest
from mpi4py import MPI

import mpixla
from reference import ROWS

SECTIONS = ["Args", "Returns", "Derivative", "Raises", "Example"]


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


STARTED = (
    *(
        "iallgather",
        "iallreduce",
        "ialltoall",
        "ialltoallv",
        "ibcast",
        "iexscan",
        "igather",
        "irecv",
        "ireduce",
        "ireduce_scatter",
    ),
    *("iscan", "iscatter", "isend", "isendrecv"),
)


@pytest.mark.parametrize("name", STARTED)
def test_docstrings_of_non_blocking_operations(name):
    """It has all sections, and what the blocking operation says of the arguments that both take."""
    started, blocking = getattr(mpixla, name), getattr(mpixla, name[1:])
    text = inspect.getdoc(started)
    assert text.startswith("Start to ")
    assert re.findall(r"^(\w+):\n    (?=\S)", text, re.MULTILINE) == SECTIONS
    assert "\n    A request; ``wait`` gives " in text
    for argument in inspect.signature(blocking).parameters.keys() - inspect.signature(started).parameters.keys():
        assert f"``{argument}" not in text
        assert f"\n    {argument}: " not in text
    for error in re.findall(r"^    (\w+Error): ", inspect.getdoc(blocking), re.MULTILINE):
        assert f"\n    {error}: " in text
    assert max(map(len, text.splitlines())) <= 116


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_operations_with_a_replicated_result_take_cotangent(row):
    assert ("cotangent" in inspect.signature(getattr(mpixla, row.name)).parameters) == row.replicated


LIKE = {
    "allgather": ("alltoall", "bcast", "gather", "pvary"),
    "allgatherv": ("gatherv",),
    "allreduce": ("exscan", "reduce", "reduce_scatter", "scan"),
}


@pytest.mark.parametrize(("name", "other"), [(name, other) for other, names in LIKE.items() for name in names])
def test_docstring_lists_the_errors_of_the_related_operation(name, other):
    """It has all sections, and raises what the other raises, which comes before what is its own."""
    text = inspect.getdoc(getattr(mpixla, name))
    assert re.findall(r"^(\w+):\n    (?=\S)", text, re.MULTILINE) == SECTIONS
    assert "A request" not in text
    docs = text, inspect.getdoc(getattr(mpixla, other))
    own, others = (re.findall(r"^    (\w[\w., ]*): for ", doc, re.MULTILINE) for doc in docs)
    assert own[: len(others)] == others
    assert max(map(len, text.splitlines())) <= 116


def shown(function):
    """Return the signature that help() shows, in one line: Python 3.13 gives each parameter of a long one its own."""
    text = pydoc.plain(pydoc.render_doc(function)).partition("\n\n")[2].partition(inspect.getdoc(function)[:20])[0]
    return " ".join(text.split()).replace("( ", "(")


@pytest.mark.parametrize("name", [name for name in mpixla.__all__ if inspect.isfunction(getattr(mpixla, name))])
def test_help_has_the_names_of_users(name):
    signature = shown(getattr(mpixla, name))
    assert signature.startswith(f"{name}(")
    assert not re.search(r"mpixla\.[a-z]|= -\d", signature)


@pytest.mark.parametrize("name", [name for name in mpixla.__all__ if inspect.isfunction(getattr(mpixla, name))])
def test_annotations_are_the_types(name):
    function = getattr(mpixla, name)
    signature = inspect.signature(function)
    shown = {p.name: p.annotation for p in signature.parameters.values()}
    result = signature.return_annotation
    assert {**shown, "return": type(None) if result is None else result} == typing.get_type_hints(function)


def test_annotations_of_recv():
    parameters = inspect.signature(mpixla.recv).parameters
    assert parameters["source"].annotation == int | jax.Array | mpixla.Shift
    assert parameters["status"].annotation == MPI.Status | None
    assert parameters["source"].default == MPI.ANY_SOURCE
    assert " source: " in shown(mpixla.recv)
    assert "mpixla.Shift = MPI.ANY_SOURCE, *, tag: " in shown(mpixla.recv)
