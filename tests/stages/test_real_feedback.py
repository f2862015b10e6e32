"""A real model behind a real server writes the feedback of a chain that trains."""

from pathlib import Path

import pytest

from pipeline.models.policy import load_policy
from pipeline.runs import MAIN_CHAIN
from stages.command import main
from tests.serving import writes_feedback
from tests.stages.conftest import Lab

pytestmark = pytest.mark.soak


@pytest.mark.timeout(3600)
def test_a_chain_learns_from_attempts_that_a_servers_words_came_before(
    chain: Lab, smollm2: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("vllm", reason="make setup-engines installs it")
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    with writes_feedback(smollm2) as url:
        settings = ["feedback.kind=server", f"feedback.url={url}", "feedback.max_tokens=60"]
        settings += ["feedback.timeout_s=300", "stored.objective={kind: likelihood}"]
        assert main(["check-feedback", lab.config, *settings]) == 0
        assert "a policy would be shown: " in capfd.readouterr().out
        for stage in MAIN_CHAIN[2:]:
            assert lab.start(stage, *settings) == 0, stage
    rollouts = lab.rollouts("rollouts")
    told = [r for r in rollouts if r.guided]
    texts = {r.feedback_text for r in rollouts if r.feedback_status == "ok"}
    assert told
    assert all(any(text in r.feedback_in_context for text in texts) for r in told)
    counted = lab.artifact("rollouts").report["feedback"]
    assert counted["ok"] == sum(r.feedback_status == "ok" for r in rollouts)
    assert counted.keys() <= {
        "ok",
        "leak",
        "instruction",
        "special_token",
        "empty",
        "refusal",
        "cut_off",
    }  # none failed
    trained = {row["rollout_id"] for row in lab.artifact("actor").table("updates").to_pylist()}
    assert trained & {r.rollout_id for r in lab.rollouts("actor") if r.guided}
    start, end = (load_policy(lab.artifact(name).path(folder)) for name, folder in ACTORS)
    assert start.policy_digest != end.policy_digest


ACTORS = (("sft", "policy"), ("actor", "actor"))
