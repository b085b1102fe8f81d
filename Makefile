.PHONY: help bench test seeds one lint docs
help: ## this list
	@sed -nE 's/^([a-z]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 14
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
