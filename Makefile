# make book | make test      the two commands; both make .venv when it is missing
# make test-isa              the chapters on another instruction set: another processor's last bits (ISA=avx2)
# make refresh               run the chapters, store their outputs in book/*.ipynb, write the methods' pages (after a change)
# make lint | make clean | make env
# Another interpreter: PYTHON=python3.12 make book

ifndef PYTHON
PYTHON := $(shell for p in .venv/bin/python python3 python3.13 python3.12 python3.11; do \
    "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
endif
ifeq ($(strip $(PYTHON)),)
PYTHON := python3
endif

IN := .venv/bin/python
# Chapters draw through the notebook's own backend, whatever the shell says.
unexport MPLBACKEND

.PHONY: book test test-isa refresh lint clean env
book: env
	@$(IN) tools/book.py build

# loadfile: the cells of one notebook stay together, in order, in one worker; files in the order of conftest.py.
# nbval compares two chapters with their stored outputs; `make book`, which runs all chapters, compares all.
test: env
	@$(IN) -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 10 --nbval --nbval-cell-timeout 300 \
    tests book/04_mime.ipynb book/11_engine.ipynb

ISA := default
test-isa: env
	@$(IN) tools/book.py check --isa $(ISA)

refresh: env
	@$(IN) tools/book.py refresh && $(IN) tools/cards.py

lint: env
	@$(IN) -m ruff check . && $(IN) -m ruff format --check .

env:
	@"$(PYTHON)" tools/env.py

clean:
	rm -rf _build .pytest_cache .ruff_cache .hypothesis
