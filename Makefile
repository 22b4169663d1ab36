# One verb per developer job; `make` alone lists them. A machine needs Go, git, make, bash and
# a C compiler; `make deps` installs the rest. Everything made here goes to bin/ and .cache/.

SHELL := bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

GO ?= go
CACHE := .cache

# The binary is static, so everything is built and tested the way it ships.
export CGO_ENABLED := 0

# The version that `kiln version` prints. Without git (a source archive) it is "devel".
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
BUILD_FLAGS := -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)'

PLATFORMS := linux/amd64 linux/arm64 windows/amd64 darwin/arm64

# What the tests run against, and which missing tool makes a test fail instead of skip.
export KILN_PYTHON ?= $(CURDIR)/$(CACHE)/venv/bin/python
export KILN_OLD_PIP_PYTHON ?= $(CURDIR)/$(CACHE)/venv-old-pip/bin/python
export KILN_UV ?= $(CURDIR)/$(CACHE)/venv/bin/uv
comma := ,
export KILN_REQUIRE ?= actionlint,git,python,cc,nvcc,cuobjdump,uv,twine,old-pip,pypi-simple,sigstore$(if $(CI),$(comma)transformers$(comma)podman$(comma)chromium$(comma)ccache$(comma)mount$(comma)pidns)

# Knobs, as in `make test PKG=./wheel/... RUN=TestVersion`.
PKG ?= ./...
RUN ?=
BENCH ?= .
COUNT ?= 6
FUZZ ?= .
FUZZTIME ?= 30s

##@ Every day

## help: list the targets
.PHONY: help
help:
	@sed -n -e 's/^##@ \(.*\)/\n\1/p' -e 's/^## \([a-z0-9-]*\): \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 26

## build: build the static binary bin/kiln
.PHONY: build
build:
	$(GO) build $(BUILD_FLAGS) -o bin/kiln ./cmd/kiln

## quickstart: plan, build, audit, test, index and serve examples/hello-cuda, and install it with pip
.PHONY: quickstart
quickstart: build
	@dev/scripts/quickstart.sh

## deps: install what the tests need (python, g++, a venv in .cache/venv; in CI also podman and Chromium)
.PHONY: deps
deps:
	@dev/scripts/deps.sh

## test: install what the tests need and run all of them (PKG=./wheel RUN=TestX to limit)
# In CI results are never taken from the cache, and the order is shuffled. On a busy machine of two
# processors one test of ten thousand may fail for its neighbours: a few are run again alone,
# once, and the report shows what each had said.
TEST_FLAGS := -timeout 30m $(if $(RUN),-run '$(RUN)') $(if $(CI),-count=1 -shuffle=on)
TEST_DIR := $(CACHE)/test
.PHONY: test
test: deps $(CACHE)/tools/gotestsum $(CACHE)/tools/actionlint
	@mkdir -p $(TEST_DIR)
	@status=0; \
	$(CACHE)/tools/gotestsum --format pkgname --format-hide-empty-pkg --hide-summary=skipped \
	  $(if $(CI),--rerun-fails=1 --rerun-fails-max-failures=6 --rerun-fails-run-root-test) \
	  --packages '$(PKG)' --jsonfile $(TEST_DIR)/events.jsonl -- $(TEST_FLAGS) || status=$$?; \
	$(GO) run ./dev/scripts/testreport $(if $(CI),-strict) -allow dev/allowed-skips.txt \
	  -summary $(TEST_DIR)/summary $(TEST_DIR)/events.jsonl || status=1; \
	exit $$status

## lint: golangci-lint, gofumpt, go vet, go mod tidy
# golangci-lint remembers its findings with the path of the checkout they were found in, and would
# report them, outside the exclusions by path, in another checkout: each has its own memory.
# Packages with files for Windows alone are read once more as they are there: 20 s of processor.
WINDOWS_PACKAGES := ./engine ./internal/fsx ./internal/memory ./internal/run ./machine ./model/quant/cuda
.PHONY: lint
lint: export GOLANGCI_LINT_CACHE := $(CURDIR)/$(CACHE)/golangci-lint
lint: $(CACHE)/tools/golangci-lint $(CACHE)/tools/gofumpt
	@status=0; run() { echo "$$*"; "$$@" || status=1; }; \
	run $(GO) mod tidy -diff; \
	run $(GO) vet ./...; \
	files=$$($(CACHE)/tools/gofumpt -l .) || status=1; \
	if [ -n "$$files" ]; then printf '%s\n' "not formatted, run 'make fmt':" "$$files"; status=1; fi; \
	run $(CACHE)/tools/golangci-lint run ./...; \
	run env GOOS=windows $(CACHE)/tools/golangci-lint run $(WINDOWS_PACKAGES); \
	exit $$status

