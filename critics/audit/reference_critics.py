"""Reference critics: boosted trees (scikit-learn) of a few features of a state, to read a critic beside.

They are fitted on the audited states themselves, in folds by cluster, so that no state's value has seen its
own cluster. What the dialogue does not show, no critic that reads only the dialogue can know: trees on
everything visible bound its EV_within from below, and trees that are told the verdicts so far say what a
privileged critic would gain.
"""

from dataclasses import replace

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import CountVectorizer

from critics.audit.baselines import NUM_FOLDS, cross_fitted
from critics.audit.data import AuditData
from critics.logit import logit
from critics.privileged import Kind

NUM_WORDS = 40
"""The most frequent words of the steps so far that trees see the counts of (start value)."""
VISIBLE = "trees: this critic and what is visible"
VISIBLE_ALONE = "trees: what is visible"
"""Names of the reference that bounds what the dialogue shows; not with a critic that is told more."""
FEWEST_STATES = 200
"""Trees of fewer audited states say nothing (start value)."""


def reference_critics(audit: AuditData, seed: int, privileged: Kind = "none") -> dict[str, AuditData]:
    """Returns the audit with the values of each reference critic by name; none of too small an audit.

    `privileged` says what the audited critic is told.
    """
    if len(audit) < FEWEST_STATES or len(set(audit.cluster.tolist())) < 2 * NUM_FOLDS:
        return {}
    shown = np.column_stack([audit.step_index, audit.position, words_so_far(audit)])
    both = np.column_stack([logit(audit.p), shown])
    told = np.column_stack([both, DictVectorizer(sparse=False).fit_transform(audit.verdicts_before())])
    visible = {VISIBLE: both} if privileged == "none" else {VISIBLE_ALONE: shown}
    features = visible | {"trees: this critic, what is visible, the verdicts so far": told}
    return {name: with_trees(audit, of_states, seed) for name, of_states in features.items()}


def with_trees(audit: AuditData, features: np.ndarray, seed: int) -> AuditData:
    """Returns the audit with values from trees of features [N, D], `cross_fitted`."""
    trees = HistGradientBoostingClassifier(
        learning_rate=0.1, max_iter=60, max_leaf_nodes=12, min_samples_leaf=40, random_state=seed
    )
    return replace(audit, p=np.clip(cross_fitted(audit, features, trees), 1e-3, 1 - 1e-3))


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
