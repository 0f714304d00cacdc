# Targets of make: the C tests, also with other tools.

.PHONY: test-c test-threads test-memory fuzz valgrind valgrind-is-there fake-device aarch64-is-there test-aarch64 test-aarch64-python

# The C tests, as the package is built and under AddressSanitizer and UndefinedBehaviorSanitizer. They need no MPI,
# but compare what the library assumes with the mpi.h of this MPI and the header of this jaxlib.
MPI_HEADERS = $(subst $() ,;,$(wildcard $(addprefix $(CURDIR)/$(VENV)/include/,mpi.h mpi_abi.h)))

C_KINDS ?= Release Sanitize
C_TESTS ?= # of them those whose names match, all by default; C_TARGET builds these alone

test-c: $(VENV)/installed ## run the C tests, as built and under sanitizers (C_TESTS=regex)
	@mkdir -p build
	@for kind in $(C_KINDS); do \
	    echo "== C tests, $$kind"; \
	    $(BIN)/cmake -S . -B $(C_BUILD)/$$kind -G 'Unix Makefiles' -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=$(CC) \
	        -DMPIXLA_TESTS=ON -DMPIXLA_WERROR=ON -DMPIXLA_SANITIZE=$$(test $$kind = Sanitize && echo ON || echo OFF) \
	        -DMPIXLA_JAXLIB_INCLUDE="$$($(BIN)/python -c 'import jax; print(jax.ffi.include_dir())')" \
	        -DMPIXLA_MPI_INCLUDE='$(MPI_HEADERS)' \
	        -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >$(C_BUILD).log || { cat $(C_BUILD).log >&2; exit 1; }; \
	    $(BIN)/cmake --build $(C_BUILD)/$$kind $(if $(C_TARGET),--target $(C_TARGET)) >$(C_BUILD).log 2>&1 || { cat $(C_BUILD).log >&2; exit 1; }; \
	    $(BIN)/ctest --test-dir $(C_BUILD)/$$kind --timeout 300 --parallel 4 --output-on-failure $(if $(C_TESTS),--tests-regex '$(C_TESTS)' --no-tests=error) \
	        $(if $(QUIET),>$(C_BUILD).log || { cat $(C_BUILD).log >&2; exit 1; } && grep 'tests passed' $(C_BUILD).log,|| exit 1); \
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
    env LD_PRELOAD="$$(realpath $$($(CC) -print-file-name=libtsan.so))" setarch -R $(BIN)/python \
    -m pytest -p no:cacheprovider tests/spmd/test_threads.py
test-threads: $(VENV)/installed ## run C tests and those of Python threads under ThreadSanitizer
	$(call c_build,c-threads,-DMPIXLA_SANITIZE=thread)
	$(BIN)/ctest --test-dir build/c-threads --timeout 300 --parallel 4 --output-on-failure
	$(call python_with,c-threads)
	$(TSAN_PYTHON) || { cat build/c-threads/report*; exit 1; }
	MPIXLA_CHECK=1 MPIXLA_TIMEOUT=100 MPIXLA_TRACE=build/c-threads/trace $(TSAN_PYTHON) || { cat build/c-threads/report*; exit 1; }

# Memory that is used before anything was written to it, which GCC has no sanitizer for. Without mpi_gate, where it takes
# the thread-local variables of a library that was opened later for such memory, and without the fuzzers.
CLANG ?= clang
test-memory: $(VENV)/installed ## run the C tests under MemorySanitizer, which takes clang
	@command -v $(CLANG) >/dev/null || { echo "$(CLANG) was not found: install it (on Debian: apt-get install clang), or name it with CLANG=..." >&2; exit 1; }
	$(call c_build,c-memory,-DMPIXLA_SANITIZE=memory -DCMAKE_C_COMPILER=$(CLANG))
	$(BIN)/ctest --test-dir build/c-memory --timeout 300 --parallel 4 --output-on-failure --exclude-regex '^(mpi_gate|fuzz_)' $(if $(C_TESTS),--tests-regex '$(C_TESTS)' --no-tests=error)

# New cases in each run; a case that fails is named, and SEED=its number runs it alone.
SECONDS ?= 60
FUZZERS := host_int host_small host_watched device_host device_auto
fuzz: $(VENV)/installed ## give the handlers wrong calls for SECONDS=60 (SEED=1), under sanitizers
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
    --xml=yes --xml-file=build/c-valgrind/report.%p.xml $(BIN)/python -m pytest -p no:cacheprovider --timeout 900