## fmt: format all Go files
.PHONY: fmt
fmt: $(CACHE)/tools/gofumpt
	$(CACHE)/tools/gofumpt -w .

## generate: run go generate on all packages
.PHONY: generate
generate:
	$(GO) generate ./...

## check: what CI runs: lint, generate-check, cross, test, with the time of each
CHECK_STEPS := lint generate-check cross test
.PHONY: check
check:
	@rm -f $(TEST_DIR)/summary; failed=; times=; \
	for step in $(CHECK_STEPS); do \
	  printf '\n==> make %s\n' $$step; start=$$SECONDS; result=ok; \
	  $(MAKE) --no-print-directory $$step || { result=FAILED; failed="$$failed $$step"; }; \
	  times="$$times$$(printf '%5d s  %-16s %s' $$((SECONDS - start)) $$step $$result)"$$'\n'; \
	done; \
	printf '\n%s%5d s  in all\n' "$$times" $$SECONDS; \
	if [ -n "$$failed" ]; then echo "make check: failed:$$failed"; fi; \
	if [ -f $(TEST_DIR)/summary ]; then cat $(TEST_DIR)/summary; fi; \
	[ -z "$$failed" ]

## generate-check: fail if go generate changes a file
# The tree before and after is recorded through a scratch index, so that this works with
# uncommitted changes too and leaves nothing in the repository.
.PHONY: generate-check
generate-check:
	@set -e; scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; mkdir "$$scratch/objects"; \
	objects=$$(git rev-parse --path-format=absolute --git-path objects); \
	scratch_git() { GIT_INDEX_FILE="$$scratch/index" GIT_OBJECT_DIRECTORY="$$scratch/objects" \
	  GIT_ALTERNATE_OBJECT_DIRECTORIES="$$objects" git -c core.autocrlf=false -c core.safecrlf=false "$$@"; }; \
	scratch_git add -A .; before=$$(scratch_git write-tree); \
	$(GO) generate ./...; \
	scratch_git add -A .; after=$$(scratch_git write-tree); \
	if ! scratch_git --no-pager diff --exit-code --stat --patch "$$before" "$$after"; then \
	  echo "generated files are stale: run 'make generate' and commit the files above" >&2; exit 1; fi

## cross: build the commands and vet all packages for every supported platform
.PHONY: cross
cross:
	@set -e; for platform in $(PLATFORMS); do \
	  export GOOS=$${platform%/*} GOARCH=$${platform#*/}; \
	  echo "$$GOOS/$$GOARCH"; out=$(CACHE)/cross/$$GOOS-$$GOARCH; mkdir -p "$$out"; \
	  $(GO) build $(BUILD_FLAGS) -o "$$out/" ./cmd/...; \
	  $(GO) vet ./...; \
	done

## dist: make the files of a release in .cache/dist: binaries, wheels, man pages, checksums, SBOM, provenance (ONLY=linux/amd64 to limit, SIGN_KEY=file, TAG=the version it must be)
.PHONY: dist
dist:
	$(GO) run ./dev/dist -out $(CACHE)/dist $(if $(ONLY),-only '$(ONLY)') $(if $(SIGN_KEY),-sign-key '$(SIGN_KEY)') $(if $(TAG),-tag '$(TAG)')

## site: make the documentation site in .cache/site, with MkDocs; a dead link or anchor is an error
.PHONY: site
site:
	@[ -x $(CACHE)/venv-site/bin/mkdocs ] || { python3 -m venv $(CACHE)/venv-site && $(CACHE)/venv-site/bin/python -m pip install --quiet --disable-pip-version-check -r dev/python/site.txt; }
	python3 dev/scripts/site.py $(CACHE)/site-pages
	NO_MKDOCS_2_WARNING=1 $(CACHE)/venv-site/bin/mkdocs build --strict --quiet
	@echo "made $(CACHE)/site/index.html"

## pictures: make the pictures of the README anew: a screenshot of a plan (Chromium) and a recording of make quickstart
.PHONY: pictures
pictures: build
	$(GO) run ./dev/scripts/pictures -kiln bin/kiln -out docs/pictures

