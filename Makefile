# Every command of a developer; `make` prints them.
PYTHON ?= python3
RUN = $(PYTHON) tools/test.py
LINT = $(RUN) --group lint --group fuzz --module
OWNED = $(foreach suite,actions identities strong usage input_files runtime hostile text recovery,tests/cli/test_$(suite).py)

.DEFAULT_GOAL := help
.PHONY: help setup demo fmt lint type test contract stateful crash stress served cycled cover mutants bench zipapp verify check clean

help: ## print what can be made
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) \
	| while IFS='|' read -r name text; do printf '%-10s %s\n' "$$name" "$$text"; done

setup: ## make the virtual environment with all development groups
	$(RUN) --group lint --group fuzz --prepare

demo: ## play the whole story in a temporary directory
	$(PYTHON) -m qinglong_edge demo

fmt: ## format the code and apply the safe fixes of the linter
	$(LINT) ruff format .
	$(LINT) ruff check --fix .

lint: ## check style and formatting
	$(LINT) ruff check .
	$(LINT) ruff format --check .

type: ## check the types of program, tests and scripts
	$(LINT) mypy

test: ## run the tests, without crash, stress and stateful
	$(RUN)

contract: ## run the suite that every adapter must pass
	$(RUN) tests/contract

stateful: ## let hypothesis play random lives against the model
	$(RUN) --group fuzz tests/stateful

crash: ## kill real processes at every durable step
	$(RUN) tests/crash

stress: ## race eight real processes on one database
	$(RUN) tests/stress

served: ## run the command line's tests while a daemon owns the state
	QINGLONG_EDGE_TEST_WAY=serve $(RUN) $(OWNED)

cycled: ## run the command line's tests while a long cycle owns the state
	QINGLONG_EDGE_TEST_WAY=cycle $(RUN) $(OWNED)

cover: ## count the lines of the program that the in-process suites run (.cover/ has the files)
	rm -rf .cover && mkdir .cover
	$(RUN) --module trace -- --count --missing --summary --coverdir .cover \
	  --module pytest -q -p no:cacheprovider tests/unit tests/contract >.cover/summary
	find .cover -type f -name '*.cover' ! -name 'qinglong_edge.*' -delete
	@grep -E '^lines| qinglong_edge\.|[0-9]+ (passed|failed|error)' .cover/summary
	@! grep -qE '[0-9]+ (failed|error)' .cover/summary  # trace itself hides how pytest ended

mutants: ## remove each guard of the domain in turn; a test must notice (OF="--module dispatch")
	$(RUN) --module tools.mutants -- $(OF)

bench: ## measure, beside a floor in the same run
	@find bench -name 'test_*.py' 2>/dev/null | grep -q . || { echo 'bench: no benchmark in bench/' >&2; exit 1; }
	$(RUN) bench

zipapp: ## build dist/qinglong-edge.pyz and prove that the build is reproducible
	$(PYTHON) zipapp/build.py --check
	$(PYTHON) zipapp/build.py

verify: ## check that generated papers are fresh and that papers point at things that exist
	$(PYTHON) tools/draw_machines.py --check
	$(PYTHON) tools/check_docs.py

check: ## do what continuous integration does
	bash .ci/run

clean: ## remove what was made here
	rm -rf .venv .cover .hypothesis .benchmarks .mypy_cache .pytest_cache .ruff_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