# Looking for what was lost reads all memory that the fake GPU has set aside, which then exists.
VALGRIND_C = FUZZ_OPTIONS=--runs=3000 $(BIN)/ctest --test-dir build/c-valgrind --parallel 2 --timeout 600 --output-on-failure
WITH_FAKE_GPU := ^(fake_|gpu_|seam|mpi_gate|fuzz_device)
# Each operation in each variant, on each shape and on a short float: compiling takes a minute for some twenty programs.
VALGRIND_SUITE ?= tests/spmd/test_value.py tests/spmd/test_threads.py -k '(test_every_variant and jit) or \
    (test_every_shape and float32 and jit) or (test_every_dtype and bfloat16) or test_threads'

valgrind-is-there:
	@command -v valgrind >/dev/null || { echo "valgrind was not found: install it (on Debian: apt-get install valgrind)" >&2; exit 1; }

valgrind: valgrind-is-there $(VENV)/installed ## run the C tests, and some in Python, under valgrind
	$(call c_build,c-valgrind,-DCMAKE_TEST_LAUNCHER='valgrind;--quiet;--error-exitcode=9')
	VALGRIND_OPTS='$(VALGRIND_LEAKS) --errors-for-leak-kinds=definite,indirect' $(VALGRIND_C) --exclude-regex '$(WITH_FAKE_GPU)'
	VALGRIND_OPTS=--leak-check=no $(VALGRIND_C) --tests-regex '$(WITH_FAKE_GPU)' --no-tests=error
	$(call python_with,c-valgrind)
	$(VALGRIND_PYTHON) $(VALGRIND_SUITE)
	MPIXLA_CHECK=1 MPIXLA_TIMEOUT=900 MPIXLA_TRACE=build/c-valgrind/trace $(VALGRIND_PYTHON) tests/spmd/test_threads.py
	$(BIN)/python tools/valgrind_reports.py build/c-valgrind/report.*.xml

# The fake GPU, for MPIXLA_FAKE_DEVICE=1 PYTHONPATH=tests/seam.
fake-device: $(VENV)/installed ## build the fake GPU, with which Python runs device handlers on a CPU
	@mkdir -p build
	@$(BIN)/cmake -S . -B build/fake-device -G 'Unix Makefiles' -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=$(CC) \
	    -DMPIXLA_FAKE_DEVICE=ON -DMPIXLA_WERROR=ON >build/fake-device.log || { cat build/fake-device.log >&2; exit 1; }
	@$(BIN)/cmake --build build/fake-device --target fake_device >build/fake-device.log 2>&1 || { cat build/fake-device.log >&2; exit 1; }

# The C tests on a 64-bit ARM, compiled by Zig (see the wheels) and run under QEMU with Debian's C library for it. Archives
# of foreign objects take an archiver that knows them. The fake GPU needs a newer C library than the wheels (memfd_create).
AARCH64_LIBRARIES ?= /usr/aarch64-linux-gnu

aarch64-is-there:
	@command -v qemu-aarch64 >/dev/null || { echo "qemu-aarch64 was not found: install it (on Debian: apt-get install qemu-user)" >&2; exit 1; }
	@test -e $(AARCH64_LIBRARIES)/lib/ld-linux-aarch64.so.1 || { echo "$(AARCH64_LIBRARIES) has no C library for ARM: install it (on Debian: apt-get install libc6-arm64-cross), or name another folder with AARCH64_LIBRARIES=..." >&2; exit 1; }

test-aarch64: export ZIG_GLOBAL_CACHE_DIR = $(CURDIR)/build/zig
test-aarch64: aarch64-is-there $(VENV)/installed $(DIST_VENV)/installed ## run the C tests as they are on ARM, under QEMU
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

test-aarch64-python: aarch64-is-there $(VENV)/installed $(DIST_VENV)/installed ## and the self-test of the wheel for ARM, with MPICH
	@rm -f dist/*.whl && $(MAKE) --no-print-directory wheel-linux-aarch64
	PATH="$(CURDIR)/$(DIST_BIN):$$PATH" tools/aarch64-python build/aarch64-python dist/*_aarch64.whl '$(AARCH64_MPICH)'
	MPIR_CVAR_CH4_CMA_ENABLE=0 $(LAUNCH) -n 2 build/aarch64-python/python -m mpixla test --timeout 600