## clean: remove bin/ and .cache/
.PHONY: clean
clean:
	rm -rf bin .cache

##@ More tests

## test-race: run the tests under the race detector (needs cgo, slow)
.PHONY: test-race
test-race: deps
	CGO_ENABLED=1 $(GO) test -race -timeout 30m $(if $(RUN),-run '$(RUN)') $(PKG)

## test-arm64: test the packages with assembly for arm64, under qemu (PKG, RUN to limit)
.PHONY: test-arm64
test-arm64:
	@dev/scripts/arm64.sh

## attack: attack a running server in 400 ways: wrong answers, its memory, its health check (ATTACK_TIME=8s for each flood; a full disk needs root)
.PHONY: attack
attack: build
	@mkdir -p $(CACHE)/bench
	@$(GO) build -o $(CACHE)/bench/attack ./dev/attack
	@set -o pipefail; $(CACHE)/bench/attack -kiln bin/kiln -dir $(CACHE)/bench $(if $(ATTACK_TIME),-time $(ATTACK_TIME)) | tee $(CACHE)/bench/attack.txt

## fuzz: run every fuzz target for FUZZTIME (30s), two at a time (FUZZ=regexp to limit, RECORD=1 keeps what was found)
.PHONY: fuzz
fuzz:
	@$(GO) run ./dev/scripts/fuzzall -match '$(FUZZ)' -time $(FUZZTIME) $(if $(RECORD),-record) $(PKG)

## fuzz-all: what runs every night: every fuzz target for 60s, the result in .cache/fuzz/result.txt
.PHONY: fuzz-all
fuzz-all:
	@mkdir -p $(CACHE)/fuzz
	@set -o pipefail; nice -n 15 $(MAKE) --no-print-directory fuzz FUZZ=. FUZZTIME=60s | tee $(CACHE)/fuzz/result.txt

##@ Real systems, from end to end (RUN=TestX limits each)

## e2e-images: make the container images of the end-to-end tests from Debian packages (NAMES="ci trixie-torch26" to limit)
.PHONY: e2e-images
e2e-images:
	@dev/scripts/podman.sh
	dev/e2e/images.sh $(or $(NAMES),$$(dev/e2e/images.sh list))

## e2e-examples: build the examples for real, with every tool required and nothing from the cache
.PHONY: e2e-examples
e2e-examples:
	@$(MAKE) --no-print-directory test CI=true PKG=./examples/...

## e2e-packages: build, install and use packages of other people from the package index, on this machine and in containers (RUN=TestE2EPackages/pyyaml to limit; those with torch need 12 GB each)
.PHONY: e2e-packages
e2e-packages: export KILN_E2E := packages
e2e-packages: deps
	@$(if $(filter TestE2EPackages/%,$(RUN)),,dev/e2e/images.sh bookworm-cc bookworm-runtime && dev/e2e/share-images.sh && dev/e2e/stock-images.sh)
	$(GO) test ./dev/e2e -run '$(or $(RUN),^TestE2EPackages|^TestE2EContainerPackages)' -v -count=1 -timeout 12h

## e2e-build: build real rows in real containers, kill a build 50 times, exhaust memory (RUN=TestX to limit)
.PHONY: e2e-build
e2e-build: export KILN_E2E := build
e2e-build: deps e2e-images
	$(GO) test ./build ./dev/e2e -run '$(or $(RUN),^TestE2E|^TestKill)' -v -count=1 -timeout 3h

## e2e-stock: rows in look-alikes of stock images, with Pythons that the images lack and kiln brings (RUN=TestE2EStock/ubuntu to limit)
.PHONY: e2e-stock
e2e-stock: export KILN_E2E := stock
e2e-stock: deps
	@dev/e2e/stock-images.sh
	$(GO) test ./dev/e2e -run '$(or $(RUN),^TestE2EStock)' -parallel 3 -v -count=1 -timeout 3h

## e2e-share: compile once for several Pythons, in containers; a remote cache; kills (RUN=TestX to limit)
.PHONY: e2e-share
e2e-share: export KILN_E2E := share
e2e-share: export KILN_REQUIRE := ccache
e2e-share: deps
	@dev/e2e/share-images.sh
	@dev/e2e/images.sh trixie-runtime trixie-hip trixie-hip-runtime
	@dev/scripts/sharedeps.sh
	$(GO) test ./build ./build/launcher -run '$(or $(RUN),^TestKillShared|^TestLauncherKill)' -v -count=1 -timeout 1h
	$(GO) test ./dev/e2e -run '$(or $(RUN),^TestE2EShare)' -v -count=1 -timeout 3h

