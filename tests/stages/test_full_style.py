"""The chain in the full style up to the critic's report with the scripted agent, and an exported actor."""

import pytest

from env.chat.full import START_TOKEN, FullStyle
from env.phone.episode.tools import TOOLS
from env.phone.offer import PHONE
from pipeline.artifacts.metrics import read_metrics
from pipeline.models.policy import load_tokenizer

STYLE = FullStyle(TOOLS, thinking=False)
FULL = [
    "prompt.style=full",
    "sft.num_demonstrations=32",
    "sft.num_updates=2",
    "sft.batch_rows=4",
    "sampling.max_response_tokens=1500",
    "prompt.max_feedback_tokens=800",  # calls as JSON, in the tokens of a tiny tokenizer
    "labels.max_states=12",
]
SCRIPTED = [*FULL, "engine.kind=scripted"]


@pytest.fixture(scope="module")
def full(chain, tmp_path_factory):
    lab = chain.copy(tmp_path_factory.mktemp("full_chain"), "tasks")
    for stage in ("sft", "rollouts", "labels", "critic", "critic_report"):
        assert lab.start(stage, *SCRIPTED) == 0, stage
    return lab


@pytest.mark.slow
def test_rollouts_are_full_dialogues_that_replay(full):
    tokenizer = load_tokenizer(full.artifact("sft").path("policy"))
    tasks, rollouts = full.tasks(), full.rollouts("rollouts")
    for stage in ("rollouts", "labels", "critic_report"):
        assert {rollout.template_digest for rollout in full.rollouts(stage)} == {STYLE.digest}
    assert {rollout.reward for rollout in rollouts} == {0.0, 1.0}
    assert {rollout.env_status for rollout in rollouts} == {"ok"}
    for rollout in rollouts:
        prompt = tokenizer.decode(list(rollout.prompt_token_ids))
        lines = [line for line in rollout.feedback_in_context.split("\n") if line]
        env = PHONE.env()
        opening = env.reset(tasks[rollout.task_id], rollout.seed).messages
        assert prompt == STYLE.render_prompt(opening, lines, env.spec.tools)
        assert '"name": "wait"' not in prompt  # of a tool that its level has not
        events = [event for step in rollout.steps for event in env.step(STYLE.parse(step.text)).events]
        assert events == list(rollout.events)
    assert any(rollout.guided for rollout in rollouts)
    text = tokenizer.decode(list(rollouts[0].prompt_token_ids + rollouts[0].response_token_ids))
    assert text.count(f"{START_TOKEN}assistant\n") == len(rollouts[0].steps)


@pytest.mark.slow
def test_another_style_than_the_policy_s_is_refused(full, tmp_path, capsys):
    lab = full.copy(tmp_path / "lab", "tasks", "sft", "rollouts")
    for other in ("prompt.style=compact", "prompt.thinking=true"):
        assert lab.start("rollouts", *SCRIPTED, other) == 3
        assert other.partition("=")[0] in capsys.readouterr().err


@pytest.mark.soak
def test_a_chat_model_learns_the_full_style_and_plays_in_it(empty, smollm2):
    """SmolLM2-135M-Instruct with its own tokenizer: from demonstrations to graded rollouts.

    In fp32: cores without instructions for bf16 take minutes for a prompt of it.
    """
    settings = [
        *("prompt.style=full", "prompt.thinking=true", "sampling.max_response_tokens=240"),
        *(f"sft.base={smollm2}", "sft.num_demonstrations=2", "sft.num_updates=4", "sft.batch_rows=2"),
        *("sft.learning_rate=1e-4", "engine.max_live=4"),
        *("rollouts.num_tasks=2", "rollouts.chain.feedback_free_draws=2"),
    ]
    for stage in ("tasks", "sft", "rollouts"):
        assert empty.start(stage, *settings) == 0, stage
    losses = [line["loss"] for line in read_metrics(empty.run_dir / "sft" / "metrics.jsonl")]
    assert losses[-1] < losses[0]
    rollouts, tokenizer = empty.rollouts("rollouts"), load_tokenizer(smollm2)
    style, tasks = PHONE.style("full", tokenizer), empty.tasks()
    added = set(tokenizer.added_tokens_decoder)
    for rollout in rollouts:
        assert rollout.env_status == "ok"
        env = PHONE.env()
        opening = env.reset(tasks[rollout.task_id], rollout.seed).messages
        prompt = style.render_prompt(opening, rollout.feedback_in_context.splitlines(), env.spec.tools)
        assert list(rollout.prompt_token_ids) == tokenizer.encode(prompt, add_special_tokens=False)
        # What nobody sampled holds the marks of its turns and no other added token.
        pairs = zip(rollout.response_token_ids, rollout.loss_mask, strict=True)
        said = [token for token, is_sampled in pairs if not is_sampled and token in added]
        marks = tokenizer.convert_tokens_to_ids([START_TOKEN, style.stop_token, START_TOKEN])
        assert said == marks * (len(said) // 3)
    assert any(event.code in ("found", "not_found", "form") for r in rollouts for event in r.events)


@pytest.mark.slow
def test_an_actor_is_exported_with_the_template_it_was_trained_in(full, tmp_path):
    from transformers import AutoTokenizer, GenerationConfig

    lab = full.copy(tmp_path / "lab", "tasks", "sft")
    short = ["actor.credit={mode: grpo}", "actor.num_iterations=1", "sampling.max_response_tokens=48"]
    assert lab.start("actor", *FULL, *short) == 0
    folder = lab.artifact("actor").path("actor")
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    style = PHONE.style("full", tokenizer, thinking=False)
    assert (folder / "chat_template.jinja").read_text("utf-8") == style.template
    messages = [{"role": "user", "content": "R1 dispute a bill at Amber Ridge"}]
    text = tokenizer.apply_chat_template(
        messages, tools=list(TOOLS), add_generation_prompt=True, tokenize=False
    )
    assert text == STYLE.render_prompt(messages)
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")  # as the actor was prompted
    settings = GenerationConfig.from_pretrained(folder)  # and sampled
    assert (settings.do_sample, settings.temperature, settings.top_p, settings.top_k) == (True, 1, 1, 0)
    assert settings.eos_token_id == tokenizer.convert_tokens_to_ids(style.stop_token)
