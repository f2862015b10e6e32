import numpy as np
import pytest

from pipeline.credit.step_advantages import gae

VALUES = np.array([0.4, 0.7, 0.2, 0.9, 0.55])


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.35])
@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_an_advantage_is_the_lambda_return_minus_the_value(lam: float, gamma: float, reward: float) -> None:
    """Sutton and Barto, 2nd edition, eq. 12.2: y_i = r_i + gamma ((1 - lam) V_{i+1} + lam y_{i+1})."""
    y = np.array([0.0, 0.0, 0.0, 0.0, reward])
    for i in range(3, -1, -1):
        y[i] = gamma * ((1 - lam) * VALUES[i + 1] + lam * y[i + 1])
    np.testing.assert_allclose(gae(reward, VALUES, gamma=gamma, lam=lam), y - VALUES, atol=1e-15)


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_a_level_error_reaches_step_i_with_lam_to_the_steps_left(lam: float) -> None:
    shift = gae(1.0, VALUES + 0.2, gamma=1.0, lam=lam) - gae(1.0, VALUES, gamma=1.0, lam=lam)
    np.testing.assert_allclose(shift, -0.2 * lam ** np.arange(4.0, -1.0, -1.0), atol=1e-15)


def test_wrong_arguments_are_refused() -> None:
    for reward, values in ((1.0, []), (1.0, [0.1, np.nan]), (np.inf, [0.1, 0.2])):
        with pytest.raises(ValueError, match="all must be finite"):
            gae(reward, np.array(values), gamma=1.0, lam=1.0)
    for rates in ({"gamma": 1.0, "lam": 1.1}, {"gamma": -0.1, "lam": 1.0}, {"gamma": 1.1, "lam": 1.0}):
        with pytest.raises(ValueError, match=r"must be in \[0, 1\]"):
            gae(1.0, np.ones(1), **rates)