## e2e-slurm: a real Slurm of three nodes on this machine, from Debian's packages (root): 24 rows with four kinds of kills; limits, preemption, scratch, cache, podman (RUN=TestX)
.PHONY: e2e-slurm
e2e-slurm: export KILN_E2E := slurm
e2e-slurm: deps
	@dev/scripts/podman.sh
	@dev/e2e/images.sh ci
	@dev/scripts/sharedeps.sh
	dev/scripts/e2e-slurm.sh run $(GO) test ./engine/slurm -run '$(or $(RUN),^TestE2E)' -parallel 8 -v -count=1 -timeout 2h

## e2e-secrets: plant secrets in every address and variable, build on the host and in containers, publish, verify, and look for them everywhere
.PHONY: e2e-secrets
e2e-secrets: export KILN_E2E := secrets
e2e-secrets: export KILN_REQUIRE := python,python3.11,git,podman,pidns
e2e-secrets: deps
	@dev/e2e/images.sh ci
	$(GO) test ./dev/e2e -run '^TestE2ESecrets$$' -v -count=1 -timeout 1h

## e2e-audit: compare audits with auditwheel, cuobjdump and the loader (KILN_AUDIT_PYTHON, KILN_AUDIT_PYTHONS, KILN_CUOBJDUMP; RUN=TestX)
.PHONY: e2e-audit
e2e-audit: export KILN_E2E := audit
e2e-audit: export KILN_REQUIRE := cuobjdump,python3.8,python3.11,python3.12,python3.13
e2e-audit:
	$(GO) test ./audit -run '$(or $(RUN),^TestE2E)' -v -count=1 -timeout 120m

## e2e-torch-abi: an extension with pybind11, the same with CUDA, and one on the stable ABI, built with five torch releases of PyPI and run under each other: predictions beside what happens (KINDS="cuda" to limit; range requests, 1 GB)
.PHONY: e2e-torch-abi
e2e-torch-abi: export KINDS ?= ordinary cuda stable
e2e-torch-abi: deps
	"$$(dev/scripts/python.sh 3.12)" -m venv .cache/torch-abi/venv
	.cache/torch-abi/venv/bin/pip install -q filelock typing-extensions sympy networkx jinja2 fsspec numpy setuptools
	.cache/torch-abi/venv/bin/python dev/e2e/torch-slim.py .cache/torch-slim cp312-2.8.0 cp312-2.9.1 cp312-2.10.0 cp312-2.12.1 cp312-2.13.0
	$(GO) build -o .cache/torch-abi/kiln ./cmd/kiln
	.cache/torch-abi/venv/bin/python dev/e2e/truth-table.py .cache/torch-abi/kiln .cache/torch-slim .cache/torch-abi/work 2.8.0 2.9.1 2.10.0 2.12.1 2.13.0
	rm -rf .cache/torch-abi

## e2e-torch-wheels: the table of real wheels of docs/audit.md: fetches 46 wheels of PyPI one at a time, audits them, and prints it (5 GB)
.PHONY: e2e-torch-wheels
e2e-torch-wheels: deps
	$(GO) build -o .cache/torch-wheels/kiln ./cmd/kiln
	$(KILN_PYTHON) dev/e2e/torch-wheels.py .cache/torch-wheels/kiln .cache/torch-wheels
	rm -rf .cache/torch-wheels

## e2e-exllamav2-rows: compiles ExLlamaV2's C++ code with three torch releases and counts what reuse leaves to compile of its 88 rows (range requests, 300 MB)
.PHONY: e2e-exllamav2-rows
e2e-exllamav2-rows: export KILN_E2E := exllamav2-rows
e2e-exllamav2-rows: deps
	"$$(dev/scripts/python.sh 3.12)" dev/e2e/exllamav2-wheels.py .cache/exllamav2-rows 2.3.1 2.4.0 2.7.0
	$(GO) test ./dev/e2e -run '^TestE2EExllamav2Rows$$' -v -count=1
	rm -rf .cache/exllamav2-rows

