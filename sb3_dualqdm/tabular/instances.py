"""The MDPs of the paper, and constructors for others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sb3_dualqdm.tabular.demos import TabularDemos
from sb3_dualqdm.tabular.mdp import TabularMDP

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left, in (row, column)


def reset_cliff(n_states: int = 20, n_actions: int = 5, horizon: int = 32, n_demos: int = 200, seed: int = 0) -> TabularMDP:
    """
    The Reset Cliff of the paper's lower bound. In a good state the expert action pays 1 and draws the next state from rho;
    any other action leads to the bad state, the last one, for good. rho gives 1/(N+1) to S-2 states, the rest to one state,
    0 to the bad one.

    The expert action of a state is drawn from the seed and is the same at every step, so that P needs S * A * S numbers; no
    method can use this, because states of different steps are different states.

    :param n_states: S per layer, default 20
    :param n_actions: A, default 5
    :param horizon: H, default 32
    :param n_demos: the N that rho depends on, default 200
    :param seed: seed of the expert actions, default 0
    :return: the MDP, with reward and expert
    :raises ValueError: if S < 3 or S - 2 > N + 1, where rho is no distribution
    """
    if n_states < 3 or n_states - 2 > n_demos + 1:
        raise ValueError(
            f"n_states is {n_states} and n_demos is {n_demos}, expected 3 <= n_states <= n_demos + 3: change one of them."
        )
    rho = np.full(n_states, 1.0 / (n_demos + 1))
    rho[-2] = 1.0 - (n_states - 2) / (n_demos + 1)
    rho[-1] = 0.0
    expert = np.random.default_rng(seed).integers(n_actions, size=n_states)
    good = np.arange(n_states - 1)
    transitions = np.zeros((n_states, n_actions, n_states))
    transitions[..., -1] = 1.0
    transitions[good, expert[good]] = rho
    reward = np.zeros((n_states, n_actions))
    reward[good, expert[good]] = 1.0
    return TabularMDP(transitions, rho, horizon=horizon, reward=reward, expert=expert)


def reset_cliff_epsilon(n_states: int, n_demos: int) -> float:
    """
    The paper's epsilon: the expected rho-mass of the states of a layer that N demonstrations do not visit, sum rho (1 -
    rho)^N.

    :param n_states: S
    :param n_demos: N
    """
    small = 1.0 / (n_demos + 1)
    rest = 1.0 - (n_states - 2) * small
    return (n_states - 2) * small * (1 - small) ** n_demos + rest * (1 - rest) ** n_demos


def reset_cliff_bc_gap(n_states: int, n_actions: int, horizon: int, n_demos: int) -> float:
    """
    Expected imitation gap of BC on the Reset Cliff, exactly: H - sum_{h=1..H} (1 - kappa)^h with kappa = epsilon (1 - 1/A).

    BC survives a layer with probability 1 where the state was demonstrated and 1/A elsewhere, and the layers' demonstrations
    are independent. The paper's (1 - 1/A) sum_h (1 - epsilon)^(h-1) (H - h + 1) epsilon is a lower bound of this, not equal
    to it: it counts only the trajectories that fall at the first unvisited state.

    :param n_states: S
    :param n_actions: A
    :param horizon: H
    :param n_demos: N
    """
    survive = 1.0 - reset_cliff_epsilon(n_states, n_demos) * (1.0 - 1.0 / n_actions)
    return horizon - float((survive ** np.arange(1, horizon + 1)).sum())


def worked_example() -> tuple[TabularMDP, TabularDemos]:
    """
    The paper's four-state example (H = 2): from s1 and s2, action a1 leads to s3 and a2 to s4; rho is uniform over {s1, s2};
    one demonstration (s1, a1, s3, a1). Layer 1 holds s1, s2 as states 0, 1 and layer 2 holds s3, s4 as states 0, 1.

    :return: the MDP and the demonstration
    """
    step = np.zeros((2, 2, 2))
    step[:, 0, 0] = step[:, 1, 1] = 1.0
    mdp = TabularMDP.from_layers([step], np.array([0.5, 0.5]), expert=[np.zeros(2, dtype=int)] * 2)
    return mdp, TabularDemos.from_trajectories([([0, 0], [0, 0])])


def random_mdp(
    n_states: int = 4, n_actions: int = 3, horizon: int | None = 4, discount: float = 1.0, seed: int = 0, per_step: bool = True
) -> TabularMDP:
    """
    A random MDP with Dirichlet transitions, uniform rewards in [0, 1] and a random deterministic expert.

    :param n_states: S, default 4
    :param n_actions: A, default 3
    :param horizon: H, default 4; None for the discounted setting
    :param discount: gamma, default 1
    :param seed: default 0
    :param per_step: whether a finite-horizon MDP has different transitions at every step, default True
    """
    rng = np.random.default_rng(seed)
    steps = (horizon - 1,) if horizon is not None and per_step else ()
    transitions = rng.dirichlet(np.full(n_states, 0.5), size=(*steps, n_states, n_actions))
    lead = () if horizon is None else (horizon,)
    return TabularMDP(
        transitions,
        rng.dirichlet(np.ones(n_states)),
        horizon=horizon,
        discount=discount,
        reward=rng.random((*lead, n_states, n_actions)),
        expert=rng.integers(n_actions, size=(*lead, n_states)),
    )


def td_mdp(n_expert: int = 3, n_other: int = 2, n_actions: int = 3, horizon: int = 4, seed: int = 0) -> TabularMDP:
    """
    A transition-discriminative MDP by construction. In every layer the expert takes one action a_E, and P(. | s, a_E) = q_E, a
    distribution with full support on the expert-reachable states; any other action draws from lambda q_E + (1 - lambda) q_0,
    q_0 living on the other states, with a lambda < 1 that is larger at expert-reachable states. See :func:`td_violations`.

    :param n_expert: expert-reachable states per layer, default 3
    :param n_other: other states per layer, > 0, default 2
    :param n_actions: A, default 3
    :param horizon: H, default 4
    :param seed: default 0
    :return: the MDP, with expert; rho has the expert-reachable states of layer 1 as its support
    :raises ValueError: if n_expert or n_other is 0
    """
    if min(n_expert, n_other) < 1:
        raise ValueError(
            f"n_expert is {n_expert} and n_other is {n_other}, expected both >= 1: a TD MDP needs both kinds of state."
        )
    rng = np.random.default_rng(seed)
    n_states = n_expert + n_other
    expert = np.repeat(rng.integers(n_actions, size=(horizon, 1)), n_states, axis=1)
    transitions = np.zeros((horizon - 1, n_states, n_actions, n_states))
    for h in range(horizon - 1):
        q_expert = np.append(rng.dirichlet(np.full(n_expert, 2.0)), np.zeros(n_other))
        mixture = rng.uniform(0.0, 0.9, size=(n_states, n_actions))
        mixture[:n_expert] = np.maximum(mixture[:n_expert], mixture[n_expert:].max(axis=0))
        for s in range(n_states):
            for a in range(n_actions):
                q_other = np.append(np.zeros(n_expert), rng.dirichlet(np.ones(n_other)))
                weight = 1.0 if a == expert[h, s] else mixture[s, a]
                transitions[h, s, a] = weight * q_expert + (1.0 - weight) * q_other
    rho = np.append(rng.dirichlet(np.full(n_expert, 2.0)), np.zeros(n_other))
    return TabularMDP(transitions, rho, horizon=horizon, expert=expert)


def td_violations(mdp: TabularMDP, tolerance: float = 1e-12) -> list[str]:
    """
    Where a finite-horizon MDP with a deterministic expert breaks the paper's definition of a TD MDP.

    :param mdp: a finite-horizon MDP with an expert
    :param tolerance: for the comparison of probabilities, default 1e-12
    :return: one line per violated property and step; empty for a TD MDP
    """
    expert = mdp.require_expert().argmax(axis=-1)
    lines = []
    reachable = mdp.initial > 0
    for h in range((mdp.horizon or 1) - 1):
        kernel = mdp.kernel(h).reshape(mdp.n_states, mdp.n_actions, mdp.n_states)
        chosen = kernel[np.arange(mdp.n_states), expert[h]]
        following = (chosen > 0).any(axis=0)
        others = np.ones((mdp.n_states, mdp.n_actions), dtype=bool)
        others[np.arange(mdp.n_states), expert[h]] = False
        margin = (chosen[:, None, :] - kernel)[others][:, following]
        if (margin <= tolerance).any():
            lines.append(f"step {h}: an action other than the expert's is as likely to reach an expert-reachable state.")
        inside, outside = kernel[reachable][..., following], kernel[~reachable][..., following]
        if outside.size and (inside.min(axis=0) < outside.max(axis=0) - tolerance).any():
            lines.append(f"step {h}: a state that is not expert-reachable is likelier than one that is to reach such a state.")
        reachable = following
    return lines


@dataclass(frozen=True, eq=False)
class Gridworld:
    """
    A grid with walls and an absorbing goal, discounted.

    :param mdp: the MDP over the free cells; the actions are up, right, down, left; a blocked move stays
    :param cells: (row, column) of every state, shape (S, 2)
    :param goal: state index of the goal
    :param layout: the rows of text it was built from
    """

    mdp: TabularMDP
    cells: np.ndarray
    goal: int
    layout: tuple[str, ...]

    def state(self, row: int, column: int) -> int:
        """
        State index of a cell.

        :param row: counted from the top
        :param column: counted from the left
        """
        return int(np.flatnonzero((self.cells == (row, column)).all(axis=1))[0])

    def demonstration(self, start: int | None = None) -> TabularDemos:
        """
        One expert trajectory into the goal, and a last action there, which the absorbing goal repeats for ever.

        :param start: first state, default the state marked S
        """
        expert = self.mdp.require_expert().argmax(axis=-1)
        state = int(self.mdp.initial.argmax()) if start is None else start
        states, actions = [state], []
        while state != self.goal:
            actions.append(int(expert[state]))
            state = int(self.mdp.transitions[state, actions[-1]].argmax())
            states.append(state)
        return TabularDemos.from_trajectories([([*states, self.goal], [*actions, int(expert[self.goal])])])


# S start, G goal, # wall, . free
VALUE_FLOW_LAYOUT = (
    "..........",
    ".S........",
    "....##....",
    "....#.....",
    ".##.#..##.",
    "..#....#..",
    "..#.#..#..",
    "....#.....",
    ".......G..",
    "..........",
)


def gridworld(
    layout: tuple[str, ...] = VALUE_FLOW_LAYOUT, discount: float = 0.95, slip: float = 0.0, uniform_start: float = 0.0
) -> Gridworld:
    """
    A gridworld from rows of text: ``S`` start, ``G`` goal, ``#`` wall, ``.`` free. The expert walks a shortest path, ties
    broken so that it keeps to the direction with the longer way left. The reward is 1 in the goal and 0 elsewhere.

    :param layout: rows of equal length, default the figure's grid
    :param discount: gamma, default 0.95
    :param slip: probability that a move goes in a uniformly random direction, default 0
    :param uniform_start: share of rho that is uniform over the free cells, the rest being on the start, default 0
    :return: the gridworld
    :raises ValueError: if the layout has not exactly one S and one G, or if the goal cannot be reached from a free cell
    """
    grid = np.array([list(row) for row in layout])
    if (grid == "S").sum() != 1 or (grid == "G").sum() != 1:
        raise ValueError(
            f"the layout has {(grid == 'S').sum()} S and {(grid == 'G').sum()} G, expected one of each: edit its rows."
        )
    cells = np.argwhere(grid != "#")
    index = {tuple(cell): i for i, cell in enumerate(cells)}
    n_states = len(cells)
    start, goal = index[tuple(np.argwhere(grid == "S")[0])], index[tuple(np.argwhere(grid == "G")[0])]
    target = np.array([[index.get((r + dr, c + dc), i) for dr, dc in MOVES] for i, (r, c) in enumerate(cells)])
    target[goal] = goal
    moves = np.eye(n_states)[target]
    transitions = (1.0 - slip) * moves + slip * moves.mean(axis=1, keepdims=True)
    distance = np.full(n_states, np.inf)
    distance[goal] = 0
    for _ in range(n_states):
        distance = np.minimum(distance, 1 + distance[target].min(axis=1))
    if np.isinf(distance).any():
        raise ValueError(
            f"cell {tuple(cells[np.isinf(distance)][0])} cannot reach the goal, expected every free cell to: open a wall."
        )
    expert = np.zeros(n_states, dtype=int)
    for i, cell in enumerate(cells):
        best = np.flatnonzero(distance[target[i]] == distance[target[i]].min())
        left = np.abs(cells[goal] - cell)
        expert[i] = max(best, key=lambda a: (left[0 if MOVES[a][0] else 1], -a))
    rho = np.full(n_states, uniform_start / n_states)
    rho[start] += 1.0 - uniform_start
    reward = np.zeros((n_states, 4))
    reward[goal] = 1.0
    return Gridworld(TabularMDP(transitions, rho, discount=discount, reward=reward, expert=expert), cells, goal, layout)


def mdp_from_gymnasium(env: Any, horizon: int | None = None, discount: float = 1.0) -> TabularMDP:
    """
    The MDP of a gymnasium environment that carries its transition table, as the toy_text ones do.

    A transition marked as ending the episode leads to one more state, the last one, which absorbs without reward.

    :param env: the environment, or its id
    :param horizon: H for a finite-horizon MDP, default None (discounted)
    :param discount: gamma without a horizon
    :return: the MDP, without expert
    :raises ValueError: if the environment has no table ``P`` or no ``initial_state_distrib``
    """
    if isinstance(env, str):
        import gymnasium

        env = gymnasium.make(env)
    table, initial = getattr(env.unwrapped, "P", None), getattr(env.unwrapped, "initial_state_distrib", None)
    if table is None or initial is None:
        raise ValueError(
            f"{env} has no P and initial_state_distrib, expected a toy_text environment: build TabularMDP from arrays."
        )
    n_states, n_actions = len(table), len(table[0])
    transitions = np.zeros((n_states + 1, n_actions, n_states + 1))
    reward = np.zeros((n_states + 1, n_actions))
    transitions[-1, :, -1] = 1.0
    for s, actions in table.items():
        for a, outcomes in actions.items():
            for probability, following, payoff, ended in outcomes:
                transitions[s, a, n_states if ended else following] += probability
                reward[s, a] += probability * payoff
    return TabularMDP(transitions, np.append(initial, 0.0), horizon=horizon, discount=discount, reward=reward)
