"""What goes beside exported weights: what servers need, and a page of facts of the stages' manifests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from env.catalog import offer_of
from pipeline.artifacts.manifest import read_plan
from pipeline.artifacts.start import Start
from pipeline.credit import Credit, VDapo
from pipeline.models.policy import save_for_serving
from pipeline.report.model_card import ModelCard, weights_facts, write_card

METHOD = {
    "v_dapo": "group-relative advantages and the step advantages of a frozen critic",
    "decoupled_clip": "decoupled clip and dynamic sampling, arXiv:2503.14476",
    "grpo": "group-relative advantages, arXiv:2402.03300",
}


def write_beside(start: Start, folder: Path, tokenizer: Any, card: ModelCard) -> None:
    """Writes tokenizer, chat template, generation config and page beside exported weights."""
    serve_folder(start, folder, tokenizer)
    write_card(card, folder)


def serve_folder(start: Start, folder: Path, tokenizer: Any) -> None:
    """Writes tokenizer, chat template and generation config beside exported weights."""
    prompt = start.config.prompt
    style = offer_of(start.config.tasks.environment).style(prompt.style, tokenizer, thinking=prompt.thinking)
    save_for_serving(tokenizer, folder, stop_token=style.stop_token, chat_template=style.template)


def actor_card(start: Start, folder: Path, *, credit: Credit, num_updates: int) -> ModelCard:
    """Returns the page of a trained actor.

    Args:
        start: of the actor stage.
        folder: that the actor was exported to.
        credit: who gave how much advantage.
        num_updates: optimizer steps taken.
    """
    plan = _plan(start)
    settings = plan["settings"]
    actor, tasks = settings["actor"], settings["tasks"]
    environment = offer_of(tasks["environment"]).name
    chain, mode = actor["chain"], actor["credit"]["mode"]
    sections: dict[str, dict[str, object]] = {
        "Model": {"starting policy": _origin(start), **weights_facts(folder)},
        "Data": {
            "environment": tasks["environment"],
            **{
                name.replace("_", " "): _words(value)
                for name, value in tasks.items()
                if value is not None and name != "environment"
            },
            "rollouts": "its own, graded by the environment; all are in `rollouts.parquet` of the stage",
            "attempts of a group": f"{chain['num_attempts']}, {chain['draws']} rollouts each",
            "groups that are one bare set": (
                f"{chain['feedback_free_share']:g}, of {chain['feedback_free_draws']} rollouts"
            ),
            "feedback between attempts": settings["prompt"]["verbosity"],
            "prompt style": settings["prompt"]["style"] or "the environment's first",
            "tokens of an episode": f"{settings['sampling']['max_response_tokens']} at most",
        },
        "Training": {
            "credit": f"{mode}: {METHOD[mode]}",
            **(
                {"weight of the critic (alpha)": credit.alpha, "lam": credit.lam}
                if isinstance(credit, VDapo)
                else {}
            ),
            "updates": f"{num_updates} in {actor['num_iterations']} iterations of fresh rollouts",
            "tasks per update": actor["tasks_per_update"],
            "learning rate": f"{actor['learning_rate']:g} after {actor['warmup_updates']} updates of warm-up",
            "KL to the starting policy": credit.loss.kl,
            "sampling": "temperature 1, no token left out",
            "trainer": _trainer(settings["training"]),
            "engine": f"{settings['engine']['kind']}, {settings['engine']['dtype']}",
            "seed": settings["run"]["seed"],
        },
    }
    limits = [
        f"It was trained for tasks of the environment `{environment}`, in its prompt style, and tested for "
        "nothing else.",
        "The reward is the environment's verdict at the end of an episode. What the verdict does not look at "
        "was not trained.",
        "This page is written before the evaluation: success on held-out tasks is in the evaluation stage.",
    ]
    if "critic_report" in start.inputs:
        gate = json.loads(start.inputs["critic_report"].path("gate.json").read_text("utf-8"))
        sections["Critic"] = _critic_facts(gate)
        limits.append(
            "The critic's verdict holds for the starting policy, its sampling and this environment only."
        )
    sections["Made from"] = {f"content of {name}": f"`{digest}`" for name, digest in plan["inputs"].items()}
    return ModelCard(
        title=f"V-DAPO actor: {environment}",
        opening=(
            f"A language model trained by reinforcement learning in the environment `{environment}` with "
            f"V-DAPO, credit mode {mode}."
        ),
        tags=("v-dapo", "reinforcement-learning", environment),
        sections=sections,
        limits=tuple(limits),
        stop_token=offer_of(tasks["environment"]).style(settings["prompt"]["style"]).stop_token,
    )


def _plan(start: Start) -> dict[str, Any]:
    plan = read_plan(start.folder)
    if plan is None:
        raise ValueError(f"{start.stage}: a card is written after the plan")
    return plan


def _origin(start: Start) -> str:
    """Returns where a starting policy came from; of a base's path only the last part says something."""
    sft = start.inputs["sft"].manifest["settings"]["sft"]
    if sft["base"] is None:
        return f"A tiny Qwen3 made from scratch, {sft['num_updates']} updates on scripted demonstrations."
    base = Path(sft["base"]).name
    if sft["num_updates"] == 0:
        return f"The base model `{base}` as it is."
    return f"The base model `{base}` after {sft['num_updates']} updates on scripted demonstrations."


def _critic_facts(gate: dict[str, Any]) -> dict[str, object]:
    facts: dict[str, object] = {
        "gate": gate["verdict"],
        "judged": ", ".join(f"{context} states of unseen clusters" for context in gate["contexts"]),
    }
    words = {True: "passed", False: "FAILED"}
    for condition in gate["conditions"]:
        word = words.get(condition["passed"], condition["passed"])
        facts[condition["name"]] = f"{word}: {condition['reason']}"
    return facts


def _trainer(training: dict[str, Any]) -> str:
    rank = training.get("lora_rank")  # of the torch backend alone
    adapters = f", adapters of rank {rank}" if rank else ""
    return f"{training['backend']}, products in {training['dtype']}{adapters}"


def _words(value: object) -> object:
    return ", ".join(f"{k}: {share:g}" for k, share in value.items()) if isinstance(value, dict) else value