## e2e-reuse: an ordinary torch extension for 2 Pythons and 3 torch releases with reuse: compiled once for each class, proven for the rest, installed from every view (range requests, 1 GB)
.PHONY: e2e-reuse
e2e-reuse: deps
	$(KILN_PYTHON) dev/e2e/torch-slim.py .cache/torch-slim cp312-2.10.0 cp312-2.12.1 cp312-2.13.0 cp313-2.10.0 cp313-2.12.1 cp313-2.13.0
	$(GO) build -o .cache/reuse/kiln ./cmd/kiln
	dev/e2e/reuse.sh $(CURDIR)/.cache/reuse/kiln .cache/torch-slim .cache/reuse/work
	rm -rf .cache/reuse

## e2e-toolchain: ten containers that each lack one thing: diagnosis, fix, success (RUN=TestX/name to limit)
.PHONY: e2e-toolchain
e2e-toolchain: export KILN_E2E := toolchain
e2e-toolchain: deps
	dev/e2e/images.sh ci bookworm-cuda118 trixie-cuda124 trixie-torch26
	$(GO) test ./dev/e2e -run '$(or $(RUN),^TestE2EToolchain$$)' -v -count=1 -timeout 2h

## e2e-first-hour: kiln from a release, as a wheel and as a program, on a bare Debian with and without Python; then the whole tutorial
.PHONY: e2e-first-hour
e2e-first-hour: export KILN_E2E := first-hour
e2e-first-hour: deps
	@dev/e2e/images.sh ci bookworm-cc
	@dev/e2e/stock-images.sh pythons
	$(MAKE) --no-print-directory dist ONLY=linux/amd64
	$(GO) test ./dev/e2e -run '^TestE2EFirstHour' -v -count=1 -timeout 1h

## e2e-wine: the Windows binary of kiln doctor under Wine, with made-up installations of Visual Studio and CUDA
.PHONY: e2e-wine
e2e-wine: export KILN_E2E := wine
e2e-wine: deps
	dev/e2e/images.sh trixie-runtime
	$(GO) test ./dev/e2e -run '^TestE2EWine$$' -v -count=1 -timeout 1h

## e2e-windows: kiln.exe under Wine, with Windows' CPython and stand-ins of Visual Studio: build, audit, test, publish, serve, kills, the workflow of examples/exllamav2 by act (RUN=TestX to limit)
.PHONY: e2e-windows
e2e-windows: export KILN_E2E := windows
e2e-windows: deps $(CACHE)/tools/act
	dev/e2e/images.sh trixie-wine
	dev/e2e/windows-python.sh
	$(GO) test ./dev/e2e -run '$(or $(RUN),^TestE2EWindows)' -parallel 3 -v -count=1 -timeout 2h

## e2e-jit: kiln jit with HIP sources, and with prebuilt modules for this and for another torch, in containers (RUN=TestX to limit)
.PHONY: e2e-jit
e2e-jit: export KILN_E2E := jit-hip,jit-prebuilt
e2e-jit: deps
	dev/e2e/images.sh trixie-hip
	@dev/e2e/share-images.sh
	$(GO) test ./dev/e2e -run '$(or $(RUN),^TestE2EJIT)' -v -count=1 -timeout 1h

## e2e-jit-exllamav2: exllamav2 from PyPI, unedited, through python -m kiln.torch in a container: kills, eight processes at once (half an hour of processor)
.PHONY: e2e-jit-exllamav2
e2e-jit-exllamav2: export KILN_E2E := jit-exllamav2
e2e-jit-exllamav2: deps
	dev/e2e/images.sh trixie-torch26
	$(GO) test ./dev/e2e -run '^TestE2EJITExLlamaV2$$' -v -count=1 -timeout 4h

## e2e-jit-programs: the calls of twenty programs with torch's loader and with kiln's, in a container (half an hour of processor)
.PHONY: e2e-jit-programs
e2e-jit-programs: export KILN_E2E := jit-programs
e2e-jit-programs: deps
	dev/e2e/images.sh trixie-torch26
	$(GO) test ./dev/e2e -run '^TestE2EJITPrograms$$' -v -count=1 -timeout 4h

## e2e-jit-rocm: a ROCm row of hello-cuda; exllamav2's extension translated for ROCm, beside torch's own hipify, and compiled as far as there is no torch for ROCm; kiln workflow rocm with apt
.PHONY: e2e-jit-rocm
e2e-jit-rocm: export KILN_E2E := jit-rocm
e2e-jit-rocm: deps
	dev/e2e/images.sh trixie-torch26 trixie-hip trixie-hip-runtime ci
	$(GO) test ./dev/e2e -run '^TestE2E((JIT|Workflow)ROCm|ROCmRow)$$' -v -count=1 -timeout 1h

