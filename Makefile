# Two commands on a bare clone do everything: `make demo` and `make test`. Each makes .venv if it is missing.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
WORKERS ?= 3
DATA ?= data

.PHONY: help demo zoo test soak check bench bench-local bench-network bench-wire bench-serve bench-servers bench-stages clean
help:
	@echo "make demo    one script alone, with 2 workers, with a worker killed, over 20 Mbit/s: a table and a picture"
	@echo "make test    run the tests            make check   ruff, mypy, import-linter, codespell"
	@echo "make soak    the long tests, or one part of them: PART=faults (docs/testing.md)"
	@echo "make zoo     train and register the models of examples/models: minutes; DATA=DIR has MNIST and a text"
	@echo "make clean   remove .venv and caches"
	@echo "make bench   step time against DDP"
	@echo "make bench-network DATA=DIR   DDP, its hooks and our all-reduce in slow networks: about half an hour, as root"
	@echo "make bench-local DATA=DIR     rounds of local steps in slow networks and beside a slow worker, named plans, Hogwild: an hour, as root"
	@echo "make bench-serve              requests a second of shoal serve; PEERS='litserve=PYTHON ray=PYTHON' compares"
	@echo "make bench-servers DATA=DIR   parameter servers beside torch RPC, a Ray actor and DDP: half an hour, as root"
	@echo "make bench-stages             workers for each stage of a job beside fixed numbers: five minutes"
	@echo "make bench-wire DATA=DIR      codecs, DDP and its hooks at four link rates: about 35 minutes, as root"

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/python examples/demo.py

zoo: $(STAMP)
	$(BIN)/python examples/train_zoo.py $(if $(wildcard $(DATA)),--data $(DATA))
	$(BIN)/shoal models zoo

test: $(STAMP)
	scripts/debian.sh
	$(BIN)/python -m shoal.wire.kernels
	$(BIN)/python -m compileall -q src  # once, and not in every process that a test starts
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not soak" tests

soak: $(STAMP)
	scripts/debian.sh
	$(BIN)/python -m shoal.wire.kernels
	$(BIN)/python -m pytest -m soak --durations=10 $(if $(filter simulator codecs,$(PART)),-n $(WORKERS)) $(if $(PART),--part $(PART)) tests

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell

bench: $(STAMP)
	$(BIN)/python benchmarks/steps.py
	$(BIN)/python benchmarks/startup.py

bench-local: $(STAMP)
	$(BIN)/python benchmarks/local.py --data $(DATA)
	$(BIN)/python benchmarks/agreement.py --data $(DATA)
	$(BIN)/python benchmarks/hogwild.py

bench-network: $(STAMP)
	$(BIN)/python benchmarks/network.py --data $(DATA)
	$(BIN)/python docs/img/make.py

bench-wire: $(STAMP)
	$(BIN)/python benchmarks/wire.py --data $(DATA)
	$(BIN)/python benchmarks/wire_docs.py

bench-servers: $(STAMP)
	$(BIN)/python benchmarks/servers.py $(if $(wildcard $(DATA)),--data $(DATA))

bench-stages: $(STAMP)
	$(BIN)/python benchmarks/stages.py

bench-serve: $(STAMP)
	$(BIN)/python benchmarks/serve.py $(foreach peer,$(PEERS),--peer $(peer))

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
