PYTHON ?= .venv/bin/python

.PHONY: install train eval test explore check reports pages kernel

install: .venv/bin/python  ## all packages, those of the tests included
	$(PYTHON) -m pip install -q -r requirements-dev.txt

.venv/bin/python:
	python3 -m venv .venv

train:
	$(PYTHON) train.py

eval:
	$(PYTHON) eval.py

test:
	$(PYTHON) -m pytest -n 2 --dist loadfile

reports:  ## at the end of an issue that changes extras/page/*.js, *.css or *.html, or a document with a table of a run
	$(PYTHON) -m research.example_reports refresh
	$(PYTHON) -m research.documents

kernel:  ## after a change of extras/page/train/kernel.wat; then reports
	$(PYTHON) -m research.kernel

pages:  ## docs/*.html from README.md and docs/*.md, for the project's page
	$(PYTHON) -m research.documents pages

explore:  ## the tests with random cases, with new ones
	HYPOTHESIS_PROFILE=explore $(PYTHON) -m pytest tests/reliability/test_fuzz.py tests/extras/page/test_live_model.py

check:
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
