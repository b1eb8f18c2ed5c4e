"""The Reset Cliff and the value-flow gridworld as gymnasium environments, for the deep algorithms."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sb3_dualqdm.tabular.instances import MOVES, VALUE_FLOW_LAYOUT, gridworld, reset_cliff

WHITE, GREY, DARK, GREEN, RED, BLUE = (
    np.array(rgb, dtype=np.uint8)
    for rgb in ((245, 245, 245), (205, 205, 205), (70, 70, 70), (64, 160, 96), (200, 70, 60), (50, 90, 200))
)


def _paint(colours: np.ndarray, size: int) -> np.ndarray:
    """Blow every cell of an (R, C, 3) image up to size x size pixels, with a thin line between cells."""
    image = np.kron(colours, np.ones((size, size, 1), dtype=np.uint8))
    image[::size] = image[:, ::size] = DARK
    return image


class _TabularEnv(gym.Env):
    """What the two environments share: one integer observation and rendering to an array."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 8}

    def __init__(self, render_mode: str | None) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is {render_mode!r}, expected None or 'rgb_array': pass one of these.")
        self.render_mode = render_mode

    def _draw(self, probabilities: np.ndarray) -> int:
        return int(self.np_random.choice(len(probabilities), p=probabilities))


class ResetCliffEnv(_TabularEnv):
    """
    The Reset Cliff of the paper's lower bound, see :func:`sb3_dualqdm.tabular.reset_cliff`.

    Observation h * S + s at step h (from 0), H * S at the end; the episode terminates after H steps. Return of the expert: H.

    :param n_states: S per step, default 10
    :param n_actions: A, default 5
    :param horizon: H, default 20
    :param n_demos: the N that the state distribution depends on, default 20
    :param mdp_seed: seed of the expert's actions, default 0
    :param render_mode: None or "rgb_array"
    """

    def __init__(
        self,
        n_states: int = 10,
        n_actions: int = 5,
        horizon: int = 20,
        n_demos: int = 20,
        mdp_seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode)
        self.mdp = reset_cliff(n_states, n_actions, horizon, n_demos, mdp_seed)
        self.horizon, self.n_states = horizon, n_states
        self.observation_space = spaces.Discrete(horizon * n_states + 1)
        self.action_space = spaces.Discrete(n_actions)
        self._step = self._state = 0
        self._trace: list[int] = []

    def expert(self, observations: np.ndarray) -> np.ndarray:
        """
        The expert's actions.

        :param observations: integer observations, any shape
        :return: actions, same shape; 0 where the episode is over
        """
        actions = np.append(self.mdp.require_expert().argmax(axis=-1).ravel(), 0)
        return actions[np.asarray(observations, dtype=int)]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """
        Start an episode.

        :param seed: seed of the environment's randomness, default None (go on)
        :param options: ignored
        """
        super().reset(seed=seed)
        self._step, self._state = 0, self._draw(self.mdp.initial)
        self._trace = [self._state]
        return self._state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """
        Take one step.

        :param action: the action
        """
        assert self.mdp.reward is not None
        reward = float(self.mdp.reward[self._step, self._state, int(action)])
        self._step += 1
        self._state = self._draw(self.mdp.transitions[self._state, int(action)])
        done = self._step >= self.horizon
        if not done:
            self._trace.append(self._state)
        observation = self.horizon * self.n_states if done else self._step * self.n_states + self._state
        return observation, reward, done, False, {}

    def render(self) -> np.ndarray | None:
        """The states visited so far: one column per step, the bad state in the bottom row; None without a render mode."""
        if self.render_mode is None:
            return None
        colours = np.tile(WHITE, (self.n_states, self.horizon, 1))
        colours[-1] = GREY
        for h, state in enumerate(self._trace):
            colours[state, h] = RED if state == self.n_states - 1 else GREEN
        colours[self._trace[-1] if self._trace else 0, max(len(self._trace) - 1, 0)] = BLUE
        return _paint(colours, 12)


class ValueFlowGridEnv(_TabularEnv):
    """
    The gridworld of the value-flow figure, see :func:`sb3_dualqdm.tabular.gridworld`.

    Observation: index of the free cell. Actions: up, right, down, left. The episode terminates in the goal with reward 1.

    :param layout: rows of text, default the figure's
    :param slip: probability that a move goes in a random direction, default 0
    :param uniform_start: share of episodes that start in a uniformly random free cell, default 0
    :param render_mode: None or "rgb_array"
    """

    def __init__(
        self,
        layout: tuple[str, ...] = VALUE_FLOW_LAYOUT,
        slip: float = 0.0,
        uniform_start: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode)
        self.grid = gridworld(tuple(layout), slip=slip, uniform_start=uniform_start)
        self.mdp = self.grid.mdp
        self.observation_space = spaces.Discrete(self.mdp.n_states)
        self.action_space = spaces.Discrete(len(MOVES))
        self._state = self.grid.goal

    def expert(self, observations: np.ndarray) -> np.ndarray:
        """
        The expert's actions.

        :param observations: integer observations, any shape
        :return: actions, same shape
        """
        return self.mdp.require_expert().argmax(axis=-1)[np.asarray(observations, dtype=int)]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """
        Start an episode, anywhere but in the goal.

        :param seed: seed of the environment's randomness, default None (go on)
        :param options: ignored
        """
        super().reset(seed=seed)
        start = np.where(np.arange(self.mdp.n_states) == self.grid.goal, 0.0, self.mdp.initial)
        self._state = self._draw(start / start.sum())
        return self._state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """
        Take one step.

        :param action: the action
        """
        self._state = self._draw(self.mdp.transitions[self._state, int(action)])
        done = self._state == self.grid.goal
        return self._state, float(done), done, False, {}

    def render(self) -> np.ndarray | None:
        """The grid: walls dark, goal green, agent blue; None without a render mode."""
        if self.render_mode is None:
            return None
        colours = np.tile(DARK, (len(self.grid.layout), len(self.grid.layout[0]), 1))
        colours[tuple(self.grid.cells.T)] = WHITE
        colours[tuple(self.grid.cells[self.grid.goal])] = GREEN
        colours[tuple(self.grid.cells[self._state])] = BLUE
        return _paint(colours, 24)
