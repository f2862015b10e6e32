"""Reference critics: boosted trees (scikit-learn) of a few features of a state, to read a critic beside.

They are fitted on the audited states themselves, in folds by cluster, so that no state's value has seen its
own cluster. What the dialogue does not show, no critic that reads only the dialogue can know: trees on
everything visible bound EV_within from below, and trees that are told the located errors say what a
privileged critic would gain.
"""

from dataclasses import replace

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.model_selection import GroupKFold

from critics.audit.data import AuditData
from critics.logit import logit

NUM_FOLDS = 5
NUM_WORDS = 40
"""The most frequent words of the steps so far that trees see the counts of (start value)."""
VISIBLE = "trees: this critic and what is visible"
"""Name of the reference that bounds what the dialogue shows."""
FEWEST_STATES = 200
"""Trees of fewer audited states say nothing (start value)."""


def reference_critics(audit: AuditData, seed: int) -> dict[str, AuditData]:
    """Returns the audit with the values of each reference critic by name; none of too small an audit."""
    if len(audit) < FEWEST_STATES or len(set(audit.cluster.tolist())) < 2 * NUM_FOLDS:
        return {}
    errors = errors_so_far(audit)
    visible = np.column_stack([logit(audit.p), audit.step_index, audit.position, words_so_far(audit)])
    return {
        "errors so far alone": with_trees(audit, errors, seed),
        VISIBLE: with_trees(audit, visible, seed),
        "trees: the same, told the errors so far": with_trees(
            audit, np.column_stack([visible, errors]), seed
        ),
    }


def with_trees(audit: AuditData, features: np.ndarray, seed: int) -> AuditData:
    """Returns the audit with values from trees of features [N, D], each state's from other clusters."""
    share, p = audit.v_hat, np.zeros(len(audit))
    folds = GroupKFold(min(NUM_FOLDS, len(set(audit.cluster.tolist()))))
    for fit, told in folds.split(features, groups=audit.cluster):
        trees = HistGradientBoostingClassifier(
            learning_rate=0.1, max_iter=60, max_leaf_nodes=12, min_samples_leaf=40, random_state=seed
        )
        # Each state is one success and one failure, weighted by how often they were sampled.
        outcomes, weights = np.repeat([1, 0], len(fit)), np.concatenate([share[fit], 1 - share[fit]])
        trees.fit(features[[*fit, *fit]], outcomes, sample_weight=weights)
        p[told] = trees.predict_proba(features[told])[:, 1]
    return replace(audit, p=np.clip(p, 1e-3, 1 - 1e-3))


def errors_so_far(audit: AuditData) -> np.ndarray:
    """Returns [N, 2] how many steps before each state verifiers call wrong, and whether the last one is."""
    wrong = {
        r.rollout_id: np.array([status == "wrong" for status in r.statuses], dtype=int)
        for r in audit.rollouts
    }
    before = [wrong[r][:i] for r, i in zip(audit.rollout_id, audit.step_index, strict=True)]
    return np.array([(flags.sum(), flags[-1:].sum()) for flags in before], dtype=float).reshape(-1, 2)


def words_so_far(audit: AuditData) -> np.ndarray:
    """Returns [N, at most 2 NUM_WORDS] counts of frequent words in all steps before a state, and in one."""
    texts = {r.rollout_id: r.texts for r in audit.rollouts}
    before = [texts[r][:i] for r, i in zip(audit.rollout_id, audit.step_index, strict=True)]
    whole, last = [" ".join(steps) for steps in before], [" ".join(steps[-1:]) for steps in before]
    vectorizer = CountVectorizer(max_features=NUM_WORDS, token_pattern=r"\w+")
    if not any(text.strip() for text in whole):
        return np.zeros((len(audit), 0))
    counts = vectorizer.fit_transform(whole).toarray()
    return np.column_stack([counts, vectorizer.transform(last).toarray()]).astype(float)
