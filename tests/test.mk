# Targets of make: the tests in Python, and of programs.

.PHONY: test-python test-spmd test-jobs test-without-hooks test-next-jax test-c-example test-long test-long-spmd test-long-jobs test-large soak test-faults test-hosts test-install test-fake-gpu test-fake-gpu-suite test-fake-gpu-jobs test-gpu-programs test-gpu-headers test-sycl test-clients test-ecosystem

# The numbers of ranks; of tests with many cases one in SAMPLE runs, and test-long has the rest; EVERY=1: every case on any
# number of ranks. OWN=1 leaves out tests of jobs that say the same under every MPI.
RANKS ?= 1 2 3
SAMPLE ?= 4

# tests/spmd with options of pytest. It keeps compiled programs in build/programs (its conftest.py says why), for a week.
# On THROUGH_MPI ranks all calls go through MPI, also those that ranks of one host make without.
define spmd
	@mkdir -p build/programs && find build/programs -type f -mtime +7 -delete
	@for n in $(RANKS); do \
	    echo "== $$n rank(s), MPI=$(MPI)"; \
	    MPIXLA_LOCAL=$$(test $$n = '$(THROUGH_MPI)' && echo 0 || echo 1) \
	        $(LAUNCH) -n $$n $(BIN)/python $(PYTEST) $(1) tests/spmd || exit 1; \
	done
endef

# Jobs start processes and often only wait for them, so four run at once.
PYTEST_JOBS := $(PYTEST) --numprocesses 4 --dist worksteal
JOB_TESTS ?= tests/launch tests/examples
QUICK_JOBS := $(addprefix tests/launch/test_,check.py end.py import.py layers.py main.py project.py readme.py run.py \
    trace_match.py)
JOBS = $(WITH) python $(PYTEST_JOBS) --ignore tests/launch/fake_gpu $(if $(OWN),-m 'not any_mpi') $(JOB_TESTS)

test-python: test-spmd test-jobs ## run the tests in Python on RANKS='1 2 3', of many cases one in SAMPLE=4 (EVERY=1: all)

test-spmd: $(VENV)/installed
	$(call spmd,$(if $(EVERY),--every-test,--sample $(SAMPLE)))

test-jobs: $(VENV)/installed
	$(JOBS) --sample $(SAMPLE)

test-long: test-long-spmd test-long-jobs ## run the cases, and the tests of jobs, that this leaves out

test-long-spmd: $(VENV)/installed
	$(call spmd,--rest $(SAMPLE))

test-long-jobs: $(VENV)/installed
	$(JOBS) --rest $(SAMPLE)

# No function of JAX's is replaced (src/mpixla/patches); and JAX's next implementations, as far as this JAX has them: but
# for jax_scan3, which in JAX itself has no reverse mode yet.
HOOK_TESTS ?= $(addprefix tests/spmd/test_,control_flow.py halo.py jit.py nan.py neighbor.py order.py requests.py reveal.py sites.py \
    transpose.py) --sample 12

test-without-hooks: $(VENV)/installed ## run tests with no function of JAX's replaced
	MPIXLA_HOOKS_OFF=all $(LAUNCH) -n 2 $(BIN)/python $(PYTEST) $(HOOK_TESTS)

test-next-jax: $(VENV)/installed ## and with JAX's next implementations, as far as this JAX has them
	JAX_REMAT3=1 JAX_CUSTOM_VJP3=1 JAX_CUSTOM_JVP3=1 JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS=1 \
	    $(LAUNCH) -n 2 $(BIN)/python $(PYTEST) $(HOOK_TESTS)

# A front end in C (docs/other_tools.md), compiled with this MPI's mpicc.
test-c-example: $(VENV)/installed ## compile examples/c, a program without Python, and run it
	$(WITH) python $(PYTEST) tests/launch/test_c_example.py

