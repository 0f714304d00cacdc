"""The repository's facts on itself are right: versions, pins, targets of make, links; `make release` refuses others."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import first_sentences
import release
from mpixla.base import tested

pytestmark = pytest.mark.any_mpi

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RECIPE = (ROOT / "packaging/conda/recipe.yaml").read_text()
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PAGES = sorted(
    page for pattern in ("*.md", ".github/*.md", "docs/**/*.md", "tests/*.md") for page in ROOT.glob(pattern)
)


def names(paths):
    return [path.relative_to(ROOT).as_posix() for path in paths]


def test_versions_agree():
    said = release.versions()
    assert len(said) == 4
    assert set(said.values()) == {PROJECT["project"]["version"]}, said


def test_versions_of_jax_equal_the_test_matrix():
    table = (ROOT / "docs/versions.md").read_text()
    said = set(re.findall(r"^\| 3\.\d+\.\d+ \| (\S+) \| .* passed, ", table, re.MULTILINE))
    assert sorted(said, key=lambda version: [int(part) for part in version.split(".")]) == list(tested.JAX)
    assert f"jax>={tested.JAX[0].removesuffix('.0')}" in PROJECT["project"]["dependencies"]


def test_conda_recipe_has_the_package_s_requirements():
    needs = set(re.findall(r"^    - ([\w.-]+(?: >=\S+)?)$", RECIPE.partition("tests:")[0], re.MULTILINE))
    asked = {*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]}
    asked.add("cmake" + PROJECT["tool"]["scikit-build"]["cmake"]["version"])
    assert {need.replace(" ", "") for need in needs} - {"pip", "ninja"} == asked
    oldest = re.search(r'^  python_min: "(.*)"$', RECIPE, re.MULTILINE)[1]
    assert PROJECT["project"]["requires-python"] == f">={oldest}"


def test_hooks_have_the_pinned_versions():
    hooks = set(re.findall(r'dependencies: \["(.*)"\]', (ROOT / ".pre-commit-config.yaml").read_text()))
    assert len(hooks) == 2
    assert hooks <= set(PROJECT["project"]["optional-dependencies"]["check"])


def test_files_of_the_first_steps_are_ignored_by_git():
    """The README's environment, and what the examples draw and write into the current folder."""
    ignored = set((ROOT / ".gitignore").read_text().split())
    assert {"/env/", "/*.gif", "/*.npz", "/*.png"} <= ignored


MAKEFILE = (ROOT / "Makefile").read_text()
MAKEFILE += "".join(
    (ROOT / path).read_text() for path in re.search(r"^-include (.*)$", MAKEFILE, re.MULTILINE)[1].split()
)
TARGETS = {name for line in re.findall(r"^([a-z][\w -]*):(?!=)", MAKEFILE, re.MULTILINE) for name in line.split()}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=names(WORKFLOWS))
def test_workflows_start_existing_targets_and_scripts(workflow):
    text = workflow.read_text()
    targets = re.findall(r"^ *-? *run: make (\S+)$", text, re.MULTILINE)
    scripts = re.findall(r"^ *-? *run: (\.\S+)$", text, re.MULTILINE)
    assert targets or scripts
    assert set(targets) <= TARGETS
    assert all((ROOT / script).is_file() for script in scripts)


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_targets_of_make_exist(page):
    assert set(re.findall(r"(?:`|^(?:\$ )?)make ([a-z][\w-]*)", page.read_text(), re.MULTILINE)) <= TARGETS


def test_demo_installs_only_its_own_extra(tmp_path):
    folders = [f"{name}={tmp_path}" for name in ("VENV", "DEMO_VENV")]
    commands = run("make", "--dry-run", *folders, f"PYTHON={sys.executable}", "demo", cwd=ROOT).stdout
    assert re.findall(r"pip install .*?\.whl\)(.*?)\"", commands) == ["[demo]"]


