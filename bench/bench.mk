# Targets of make: figures, and what needs a GPU.

.PHONY: bench bench-clients bench-scaling check-gpu bench-gpu

# The benchmarks. mpi4jax has an environment of its own, with the same versions of what both need. It is built from
# source, with this MPI's compiler; pip must not take a build for another MPI from its cache. Where that fails, the
# benchmarks say why, and measure the rest. ROUNDS is how often everything is measured.
BENCH := .venv/bench-$(MPI)-$(PYTHON_VERSION)
PEER := $(BENCH)-mpi4jax
MPICC ?= $(if $(PYPI_MPI),$(BENCH)/bin/mpicc,mpicc)

$(BENCH)/installed: $(PACKAGE)/built
	$(call own_environment,,matplotlib)

$(PEER)/tried: $(BENCH)/installed
	@rm -rf $(PEER) && $(PYTHON) -m venv $(PEER)
	@echo "building mpi4jax in $(PEER)"
	@$(BENCH)/bin/python -m pip freeze | grep -E '^(jax|jaxlib|mpi4py|numpy|$(or $(PYPI_MPI),-))==' >$(PEER)/versions
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

# What both environments need to run Veros, which is in a folder of its own.
$(BENCH)/clients: $(PEER)/tried
	@echo "installing veros for the benchmarks"
	@for p in $(BENCH) $(PEER); do $$p/bin/python $(PIP_INSTALL) $(CLIENT_NEEDS) || exit 1; done
	@PATH="$(abspath $(dir $(MPICC))):$$PATH" $(BENCH)/bin/python $(PIP_INSTALL) --upgrade --no-deps --no-build-isolation \
	    --no-binary veros --target $@ veros

BENCH_RUN = PATH="$(CURDIR)/$(BENCH)/bin:$$PATH" $(BENCH)/bin/python bench/run.py $(if $(QUICK),--quick) $(if $(ROUNDS),--rounds $(ROUNDS)) \
    --raw build/bench/raw-$(MPI) --nothing build/bench/nothing.so --out $(if $(QUICK),build/bench,docs/bench) \
    --mpi4jax-python $(PEER)/bin/python-with-mpi4jax --mpi4jax-why-not $(PEER)/why-not \
    --mpi4jax-source "$$(ls $(PEER)/source/mpi4jax-*.tar.gz 2>/dev/null)"

bench-clients: $(BENCH)/clients build/bench/raw-$(MPI) build/bench/nothing.so ## measure programs written for mpi4jax, unmodified, on both
	$(BENCH_RUN) --name $(MPI)-clients --clients $(abspath $(BENCH)/clients)
	$(if $(QUICK),,$(BENCH)/bin/python bench/summary.py)

bench: $(PEER)/tried build/bench/raw-$(MPI) build/bench/nothing.so ## measure, next to other libraries, into docs/bench (QUICK=1: into build/bench)
	$(BENCH_RUN) --name $(MPI)
	$(if $(QUICK),,$(BENCH)/bin/python bench/summary.py)

# How cost grows with the number of ranks, and a model of it, into docs/scaling.md.
bench-scaling: $(VENV)/installed ## count what 1 to 64 ranks cost, into docs/scaling.md
	$(WITH) python bench/scaling.py --name $(MPI)
	$(if $(filter mpich,$(MPI)),$(WITH) python bench/scaling_model.py)

# On a machine with a GPU, in less than 10 minutes each. Nothing is built and nothing is downloaded: GPU_PYTHON has it, or
# WHEELS, a folder of what it lacks. GPU_OUT is where the results go. Without make: python3 tests/gpu/check.py --help.
GPU_PYTHON ?= $(if $(FAKE),$(BIN)/python,python3)
GPU_OUT ?= $(or $(OUT),$(if $(FAKE)$(QUICK),build/gpu,docs/bench))
GPU_OPTIONS = --out '$(GPU_OUT)' $(if $(WHEELS),--wheels '$(WHEELS)') $(if $(FAKE),--fake) $(if $(QUICK),--quick)

check-gpu: $(if $(FAKE),fake-device) ## check all that needs a GPU, on a machine that has one (FAKE=1: on the fake one)
	$(GPU_PYTHON) tests/gpu/check.py $(GPU_OPTIONS)

bench-gpu: $(if $(FAKE),fake-device) ## measure there (QUICK=1: a small part of either)
	$(GPU_PYTHON) bench/gpu.py $(GPU_OPTIONS)