## e2e-index: all clients of the index, public and private, 100 uploads and publishes with kills (RUN=TestX to limit)
.PHONY: e2e-index
e2e-index: export KILN_E2E := index
e2e-index: deps
	$(GO) test ./index/... $(if $(RUN),-run '$(RUN)') -v -count=1 -timeout 60m
	$(GO) test ./dev/e2e -run '$(or $(RUN),^TestE2EPrivate$$)' -v -count=1 -timeout 20m

## e2e-publish: publish to a real S3 server and a GitHub server with faults and kills, 200 times (RUN=TestX, KILN_PUBLISHES=200)
.PHONY: e2e-publish
e2e-publish: export KILN_E2E := publish
e2e-publish: $(CACHE)/tools/versitygw
	$(GO) test ./publish -run '$(or $(RUN),^TestE2E)' -v -count=1 -timeout 60m

## e2e-workflow: run generated workflows for real, on this machine, with nektos/act (RUN=TestX to limit; the images need root)
.PHONY: e2e-workflow
e2e-workflow: export KILN_E2E := workflow
e2e-workflow: deps build $(CACHE)/tools/act
	@dev/e2e/stock-images.sh workflow
	$(GO) test ./workflow -run '$(or $(RUN),^TestE2EWorkflow)' -v -count=1 -timeout 3h

## e2e-model: compare compiled models with the reference and with exllamav2's own, load them with it, run its converter (RUN=TestX to limit)
.PHONY: e2e-model
e2e-model: export KILN_E2E := model
e2e-model: export KILN_EXLLAMAV2_PYTHON ?= $(CURDIR)/$(CACHE)/venv-exllamav2/bin/python
e2e-model: deps
	@dev/scripts/torchvenv.sh exllamav2
	$(GO) test ./model/exl2 -run '$(or $(RUN),^TestE2E)' -v -count=1 -timeout 60m

## e2e-python: the Python package, built, audited, tested and published by kiln, then installed with pip (KILN=path of another kiln)
.PHONY: e2e-python
e2e-python: deps build
	@dev/scripts/pythonwheel.sh

## e2e-windows-audit: audits of Windows modules beside Wine's loader and CPython, and of wheels of PyPI beside delvewheel (RUN=TestX to limit)
.PHONY: e2e-windows-audit
e2e-windows-audit: export KILN_E2E := windows-audit
e2e-windows-audit: export KILN_AUDIT_PYTHON := $(KILN_PYTHON)
e2e-windows-audit: export KILN_DELVEWHEEL := $(CURDIR)/$(CACHE)/venv-delvewheel/bin/delvewheel
e2e-windows-audit: deps
	@dev/scripts/podman.sh
	@dev/scripts/mingw.sh
	dev/e2e/images.sh trixie-wine
	dev/e2e/windows-python.sh
	@[ -x $(KILN_DELVEWHEEL) ] || { python3 -m venv $(CACHE)/venv-delvewheel && $(CACHE)/venv-delvewheel/bin/python -m pip install --quiet --disable-pip-version-check -r dev/python/delvewheel.txt; }
	$(GO) test ./audit -run '$(or $(RUN),^TestE2EWindows)' -v -count=1 -timeout 2h

## e2e-windows-python: the Python package for Windows, made with mingw-w64, in Windows' CPython under Wine: golden matrices, its tests, a stand-in for nvcuda.dll
.PHONY: e2e-windows-python
e2e-windows-python: export KILN_E2E := windows-python
e2e-windows-python: deps
	@dev/scripts/podman.sh
	@dev/scripts/mingw.sh
	dev/e2e/images.sh trixie-wine
	dev/e2e/windows-python.sh 3.12
	$(GO) test ./dev/e2e -run '^TestE2EWindowsPython$$' -v -count=1 -timeout 1h

##@ Measurements, each beside a peer or a limit in the same run

## bench: run all benchmarks into .cache/bench (BENCH=regexp COUNT=6; OLD=file compares)
BENCH_FILE := $(CACHE)/bench/$(VERSION).txt
.PHONY: bench
bench: $(CACHE)/tools/benchstat
	@mkdir -p $(CACHE)/bench
	@set -o pipefail; $(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) -timeout 2h $(PKG) \
	  | grep -v -e '\[no test files\]$$' | tee $(BENCH_FILE)
	@$(CACHE)/tools/benchstat $(OLD) $(BENCH_FILE)
	@echo "written to $(BENCH_FILE)"