# More than 2^31 - 1 elements for real: takes memory (it says how much) and minutes.
test-large: $(VENV)/installed ## test arrays of more than 2^31 - 1 elements, on much memory
	$(LAUNCH) -n 2 $(BIN)/python $(PYTEST) -v tests/spmd/large_counts.py

# Random programs for MINUTES. Half an hour of it is documented: CONTRIBUTING.md. A call that hangs is reported by
# MPIXLA_TIMEOUT, and anything else by the program itself.
MINUTES ?= 30
SOAK_NP = $(if $(filter file,$(origin NP)),3,$(NP))

soak: $(VENV)/installed ## run random programs for MINUTES=30, and compare every value with NumPy (SHARDED=1: sharded ones)
	MPIXLA_TIMEOUT=$${MPIXLA_TIMEOUT-200} $(LAUNCH) -n $(SOAK_NP) $(BIN)/python $(if $(SHARDED),\
	    -m mpixla.distributed tests/soak/sharded.py --minutes $(MINUTES) --seed $(or $(SEED),1) $(if $(ONE_CORE),--one-core),\
	    tests/soak/run.py --minutes $(MINUTES) --seed $(or $(SEED),1) $(if $(filter 30,$(MINUTES)),--write))

# What can go wrong, done to small jobs, and docs/faults.md's table of what came of it.
test-faults: $(VENV)/installed ## do to small jobs what can go wrong, and write down what they say in docs/faults.md
	@rm -rf build/faults/$(MPI)
	$(WITH) python $(PYTEST_JOBS) tests/faults
	$(WITH) python tests/faults/report.py $(MPI)

# Two hosts on one machine, also as nodes of Slurm if that is installed. It takes root, or
# `unshare --user --map-root-user make test-hosts`; where they cannot be made the tests are skipped, and say why.
RATE ?= 2gbit

test-hosts: $(VENV)/installed ## run jobs on two hosts, made of network namespaces of this machine (RATE=2gbit)
	@mkdir -p build/programs
	$(WITH) python $(PYTEST) --rate $(RATE) tests/hosts

# What needs modules or containers says so, and is skipped, where there are none.
test-install: $(VENV)/installed ## type what the pages say on installing, into homes without anything
	$(WITH) python $(PYTEST) tests/install

# tests/spmd on the fake GPU, by each transport. `mpi` needs an MPI with large counts (native/test/gpu/mpi_gate.c).
TRANSPORTS ?= host nccl $(if $(filter mpich impi-rt,$(MPI)),mpi)
# What lowers programs makes no call. FEWER=1: a sample of them.
FAKE_GPU_TESTS := tests/spmd --ignore=tests/spmd/test_gpu_lowering.py $(if $(FEWER),--sample $(SAMPLE))

test-fake-gpu: test-fake-gpu-suite test-fake-gpu-jobs ## run the tests through the GPU handlers, on a CPU, by each transport

test-fake-gpu-suite: fake-device
	@export MPIXLA_FAKE_DEVICE=1 PYTHONPATH=$(CURDIR)/tests/seam; \
	for transport in $(TRANSPORTS); do \
	    echo "== 2 ranks on fake GPUs, transport $$transport, MPI=$(MPI)"; \
	    export MPIXLA_GPU_TRANSPORT=$$transport; \
	    $(LAUNCH) -n 2 $(BIN)/python -m mpixla test && \
	    $(LAUNCH) -n 2 $(BIN)/python $(PYTEST) $(FAKE_GPU_TESTS) || exit 1; \
	done

test-fake-gpu-jobs: fake-device
	$(WITH) python $(PYTEST_JOBS) tests/launch/fake_gpu

# JAX's plugin for CUDA, of jaxlib's version, and what it needs to compile: ptxas and libdevice, which are in these two
# packages. They have a directory of their own: where JAX finds them, every program looks for a GPU.
CUDA_COMPILER := build/cuda-$(notdir $(VENV))

