.PHONY: help bench test seeds one lint docs cuda-build cuda
help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 18
bench: ## set up .venv, build, print the benchmark tables (ARGS="--micro" ...)
	@bash .ci/dev bench $(ARGS)
test: ## set up .venv, build, run every test, Python and C++ (ARGS="-k NAME" ...)
	@bash .ci/dev test $(ARGS)
seeds: ## tests of devices, each under 20 random orders of streams (ARGS="-n 4" ...)
	@.venv/bin/python -m pytest -q tests/device --seeds 20 $(ARGS)
one: ## rebuild what changed and run one test (TEST=tests/executor/test_calls.py::NAME or TEST=test_runtime ARGS=FILTER)
	@bash .ci/one $(TEST) $(ARGS)
lint: ## format, lint and types, as CI checks them (ARGS=--fix mends what a tool can)
	@bash .ci/lint $(ARGS)
docs: ## write the generated files of docs/ again
	@for script in docs/make_*.py; do .venv/bin/python $$script; done
cuda-build: ## on a machine with a GPU: build with plain CMake in build/cuda
	@bash .ci/cuda build
cuda: ## on a machine with a GPU: check and time everything there (.ci/cuda run: exit 0 passed, 1 failed, 2 no GPU)
	@bash .ci/cuda run $(ARGS)