## bench-plan: time and memory of expanding a plan of 1,000, 10,000 and 100,000 rows
.PHONY: bench-plan
bench-plan:
	@mkdir -p $(CACHE)/bench
	@set -o pipefail; $(GO) test ./matrix -run '^$$' -bench '^BenchmarkPlan$$' -benchmem -timeout 30m \
	  | tee $(CACHE)/bench/plan.txt
	@grep -q 'BenchmarkPlan/rows=' $(CACHE)/bench/plan.txt || { echo "matrix has no BenchmarkPlan/rows=N" >&2; exit 1; }

## bench-build: the scheduler against make and ninja: 10,000 rows that do nothing, journal, memory (ROWS=10000)
.PHONY: bench-build
bench-build: deps
	@mkdir -p $(CACHE)/bench
	@set -o pipefail; $(GO) run ./dev/bench/build -dir $(CACHE)/bench $(if $(ROWS),-rows $(ROWS)) | tee $(CACHE)/bench/build.txt

## bench-slurm: many rows on a simulated cluster, a node for 50 rows: makespan, memory, calls of Slurm (ROWS=10000)
.PHONY: bench-slurm
bench-slurm:
	KILN_SIM_ROWS=$(or $(ROWS),10000) $(GO) test ./engine/slurm -run '^TestSimulation$$' -v -count=1 -timeout 1h

## bench-share: what the compiler launcher adds to a call, beside the same call without it (CALLS=200)
.PHONY: bench-share
bench-share: build
	@mkdir -p $(CACHE)/bench
	@set -o pipefail; $(GO) run ./dev/bench/share -kiln bin/kiln $(if $(CALLS),-runs $(CALLS)) | tee $(CACHE)/bench/share.txt

## bench-audit: auditing one large library against auditwheel and cuobjdump (LIBRARY=path; AUDITWHEEL=path, CUOBJDUMP=path where they are not on PATH)
.PHONY: bench-audit
bench-audit: deps build
	@mkdir -p $(CACHE)/bench
	@set -o pipefail; $(GO) run ./dev/bench/audit -kiln bin/kiln -library '$(LIBRARY)' $(if $(AUDITWHEEL),-auditwheel '$(AUDITWHEEL)') \
	  $(if $(CUOBJDUMP),-cuobjdump '$(CUOBJDUMP)') | tee $(CACHE)/bench/audit.txt

## bench-jit: kiln jit beside torch.utils.cpp_extension.load: cold, warm, after an upgrade of torch, after a kill (JIT_ROUNDS=1)
.PHONY: bench-jit
bench-jit: build
	@dev/scripts/podman.sh
	@dev/e2e/images.sh trixie-torch26
	@mkdir -p $(CACHE)/bench
	@set -o pipefail; dev/bench/jit/run.sh $(or $(JIT_ROUNDS),1) | tee $(CACHE)/bench/jit.txt

## bench-index: a static index of 100,000 files against dumb-pypi, then bench-serve (FILES=100000)
.PHONY: bench-index
bench-index: deps build
	@mkdir -p $(CACHE)/bench
	@set -o pipefail; $(GO) run ./dev/bench/index -python '$(KILN_PYTHON)' $(if $(FILES),-files $(FILES)) | tee $(CACHE)/bench/index.txt
	@$(MAKE) --no-print-directory bench-serve

## bench-serve: the server against nginx, pypiserver and devpi, also on 200 connections; memory of a large upload (WITHOUT=devpi leaves servers out)
.PHONY: bench-serve
bench-serve: deps build
	@mkdir -p $(CACHE)/bench
	@set -o pipefail; $(GO) run ./dev/bench/serve -python '$(KILN_PYTHON)' $(if $(WITHOUT),-without '$(WITHOUT)') | tee $(CACHE)/bench/serve.txt

## bench-publish: uploading 500 files of 1 MB and 4 of 500 MB to an S3 server, against mc cp and plain HTTP uploads (FILES, LARGE)
.PHONY: bench-publish
bench-publish: $(CACHE)/tools/versitygw $(CACHE)/tools/mc
	@mkdir -p $(CACHE)/bench
	@set -o pipefail; $(GO) run ./dev/bench/publish -server $(CACHE)/tools/versitygw -mc $(CACHE)/tools/mc -dir $(CACHE)/bench $(if $(FILES),-files $(FILES)) $(if $(LARGE),-large $(LARGE)) \
	  | tee $(CACHE)/bench/publish.txt

