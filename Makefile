# SPDX-License-Identifier: Apache-2.0
# The commands of the project; scripts/ and CMakePresets.json do the work.

.DEFAULT_GOAL := help
.PHONY: help demo test test-random fuzz bench bench-accuracy bench-memory bench-methods bench-peers \
        bench-train format lint clean

# An interpreter with torch 2.11 or newer to use instead of installing torch into .venv.
PERFORMER_PYTHON ?=
export PERFORMER_PYTHON
export PYTHONDONTWRITEBYTECODE = 1

DATA ?=
PARTS ?=
ARGS ?=
SECONDS ?=

help:  ## list the targets
	@echo 'usage: make TARGET [PERFORMER_PYTHON=/path/to/python]'
	@sed -n 's/^\([a-z-]*\):.*## /  make \1|/p' $(firstword $(MAKEFILE_LIST)) | \
	  while IFS='|' read -r name text; do printf '%-20s%s\n' "$$name" "$$text"; done

demo:  ## set up, build, and train a small Performer on proteins; DATA=your.fasta for your own
	@scripts/setup
	@scripts/build performer
	@scripts/demo $(if $(DATA),--data '$(DATA)') $(ARGS)

test:  ## set up and run every test; PARTS="gcc python" for some (see scripts/test)
	@scripts/test $(PARTS)

bench:  ## set up, build and run the benchmark of the kernels; writes build/bench.jsonl
	@scripts/setup --no-torch
	@scripts/build --no-torch favor_bench
	@build/core/favor_bench --json build/bench.jsonl $(ARGS)

bench-peers:  ## measure public packages beside the kernels (an hour; ARGS=--quick: ten minutes)
	@scripts/bench_peers $(ARGS)

bench-train:  ## measure training, encoding, generating beside performer-pytorch (ARGS=--quick)
	@scripts/bench_train $(ARGS)

bench-memory:  ## memory and time of training steps against depth and length; build/memory.jsonl
	@scripts/setup
	@scripts/bench_memory $(ARGS)

bench-methods:  ## measure every method of attention beside public packages (ARGS=--quick)
	@scripts/bench_methods $(ARGS)

bench-accuracy:  ## error of every map and matrix against exact attention; build/accuracy.jsonl
	@scripts/setup --no-torch
	@scripts/build --no-torch favor_accuracy
	@build/core/favor_accuracy --json build/accuracy.jsonl $(ARGS)

test-random:  ## random problems against the reference; SECONDS=60 by default
	@scripts/setup --no-torch
	@scripts/build --no-torch favor_random_sweep
	@build/core/favor_random_sweep $(or $(SECONDS),60)

fuzz:  ## fuzz the attention calls under the sanitizers; SECONDS=60 by default
	@scripts/setup --no-torch --dev-tools
	@scripts/fuzz $(or $(SECONDS),60)

format:  ## format the C++ sources with clang-format 14
	@scripts/check_format

lint:  ## run clang-tidy 14 over the part without torch
	@scripts/lint

clean:  ## remove what was built (.venv, data and runs stay)
	rm -rf build
