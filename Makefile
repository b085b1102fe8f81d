.PHONY: test bench
bench:
	@bash .ci/dev bench $(ARGS)
test:
	@bash .ci/dev test $(ARGS)
