"""DESIGN.md's numbers are the code's: a slip in either is a difference here."""

import re
from pathlib import Path

import pytest

from critics.drift import checks as drift
from critics.drift.state import REFIT_ITERATIONS
from critics.fit.schedule import PATIENCE as CRITIC_PATIENCE
from critics.frozen.calibrator import MIN_ROLLOUTS_FOR_SHIFT
from critics.labels.choose_states import ANCHORS, START_EVERY
from critics.labels.named_targets import OUTCOME_STEPS
from critics.labels.recovery import NUM_FOLDS
from critics.report import gate
from pipeline.credit import GRPO, GroupRelative, LossOptions, VDapo, v_dapo
from pipeline.credit.stripped import MAX_SHARE
from pipeline.matching import CHOSEN_ABOVE, REJECTED_BELOW
from pipeline.similarity import MIN_COSINE
from pipeline.training import losses
from pipeline.training.stored.advantage_weighted import MAX_WEIGHT
from pipeline.training.stored.direct_advantage import MAX_LOG_RATIO
from stages.settings.credit import Drift
from stages.settings.preferences import Dpo
from stages.settings.stored import AdvantageWeighted

DESIGN = Path(__file__).resolve().parents[1] / "DESIGN.md"


def short(number: float) -> str:
    """Returns a number as DESIGN writes it: no zero before the point."""
    return f"{number:g}".removeprefix("0") or "0"


def listed(numbers: tuple[float, ...], by: str = ", ") -> str:
    return by.join(map(short, numbers))


IN_WORDS = {3: "three", 4: "four"}
CLIP, GRPO_LOSS = LossOptions(), GRPO.loss
SENTENCES = [
    f"clip {short(1 - GRPO_LOSS.clip_low)}/{1 + GRPO_LOSS.clip_high:g}; mean per rollout",
    f"clip {short(1 - CLIP.clip_low)}/{1 + CLIP.clip_high:g}; dual clip {CLIP.dual_clip:g}",
    f"P = {short(GroupRelative().overlong_factor)} clip(",
    f"clip(a_i/max(sigma_step, {short(v_dapo._MIN_SCALE)}), -{v_dapo._STEP_CLIP:g}, {v_dapo._STEP_CLIP:g})",
    f"A_grp/max(sigma_grp, {short(v_dapo._MIN_SCALE)})",
    f"(EMA {short(v_dapo._SCALE_DECAY)} of squares)",
    f"g = {short(v_dapo._WRONG_GATE)} in all-wrong sets",
    f"alpha {short(VDapo().alpha)}, lam {short(VDapo().lam)}, KL 1e-3. (",
    f"clamp(logp - logp_old, -{losses._MAX_LOG_RATIO:g}, {losses._MAX_LOG_RATIO:g})",
    f"min(pi_old/pi_engine, {losses._MAX_ENGINE_WEIGHT:g})",
    f"k3 = min(exp(d) - d - 1, {losses._MAX_K3:g})",
    f"steps {listed(OUTCOME_STEPS)}, never",
    f"{listed(ANCHORS, '/')} of the response",
    f"one task in {IN_WORDS.get(START_EVERY)}, by hash",
    f"continuations in {NUM_FOLDS} folds by task",
    f"{CRITIC_PATIENCE} consecutive evaluations",
    f"one slope alone below {MIN_ROLLOUTS_FOR_SHIFT} bare rollouts",
    f"rho_A > {short(gate.MIN_ADVANTAGE_CORRELATION)},",
    f"ECE < floor + {short(gate.MAX_CALIBRATION_EXCESS)}, level as frozen within {short(gate.MAX_BIAS)}",
    f"bias > {short(drift.MAX_BIAS)} or the slope leaves [{short(drift.MIN_SLOPE)}, {drift.MAX_SLOPE:g}]",
    f"sign agreement below {short(drift.MIN_SIGN_AGREEMENT)} at its upper bound",
    f"the last {IN_WORDS.get(REFIT_ITERATIONS)} iterations",
    f"every {Drift().paid_every} updates: {Drift().states} states x K {Drift().num_continuations}",
    f"min(exp(A_i(lam)/T), {MAX_WEIGHT:g})",
    f"clip(A/T, -{MAX_LOG_RATIO:g}, {MAX_LOG_RATIO:g})",
    f"T {short(AdvantageWeighted().temperature)} (start value)",
    f"c = min(1, n/({(1 - MAX_SHARE) / MAX_SHARE:g} s))",
    f"beta {short(Dpo().beta)}, mu {short(Dpo().mu)} (",
    f"Chosen: r > {short(CHOSEN_ABOVE)}, rejected: r < {short(REJECTED_BELOW)};",
    f"TF-IDF cosine is >= {short(MIN_COSINE)}",
]


@pytest.mark.parametrize("sentence", SENTENCES)
def test_design_says_what_the_code_does(sentence: str) -> None:
    assert sentence in re.sub(r"\s+", " ", DESIGN.read_text(encoding="utf-8"))
