# The two commands of the README: `make demo` and `make test`. Both make their own virtual environments here.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
DEMO := .venv-demo
TEST := .venv-test
AIHUB := .venv-aihub
PIP_FLAGS := --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-slow lint clean

demo: $(DEMO)/.ready
	$(DEMO)/bin/edgekit build samples/vision/model.onnx --profile jetson --data samples/vision/data --max-drop 1%

$(DEMO)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python -m pip install $(PIP_FLAGS) .
	touch $@

test test-slow: export EDGEKIT_AIHUB_PYTHON := $(CURDIR)/$(AIHUB)/bin/python

test: $(TEST)/.ready $(AIHUB)/.ready lint
	$(TEST)/bin/python -m pytest -n 2

test-slow: $(TEST)/.ready $(AIHUB)/.ready
	$(TEST)/bin/python -m pytest -n 2 -m slow

lint: $(TEST)/.ready
	$(TEST)/bin/ruff check
	$(TEST)/bin/ruff format --check
	$(TEST)/bin/mypy
	$(TEST)/bin/lint-imports

$(TEST)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TEST)
	$(TEST)/bin/python -m pip install $(PIP_FLAGS) -e '.[dev]'
	touch $@

# Qualcomm's client, and onnxruntime for the stand-in of its service.
$(AIHUB)/.ready: tests/aihub-constraints.txt
	$(PYTHON) -m venv $(AIHUB)
	$(AIHUB)/bin/python -m pip install --quiet --disable-pip-version-check -c $< qai-hub onnxruntime
	touch $@

clean:
	rm -rf $(DEMO) $(TEST) $(AIHUB) dist build edgekit-out
