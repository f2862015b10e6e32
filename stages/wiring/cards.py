"""What goes beside exported weights: what servers need, and a page of facts of the stages' manifests."""

from pathlib import Path
from typing import Any

from env.catalog import offer_of
from pipeline.artifacts.manifest import read_plan
from pipeline.artifacts.start import Start
from pipeline.credit import Credit, VDapo
from pipeline.models.policy import save_for_serving
from pipeline.report.model_card import weights_facts, write_card

METHOD = {
    "v_dapo": "group-relative advantages and the step advantages of a frozen critic",
    "decoupled_clip": "decoupled clip and dynamic sampling, arXiv:2503.14476",
    "grpo": "group-relative advantages, arXiv:2402.03300",
    "actor_critic": "GAE over a value head trained beside it, arXiv:1707.06347, 2504.05118",
    "imitation": "likelihood of its own bare successes, arXiv:2308.01825",
    "tree_rpo": "advantages between siblings of trees, arXiv:2506.05183",
    "verifier_steps": "decoupled clip and the verifier's word on each step",
}


def serve_folder(start: Start, folder: Path, tokenizer: Any) -> None:
    """Writes tokenizer, chat template and generation config beside exported weights."""
    style = start.config.style(tokenizer)
    save_for_serving(tokenizer, folder, stop_token=style.stop_token, chat_template=style.template)


def write_actor_card(
    start: Start, folder: Path, *, credit: Credit, num_updates: int, gate: dict[str, Any] | None
) -> None:
    """Writes the page of an actor that was exported to `folder` after so many optimizer steps.

    `gate` is that of the critic it started with.
    """
    plan = read_plan(start.folder)
    if plan is None:
        raise ValueError(f"{start.stage}: a card is written after the plan")
    settings = plan["settings"]
    actor, tasks, prompt = settings["actor"], settings["tasks"], settings["prompt"]
    offer, chain, mode = offer_of(tasks["environment"]), actor["chain"], actor["credit"]["mode"]
    style = offer.style(prompt["style"], thinking=prompt["thinking"])
    warmup = start.config.actor.warmup_updates
    facts = {
        name.replace("_", " "): _words(value)
        for name, value in tasks.items()
        if value not in (None, {}) and name != "environment"
    }
    weight: dict[str, object] = {}
    if isinstance(credit, VDapo):
        weight = {"weight of the critic (alpha)": credit.alpha, "lam": credit.lam}
        if (values := actor["credit"]["values"]) != "critic":
            weight["values of states, as a control"] = values
    sections: dict[str, dict[str, object]] = {
        "Model": {"starting policy": _origin(start), **weights_facts(folder)},
        "Data": {
            "environment": tasks["environment"],
            **facts,
            "rollouts": "its own, graded by the environment; all are in `rollouts.parquet` of the stage",
            "attempts of a group": f"{chain['num_attempts']}, {chain['draws']} rollouts each",
            "groups that are one bare set": f"{chain['feedback_free_share']:g}, of "
            f"{chain['feedback_free_draws']} rollouts",
            "feedback between attempts": f"{settings['feedback']['kind']}, {prompt['verbosity']}",
            **({"guided attempts": "successes, on the bare prompt"} if actor["guided"] == "stripped" else {}),
            "prompt style": prompt["style"] or "the environment's first",
            "tokens of an episode": f"{settings['sampling']['max_response_tokens']} at most",
        },
        "Training": {
            "credit": f"{mode}: {METHOD[mode]}",
            **weight,
            "updates": f"{num_updates} in {actor['num_iterations']} iterations of fresh rollouts",
            **({"passes over an iteration": actor["passes"]} if actor["passes"] > 1 else {}),
            "tasks per update": actor["tasks_per_update"],
            "learning rate": f"{actor['learning_rate']:g} after {warmup} updates of warm-up",
            "KL to the starting policy": credit.loss.kl,
            "sampling": "temperature 1, no token left out",
            "trainer": _trainer(settings["training"]),
            "engine": f"{settings['engine']['kind']}, {settings['engine']['dtype']}",
            "seed": settings["run"]["seed"],
        },
    }
    limits = [
        f"It was trained for tasks of the environment `{offer.name}`, in its prompt style, and tested for "
        "nothing else.",
        "The reward is the environment's verdict at the end of an episode. What the verdict does not look at "
        "was not trained.",
        "This page is written before the evaluation: success on held-out tasks is in the evaluation stage.",
    ]
    if gate is not None:
        sections["Critic"] = _critic_facts(gate)
        limits.append(
            "The critic's verdict holds for the policy that it was made for, its sampling and this "
            "environment only."
        )
    sections["Made from"] = {f"content of {name}": f"`{digest}`" for name, digest in plan["inputs"].items()}
    write_card(
        folder,
        title=f"V-DAPO actor: {offer.name}",
        opening=(
            f"A language model trained by reinforcement learning in the environment `{offer.name}` with "
            f"V-DAPO, credit mode {mode}."
        ),
        tags=("v-dapo", "reinforcement-learning", offer.name),
        sections=sections,
        limits=limits,
        stop_token=style.stop_token,
        serve_options=style.serve_options,
    )


def _origin(start: Start) -> str:
    """Returns where a starting policy came from; of a base's path only the last part says something."""
    sft, then = start.inputs["sft"].manifest["settings"]["sft"], "."
    if "stored" in start.inputs:
        report = start.inputs["stored"].report
        recorded = f", {n} of them recorded solutions" if (n := report["rows"]["recorded"]) else ""
        then = f", then {report['updates']} updates on stored rollouts ({report['objective']}{recorded})."
    shown = "recorded data" if sft["data"] else "scripted demonstrations"
    trained = f"{sft['num_updates']} updates on {shown}{then}"
    if sft["base"] is None:
        return f"A tiny Qwen3 made from scratch, {trained}"
    base = f"The base model `{Path(sft['base']).name}`"
    return f"{base} after {trained}" if sft["num_updates"] else f"{base} as it is{then}"


def _critic_facts(gate: dict[str, Any]) -> dict[str, object]:
    words = {True: "passed", False: "FAILED"}
    return {
        "gate": gate["verdict"],
        "judged": ", ".join(f"{context} states of unseen clusters" for context in gate["contexts"]),
        **{c["name"]: f"{words.get(c['passed'], c['passed'])}: {c['reason']}" for c in gate["conditions"]},
    }


def _trainer(training: dict[str, Any]) -> str:
    rank = training.get("lora_rank")
    adapters = f", adapters of rank {rank}" if rank else ""
    return f"{training['backend']}, products in {training['dtype']}{adapters}"


def _words(value: object) -> object:
    """Returns a setting as words; of a table, what is set in it."""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_words(of)}" for key, of in value.items() if of is not None)
    return f"{value:g}" if isinstance(value, float) else value
