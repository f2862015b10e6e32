"""How to read what the critic report's page shows, as data: measures by section, captions of drawings."""

from critics.audit.first_error import LARGE_FALL

PERCENTAGES = {
    "bias": "mean of predicted minus measured; the level is refitted, so about 0",
    "level_bias": "the same with the level as frozen, which the gate asks about",
    "ece": "calibration error, mean distance over 15 equal-mass bins; noise adds to it",
    "ece_floor": "what a perfect critic would show with as many samples",
    "ece_excess": "calibration error minus its floor, which the gate asks about",
}
STATES = {
    "ev": "share of the differences between states explained; 0 is useless, 1 perfect",
    "ev_within": "the same inside one rollout; at most 0 is useless for steps",
    "rmse": "typical distance to the true chance",
    "brier": "mean squared error against single samples; lower is better",
    "skill_over_task_rate": "Brier gained over the task's own success rate",
    "skill_over_constant": "Brier gained over the best constant",
    "skill_over_position": "Brier gained over the position alone",
    "skill_over_errors_so_far": "Brier gained over verdicts so far and position, asked if it is told of them",
    "ev_within_over_errors_so_far": "EV within one rollout, minus that of the same",
    "auroc": "chance that a success is ranked above a failure; a graded reward is a fraction of a success",
    "auroc_within_task": "AUROC within one task",
}
STEPS = {
    "rho_a": "correlation of the critic's step advantages with the true ones",
    "cov_a": "covariance of the same; at 0 or below steps mislead",
    "adv_rmse": "typical error of one step advantage",
    "sign_agreement": "share of the steps that are clear with so many continuations, whose direction it sees",
    "flattening": "spread of its advantages over the true spread; far below 1 is flat",
    "beyond_start": "share it sees of what V(s_0) and the step number leave open (perfect: 1); if no sibling "
    "was sampled, a critic that only knows its task and the step number can pass: about 0 here tells",
    "sibling_top1": "share of sets whose best next step, as measured, it names; a perfect critic misses some",
    "sibling_chance": "the same of a blind choice",
    "sibling_excess": "the difference of these two, which the gate asks about; grows with continuations",
    "sibling_reference": "the same of some of the continuations, judged by the others",
    "sibling_reference_excess": "and its difference to a blind choice; noisy, a good critic may beat it",
    "sibling_pairs": "of two clearly different next steps it prefers the better (a coin: .5)",
}
FIRST_ERROR = {
    "exact": "first error of the rollouts that have one, found at the step",
    "within_one": "found at the step or next to it",
    "none": "rollouts without an error in which it sees none",
    "f1": "2 ab / (a + b) of `exact` and `none`",
}
TITLES = {
    "num_states": "states",
    "num_tasks": "tasks",
    "brier": "Brier (lower is better)",
    "ev": "EV",
    "ev_within": "EV within",
    "rho_a": "rho_A",
    "bias": "bias",
    "rmse": "RMSE",
    "auroc": "AUROC",
    "ece_excess": "ECE above its floor",
}
"""Of the columns of the tables of references and slices."""

RELIABILITY_CAPTION = (
    "Judged states, level refitted. On the diagonal a stated 70 % happens 7 times in 10; below it the critic "
    "is too hopeful. The curve is the best one that never falls (isotonic). A hollow point has no bounds. A "
    "point leads to the rollouts with a state in its bin where `vdapo view` shows this page."
)
PERCENTAGES_CAPTION = "Differences of shares: 0.010 is one point."
CHANGES_CAPTION = (
    "Steps in bins of what the critic says that they change, and what they changed. On the diagonal its step "
    "advantages can be taken at their word; a flat row of points tells no step from another."
)
PRIVILEGED = {
    "none": "It reads what the actor reads.",
    "features": "Its calibration counts verdicts of the verifier on earlier steps, unseen by the actor.",
    "words": "It reads the verifier's verdict on each earlier step as words, unseen by the actor.",
}
REFERENCES_CAPTION = (
    "References, each with an advantage: it knows outcomes of the audited tasks or states, or was fitted on "
    "them. Trees on what is visible say how much a critic that reads only the dialogue could explain; with "
    "the verdicts so far, how much a verifier would add. Continuations are noisy, a good critic may beat "
    "them. V* is the chance of the best play, and the policy's lies below it. Far better on tasks it was "
    "fitted on: it knows them by heart."
)
SLICES_CAPTION = "All audited bare states, values as frozen."
SIBLINGS_CAPTION = (
    "Several next steps of one state, the measured chances of which differ. Right of a blind choice the "
    "critic knows good steps. Continuations of each step are noisy, so a good critic may beat them."
)
PROBES_CAPTION = (
    "Mean change of the value when one step is changed (number of states). The last two must lie below 0, "
    "the others must not lie above it. Words that change nothing should move nothing."
)
FIRST_ERROR_CAPTION = (
    f"The first step that lowers the value by more than {LARGE_FALL:g}, against the verifiers' first error, "
    "in bare rollouts. Not what the critic is for."
)
FIT_CAPTION = (
    "Held-out Brier, +- one standard error, on the clusters that decide when to stop, level refitted: not to "
    "be compared with the audit's. Fitting stops when several looks gain less than a standard error."
)