## bench-model: compiling and resharding a model against copying its bytes: time and memory (SIZE=6GB RUNS=3, ONLY=compile or reshard)
SIZE ?= 6GB
RUNS ?= 3
.PHONY: bench-model
bench-model: deps build
	@mkdir -p $(CACHE)/bench
	@set -o pipefail; $(GO) run ./dev/bench/model -size '$(SIZE)' -runs $(RUNS) -dir $(CACHE)/bench -python '$(KILN_PYTHON)' -only '$(ONLY)' \
	  | tee $(CACHE)/bench/model-$(subst $() ,,$(SIZE)).txt

## bench-quant: quantized products against ggml, OpenBLAS and the memory's speed (ROUNDS=20)
ROUNDS ?= 20
.PHONY: bench-quant
bench-quant: deps
	@dev/bench/quant/peers.sh
	@mkdir -p $(CACHE)/bench
	@set -o pipefail; $(GO) run ./dev/bench/quant -rounds $(ROUNDS) | tee $(CACHE)/bench/quant.txt

##@ On a machine with an NVIDIA GPU

## gpu-check: conformance of the CUDA kernels on this machine's GPU, then compute-sanitizer (kiln-gpu built elsewhere: KILN_GPU=path)
.PHONY: gpu-check
gpu-check:
	@if command -v $(GO) >/dev/null; then $(GO) build -o $(CACHE)/gpu/kiln/kiln-gpu ./cmd/kiln-gpu; fi
	@mkdir -p $(CACHE)/bench
	@dev/scripts/gpucheck.sh $(CACHE)/bench

## gpu-bench: the CUDA kernels beside cuBLAS on this machine's GPU; with KILN_BASELINE=times of other kernels, fails where a goal is missed (python3)
.PHONY: gpu-bench
gpu-bench:
	@if command -v $(GO) >/dev/null; then $(GO) build -o $(CACHE)/gpu/kiln/kiln-gpu ./cmd/kiln-gpu; fi
	@mkdir -p $(CACHE)/bench
	@dev/scripts/gpubench.sh $(CACHE)/bench

## gpu-python: the Python package with torch on this machine's GPU (PYTHON=interpreter with torch; ONLY=build makes what travels to one)
.PHONY: gpu-python
gpu-python:
	@dev/scripts/gpupython.sh $(CACHE)/gpu-python $(ONLY)

## gpu-transformers: models of Llama's shapes in transformers on this machine's GPU (EXLLAMAV2=folder with exllamav2 to compare; SHAPES=8b WIDTHS=4.0 to limit; PYTHON, ONLY as above)
.PHONY: gpu-transformers
gpu-transformers:
	@dev/scripts/gputransformers.sh $(CACHE)/gpu-transformers $(ONLY)

# The tools are pinned in dev/tools/go.mod and built once; the build cache makes that quick in a second clone.
TOOL_SOURCES := dev/tools/go.mod dev/tools/go.sum
$(CACHE)/tools/golangci-lint: TOOL := github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(CACHE)/tools/gotestsum: TOOL := gotest.tools/gotestsum
$(CACHE)/tools/gofumpt: TOOL := mvdan.cc/gofumpt
$(CACHE)/tools/benchstat: TOOL := golang.org/x/perf/cmd/benchstat
$(CACHE)/tools/actionlint: TOOL := github.com/rhysd/actionlint/cmd/actionlint
$(CACHE)/tools/golangci-lint $(CACHE)/tools/gotestsum $(CACHE)/tools/gofumpt $(CACHE)/tools/benchstat $(CACHE)/tools/actionlint: $(TOOL_SOURCES)
	@mkdir -p $(@D)
	$(GO) build -C dev/tools -trimpath -buildvcs=false -o ../../$@ $(TOOL)
	@touch $@

# Servers and programs of the end-to-end tests are too large for dev/tools/go.mod: they come from the module proxy, at
# exact versions.
$(CACHE)/tools/act: MODULE := github.com/nektos/act@v0.2.89
$(CACHE)/tools/versitygw: MODULE := github.com/versity/versitygw/cmd/versitygw@v1.8.0
$(CACHE)/tools/mc: MODULE := github.com/minio/mc@v0.0.0-20250313080218-cf909e1063a9
$(CACHE)/tools/act $(CACHE)/tools/versitygw $(CACHE)/tools/mc:
	@mkdir -p $(@D)
	GOBIN=$(CURDIR)/$(CACHE)/tools GOFLAGS= $(GO) install -trimpath -ldflags '-s -w' $(MODULE)