# Functions that macros make for each data type, and those of an object that has another name than its file.
OBJECTS = {"agree": ("agreement_",), "float_reduce": ("bf16_", "f16_", "f8_")}


@pytest.mark.parametrize(
    "folder", [".", *sorted(p.name for p in (ROOT / "native").iterdir() if p.is_dir() and p.name != "test")]
)
def test_static_functions_carry_the_prefix_of_their_file(folder):
    """So a backtrace and a profile say where one is."""
    found = 0
    for file in sorted(p for p in (ROOT / "native" / folder).iterdir() if p.suffix in (".c", ".inc")):
        stem = file.stem
        prefixes = tuple(f"{word}_" for word in (stem, stem.removesuffix("s"), stem.split("_")[0], f"{stem}s"))
        given = re.findall(r"^static (?:\w+ )*?\w+ \**(\w+)\(", file.read_text(), re.MULTILINE)
        found += len(given)
        odd = [name for name in given if not name.startswith((*prefixes, *OBJECTS.get(stem, ())))]
        assert not odd, file
    assert found or folder == "tables"


def test_first_sentences_and_names_pass_the_check():
    assert not [*first_sentences.list_in_c(), *first_sentences.list_in_python()]


def test_as_many_compilers_as_cores():
    """`cmake --build --parallel` without a number starts all that there are."""
    assert "cmake --build" in MAKEFILE
    assert not re.search(r"cmake --build .*--parallel", MAKEFILE)
    show = "--eval=show:; @echo $$CMAKE_BUILD_PARALLEL_LEVEL"
    # As if no make had started this one.
    alone = [option for name in ("CMAKE_BUILD_PARALLEL_LEVEL", "MAKEFLAGS", "MAKELEVEL") for option in ("-u", name)]
    shown = run("env", *alone, "make", show, "show", cwd=ROOT).stdout.strip()
    assert shown == str(len(os.sched_getaffinity(0)))


def without_code(text):
    """Return Markdown without its blocks and spans of code."""
    return re.sub(r"`[^`\n]*`", "``", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))


def anchors(page):
    """Return the anchors of a page's titles, as GitHub makes and numbers them, and Sphinx's anchors of functions."""
    found, times = set(), {}
    text = page.read_text()
    found.update(f"mpixla.{name}" for name in re.findall(r"^\.\. autofunction:: (\w+)$", text, re.MULTILINE))
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    for title in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        name = re.sub(r"[^\w -]", "", shown.lower()).replace(" ", "-")
        times[name] = times.get(name, -1) + 1
        found.add(f"{name}-{times[name]}" if times[name] else name)
    return found


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_lead_somewhere(page):
    wrong = []
    for target in release.relative_links(without_code(page.read_text())):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            wrong.append(target)
    assert not wrong


def test_there_are_links():
    """So the search finds what it should."""
    links = [link for page in PAGES for link in release.relative_links(without_code(page.read_text()))]
    assert len(links) > 80
    assert sum("#" in link for link in links) > 20


def test_links_for_a_page_elsewhere():
    page = "See [a *page*](docs/a.md#part), [above](#title), [JAX](https://docs.jax.dev)\nand ![a picture](docs/a.svg)."
    whole = release.with_whole_links(page, "https://host/owner/mpixla", "v1.2.3")
    assert whole == (
        "See [a *page*](https://host/owner/mpixla/blob/v1.2.3/docs/a.md#part), "
        "[above](https://host/owner/mpixla/blob/v1.2.3/README.md#title), [JAX](https://docs.jax.dev)\n"
        "and ![a picture](https://host/owner/mpixla/raw/v1.2.3/docs/a.svg)."
    )


def run(*command, cwd):
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def commit(folder):
    author = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    for command in (("add", "--all"), (*author, "commit", "--quiet", "--message", "all")):
        assert run("git", *command, cwd=folder).returncode == 0