test-gpu-programs: $(VENV)/installed ## compile programs for a GPU, without one, and look at what XLA made of them
	@version=$$($(BIN)/python -c 'import jaxlib; print(jaxlib.__version__)') || exit 1; \
	test -e $(CUDA_COMPILER)/is-$$version || { \
	    echo "installing what compiles for CUDA into $(CUDA_COMPILER)"; \
	    rm -rf $(CUDA_COMPILER); \
	    $(BIN)/python $(PIP_INSTALL) --no-deps --target $(CUDA_COMPILER) jax-cuda13-plugin==$$version \
	        jax-cuda13-pjrt==$$version 'nvidia-cuda-nvcc==13.*' 'nvidia-nvvm==13.*' && \
	    touch $(CUDA_COMPILER)/is-$$version; }
	PYTHONPATH=$(CURDIR)/$(CUDA_COMPILER) JAX_PLATFORMS=cpu JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 \
	    $(LAUNCH) -n 2 $(BIN)/python $(PYTEST) --every-test tests/spmd/gpu_programs.py

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
	@cd $(GPU_HEADERS) && $(BIN)/python -c 'import glob, zipfile; [z.extract(f) for z in \
	    map(zipfile.ZipFile, glob.glob("wheels/*.whl")) for f in z.namelist() if f.endswith((".h", ".hpp"))]'
	@rm -rf $(GPU_HEADERS)/wheels && touch $@

test-gpu-headers: $(GPU_HEADERS)/are-there ## compare what is assumed of CUDA and NCCL with their headers
	@$(BIN)/cmake -S . -B $(GPU_HEADERS)/build -G 'Unix Makefiles' -DCMAKE_C_COMPILER=$(CC) -DMPIXLA_TESTS=ON \
	    -DMPIXLA_WERROR=ON -DMPIXLA_CUDA_INCLUDE=$(CURDIR)/$(GPU_HEADERS)/nvidia/cu13/include \
	    -DMPIXLA_NCCL_INCLUDE=$(CURDIR)/$(GPU_HEADERS)/nvidia/nccl/include \
	    -DMPIXLA_HIP_INCLUDE='$(HIP_INCLUDE)' -DMPIXLA_RCCL_INCLUDE='$(RCCL_INCLUDE)' >$(GPU_HEADERS)/log || { cat $(GPU_HEADERS)/log >&2; exit 1; }
	@$(BIN)/cmake --build $(GPU_HEADERS)/build --target gpu_header_tests >$(GPU_HEADERS)/log 2>&1 || { cat $(GPU_HEADERS)/log >&2; exit 1; }
	$(BIN)/ctest --test-dir $(GPU_HEADERS)/build --tests-regex '^(cuda|nccl|hip|rccl)_header$$' --no-tests=error

# dpctl, and a SYCL runtime for which the processor is a device, in an environment of their own: the versions that go with
# JAX's plugin for Intel's GPUs.
SYCL := .venv/sycl-$(PYTHON_VERSION)
SYCL_PACKAGES ?= dpctl==0.19.0 intel-sycl-rt==2025.1.1 intel-opencl-rt==2025.1.1

$(SYCL)/installed: | prerequisites
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@echo "installing $(SYCL_PACKAGES) into $(@D)"
	@$(@D)/bin/python $(PIP_INSTALL) $(SYCL_PACKAGES)
	@ln -sfn "$$(cd $(@D)/lib/python*/site-packages/dpctl && pwd)" $(@D)/dpctl
	@touch $@

