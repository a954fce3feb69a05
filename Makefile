# make book | make test      the two commands; both make .venv when it is missing
# make pages                 render the pages from stored outputs: nothing is run, under a minute
# make test-fast             the tests that see most mistakes, under two minutes on two cores
# make test-isa              the chapters on another instruction set: another processor's last bits (ISA=avx2)
# make refresh               run the chapters, store their outputs in book/*.ipynb, write the methods' pages (after a change)
# make lock                  requirements.lock anew: the newest that requirements.txt allows, with hashes
# make kit | make pdf          for teachers, into kit/: notebooks, assignments, slides, methods, syllabus; the book on paper
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

.PHONY: book pages test test-fast test-isa refresh kit pdf lock lint clean env
# The tests of built pages, also in a browser, look at those that were just made.
book: env
	@$(IN) tools/book.py build
	@FEDCORE_BOOK=_build/html $(IN) -m pytest -q -n 2 --maxschedchunk 1 -m built tests/book/test_book.py tests/book/test_browser.py

# BOOK_URL and BOOK_REPOSITORY, where set, say where the pages and their source stand.
pages: env
	@$(IN) tools/book.py pages

# loadfile: the cells of one notebook stay together, in order, in one worker; files in the order of conftest.py.
# nbval compares the engine's chapter with its stored outputs, and two more in turn by the day of the last commit;
# `make book`, which runs all chapters, compares all.
test: env
	@$(IN) -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 10 -m "not built" \
    --nbval --nbval-cell-timeout 300 tests book/engine.ipynb $$($(IN) tools/book.py turn)

# The methods against their loops and limiting cases, data, errors of rounds, gradients, and what something new still lacks.
FAST := tests/rules/test_reference.py tests/rules/test_exact.py tests/rules/test_probes.py tests/data \
    tests/round/test_errors.py tests/round/test_local_work.py \
    tests/engine/test_engine.py tests/engine/test_modules.py tests/engine/test_sequences.py \
    tests/tools/test_lacking.py tests/tools/test_names.py tests/tools/test_structure.py
test-fast: env
	@$(IN) -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder $(FAST)

ISA := default
test-isa: env
	@$(IN) tools/book.py check --isa $(ISA)

refresh: env
	@$(IN) tools/book.py refresh && $(IN) tools/cards.py && $(IN) tools/page_cells.py

kit: env
	@$(IN) tools/kit.py

# By Chromium's print; without one a line says so.
pdf: pages
	@$(IN) tools/kit.py pdf

lint: env
	@$(IN) -m ruff check . && $(IN) -m ruff format --check .

env:
	@"$(PYTHON)" tools/env.py

lock: env
	@$(IN) tools/env.py lock

clean:
	rm -rf _build build kit .pytest_cache .ruff_cache .hypothesis