@pytest.fixture
def repository(tmp_path):
    """Return a repository with what `make release` looks at, and its changes dated."""
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    folder = tmp_path / "repository"
    for file in (*release.versions(), "README.md", "tools/release.py"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, folder / file)
    changes = folder / "CHANGELOG.md"
    changes.write_text(re.sub(r"^(## \d\S*).*$", r"\1 - 2026-01-31", changes.read_text(), flags=re.MULTILINE))
    assert run("git", "init", "--quiet", cwd=folder).returncode == 0
    commit(folder)
    return folder


def source(repository, *options):
    out = repository.parent / "source"
    done = run(sys.executable, "tools/release.py", "source", out, *options, cwd=repository)
    assert out.exists() == (done.returncode == 0)
    return done.stderr, out


TAG = f"v{PROJECT['project']['version']}"


def test_release_contains_the_last_commit(repository):
    said, out = source(repository, "--tag", TAG, "--repository", "https://host/owner/mpixla")
    assert not said
    assert (out / "CITATION.cff").read_text() == (ROOT / "CITATION.cff").read_text()
    assert not release.relative_links((out / "README.md").read_text())
    project = tomllib.loads((out / "pyproject.toml").read_text())["project"]
    assert project["urls"]["Source"] == "https://host/owner/mpixla"
    assert project["name"] == "mpixla"


def test_release_without_a_repository_changes_nothing(repository):
    said, out = source(repository)
    assert not said
    assert (out / "README.md").read_text() == (ROOT / "README.md").read_text()
    assert (out / "pyproject.toml").read_text() == (ROOT / "pyproject.toml").read_text()


def test_release_refuses_uncommitted_changes(repository):
    (repository / "new.py").touch()
    said, _ = source(repository)
    assert "not committed" in said
    assert "new.py" in said


@pytest.mark.parametrize("file", release.versions())
def test_release_refuses_versions_that_differ(repository, file):
    path = repository / file
    path.write_text(path.read_text().replace(PROJECT["project"]["version"], "9.9.9"))
    commit(repository)
    said, _ = source(repository)
    assert "do not agree" in said
    assert f"'{file}': '9.9.9'" in said


def test_release_refuses_another_tag(repository):
    said, _ = source(repository, "--tag", "v9.9.9")
    assert f"whose tag is {TAG}" in said


@pytest.mark.parametrize("date", ["", " - soon"])
def test_release_refuses_a_tag_before_the_changes_have_a_date(repository, date):
    changes = repository / "CHANGELOG.md"
    text = changes.read_text().replace(" - 2026-01-31", date)
    changes.write_text(f"{text}\n## 0.0.1 - 2025-01-31\n")
    commit(repository)
    said, _ = source(repository, "--tag", TAG)
    assert "CHANGELOG.md has no date" in said


def test_release_selects_wheels_for_this_machine():
    from packaging.tags import sys_tags

    platform = next(tag.platform for tag in sys_tags())
    here, elsewhere, sdist = (
        Path(name) for name in (f"a-1-py3-none-{platform}.whl", "a-1-py3-none-win32.whl", "a-1.tar.gz")
    )
    assert release.fitting([here, elsewhere, sdist]) == [here, sdist]


def test_listing(repository, tmp_path):
    """With the well-known checksum of three letters, and the commit that was built, though there is a newer one."""
    _, built = source(repository)
    commit_of_it = run("git", "rev-parse", "--short", "HEAD", cwd=repository).stdout.strip()
    (repository / "new.py").touch()
    commit(repository)
    (tmp_path / "a-1.tar.gz").write_bytes(b"abc")
    listing = release.listing(tmp_path, built, None)
    assert f"commit {commit_of_it}," in listing
    assert "YYYY" not in listing
    line = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a-1.tar.gz\n"
    assert (tmp_path / "SHA256SUMS").read_text() == line
    assert line in listing
    assert "REPOSITORY" in listing