test-sycl: $(SYCL)/installed $(VENV)/installed ## run the driver for Intel's GPUs on a SYCL runtime for the processor
	@$(BIN)/cmake -S . -B build/c-sycl -G 'Unix Makefiles' -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=$(CC) \
	    -DMPIXLA_TESTS=ON -DMPIXLA_WERROR=ON -DMPIXLA_DPCTL_INCLUDE=$(CURDIR)/$(SYCL)/dpctl/include \
	    -DMPIXLA_DPCTL_LIBRARY=$(CURDIR)/$(SYCL)/dpctl/libDPCTLSyclInterface.so >build/c-sycl.log || { cat build/c-sycl.log >&2; exit 1; }
	@$(BIN)/cmake --build build/c-sycl --target gpu_header_tests test_sycl fake_mpi_int >build/c-sycl.log 2>&1 || { cat build/c-sycl.log >&2; exit 1; }
	OCL_ICD_FILENAMES=$(CURDIR)/$(SYCL)/lib/libintelocl.so LD_LIBRARY_PATH=$(CURDIR)/$(SYCL)/lib \
	    $(BIN)/ctest --test-dir build/c-sycl --timeout 300 --output-on-failure --tests-regex '^sycl_(header|runtime)$$' --no-tests=error

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

test-clients: test-client-veros test-client-veros-tokens test-client-mpi4jax ## run programs from PyPI that were written for mpi4jax

$(CLIENTS)/veros/installed $(CLIENTS)/veros-tokens/installed: $(CLIENTS)/%/installed: | $(VENV)/installed
	@echo "installing $($*_PACKAGE) into $(@D)"
	@$(BIN)/python $(PIP_INSTALL) $(CLIENT_NEEDS)
	@$(BIN)/python $(PIP_INSTALL) --upgrade --no-deps --no-build-isolation \
	    --no-binary $(firstword $(subst ==, ,$($*_PACKAGE))) --target $(@D) $($*_PACKAGE)
	@touch $@

$(CLIENTS)/mpi4jax/installed: | $(VENV)/installed
	@echo "downloading mpi4jax's example into $(@D)"
	@$(BIN)/python $(PIP_INSTALL) $(MPI4JAX_BUILD_NEEDS) tqdm
	@$(WITH) python $(MPI4JAX_DOWNLOAD) --dest $(@D) mpi4jax
	@tar -xzf $(@D)/mpi4jax-*.tar.gz -C $(@D) --strip-components=2 --wildcards '*/examples/shallow_water.py'
	@touch $@

test-client-%: $(CLIENTS)/%/installed $(VENV)/installed
	@for n in 1 $(CLIENT_RANKS); do \
	    echo "== $($*_PACKAGE) on $$n rank(s), MPI=$(MPI)"; \
	    PYTHONPATH=$(CURDIR)/$(<D) $(LAUNCH) -n $$n $(BIN)/python -m mpixla.compat $($*_API) \
	        $($*_MODEL) $(CLIENT_STEPS) $(CURDIR)/$(<D)/$$n.npz || exit 1; \
	done
	$(BIN)/python tests/clients/compare.py $($*_TOLERANCE) $(<D)/1.npz $(CLIENT_RANKS:%=$(<D)/%.npz)

.PRECIOUS: $(CLIENTS)/%/installed

# Programs with other libraries of JAX's, in an environment of their own: the libraries may ask for another JAX.
ECOSYSTEM := .venv/ecosystem-$(MPI)-$(PYTHON_VERSION)
comma := ,

$(ECOSYSTEM)/installed: $(PACKAGE)/built
	$(call own_environment,[test$(comma)ecosystem])

test-ecosystem: BIN = $(abspath $(ECOSYSTEM)/bin)
test-ecosystem: $(ECOSYSTEM)/installed ## run programs with equinox, flax, optax, diffrax and others from PyPI
	@for n in $(RANKS); do \
	    echo "== $$n rank(s), MPI=$(MPI), each with its part, then with arrays that JAX spreads"; \
	    $(LAUNCH) -n $$n $(BIN)/python $(PYTEST) --ignore tests/ecosystem/sharded tests/ecosystem || exit 1; \
	    $(LAUNCH) -n $$n $(BIN)/python -m mpixla.distributed $(PYTEST) tests/ecosystem/sharded || exit 1; \
	done
