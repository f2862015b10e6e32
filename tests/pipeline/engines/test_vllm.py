"""What only the vLLM engine promises: hand-offs to every replica, restarts, clear refusals."""

import os
import random
import signal

import pytest

from pipeline.engines.vllm import MAX_RESTARTS
from tests.pipeline.engines.conftest import AsNew
from tests.pipeline.engines.helpers import answers, ask, assert_agrees, some_requests, tiny_model

pytestmark = pytest.mark.slow

PAIR = {"replicas": 2}


def test_weights_reach_every_replica_tied_ones_once_or_twice(vllm_engine: AsNew) -> None:
    engine, requests = vllm_engine(**PAIR), some_requests(4)
    for seed in (1, 2, 3):
        other = tiny_model(seed)
        # As trainers name them.
        weights = other.state_dict() if seed == 1 else dict(other.named_parameters())
        engine.load_weights(weights, f"weights {seed}")
        assert_agrees(other, requests, answers(engine, requests))
        assert engine.policy_digest == f"weights {seed}"


def test_a_replica_that_dies_is_started_again_and_nothing_is_lost(vllm_engine: AsNew) -> None:
    engine, other = vllm_engine(**PAIR), tiny_model(1)
    engine.load_weights(other.state_dict(), "second")
    requests = some_requests(12, max_new_tokens=100, stop_token_ids=())
    engine.submit(requests)
    found = {generation.request_id: generation for generation in engine.collect()}
    os.kill(engine._replicas[0].worker.pid, signal.SIGKILL)
    later = answers(engine)
    assert not found.keys() & later.keys()
    found |= later
    assert found.keys() == {request.request_id for request in requests}
    assert_agrees(other, requests, found)  # with the weights that were handed over, not those of the folder


def test_a_replica_that_dies_asleep_is_started_again_with_the_weights_it_had(vllm_engine: AsNew) -> None:
    engine, requests = vllm_engine(**PAIR), some_requests(6)
    engine._restarts_left = MAX_RESTARTS
    engine.load_weights(tiny_model(1).state_dict(), "second")
    for wake, seed in (("requests", 1), ("weights", 2)):
        engine.sleep()
        os.kill(engine._replicas[0].worker.pid, signal.SIGKILL)
        if wake == "weights":
            engine.load_weights(tiny_model(2).state_dict(), "third")
        assert_agrees(tiny_model(seed), requests, answers(engine, requests))
    os.kill(engine._replicas[1].worker.pid, signal.SIGKILL)  # awake: sleep must not leave one running
    engine.sleep()
    assert {replica.state for replica in engine._replicas} == {"asleep"}
    engine.close()


def test_weights_of_another_model_are_refused(vllm_engine: AsNew) -> None:
    engine = vllm_engine()
    weights = dict(tiny_model().named_parameters())
    weights["model.other"] = weights.pop("model.norm.weight")
    with pytest.raises(ValueError, match=r"model\.norm\.weight.*missing.*model\.other.*unknown"):
        engine.load_weights(weights, "second")
    assert engine.policy_digest == "first"


def test_more_prompts_at_once_than_a_pass_takes_are_sampled_under_their_seeds(vllm_engine: AsNew) -> None:
    """Some 9,000 tokens, where a pass takes 4,096; a prompt that vLLM cuts in two upsets its seeds."""
    engine = vllm_engine()
    rng = random.Random(0)
    prompts = [[rng.randrange(2, 48) for _ in range(150 + i % 70)] for i in range(50)]
    requests = [ask(f"r{i}", prompt, seed=i) for i, prompt in enumerate(prompts)]
    together = answers(engine, requests)
    assert_agrees(tiny_model(), requests, together)
    few = {}
    for request in requests[::10]:
        few |= answers(engine, [request])
    assert {name: together[name].token_ids for name in few} == {n: g.token_ids for n, g in few.items()}
