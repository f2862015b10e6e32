"""Engines that take long to start: one of each kind serves all tests of a session."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipeline.engines.vllm import VllmEngine, VllmOptions
from tests.pipeline.engines.helpers import answers, tiny_model

AsNew = Callable[..., VllmEngine]


@pytest.fixture(scope="session")
def vllm_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsNew]:
    """Gives the engine of some options as if it were new; really so if a test closed it."""
    pytest.importorskip("vllm", reason="make setup-engines installs it")
    made: dict[VllmOptions, VllmEngine] = {}
    tiny_folder = tmp_path_factory.mktemp("policy")
    tiny_model().save_pretrained(tiny_folder)

    def as_new(**changes: Any) -> VllmEngine:
        settings: dict[str, Any] = {"dtype": "float32", "max_live": 64, "kv_cache_gib": 0.25}
        options = VllmOptions(**settings | changes)
        if options not in made or made[options].closed:
            made[options] = VllmEngine(tiny_folder, "first", 256, options)
        answers(made[options])
        made[options].load_weights(tiny_model().state_dict(), "first")
        return made[options]

    yield as_new
    for engine in made.values():
        engine.close()
