"""Random instances shared by the tabular tests."""

import numpy as np

from sb3_dualqdm.tabular import TabularDemos, TabularMDP, random_mdp, sample_demos


def finite(seed: int, n_demos: int = 4, horizon: int = 4) -> tuple[TabularMDP, TabularDemos]:
    mdp = random_mdp(n_states=4, n_actions=3, horizon=horizon, seed=seed)
    return mdp, sample_demos(mdp, n_demos, seed=seed)


def discounted(seed: int, n_demos: int = 3, length: int = 8) -> tuple[TabularMDP, TabularDemos]:
    mdp = random_mdp(n_states=6, n_actions=3, horizon=None, discount=0.9, seed=seed)
    return mdp, sample_demos(mdp, n_demos, seed=seed, length=length)


def both(seed: int) -> list[tuple[TabularMDP, TabularDemos]]:
    return [finite(seed), discounted(seed)]


def lse(q: np.ndarray, alpha: float) -> np.ndarray:
    """LSE written the slow, obvious way, for values that do not overflow."""
    return alpha * np.log(np.exp(q / alpha).sum(axis=-1))


def numerical_gradient(function, x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    out = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        ahead, behind = x.copy(), x.copy()
        ahead[index] += step
        behind[index] -= step
        out[index] = (function(ahead) - function(behind)) / (2 * step)
    return out
