"""Generation: token ids in, token ids and log-probabilities out. A backend is a module of its own."""

from pipeline.engines.protocol import Engine, Generation, GenerationRequest

__all__ = ["Engine", "Generation", "GenerationRequest"]
