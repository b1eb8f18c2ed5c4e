"""LS-IQ: implicit rewards by least squares, in its plain, H and HC variants."""

from __future__ import annotations

from typing import Any

import torch as th
from gymnasium import spaces
from torch.nn import functional as F

from sb3_dualqdm import objectives
from sb3_dualqdm.algorithms.arguments import check_choice, check_number
from sb3_dualqdm.algorithms.batches import Batch
from sb3_dualqdm.algorithms.search import REGULARIZATION_WEIGHT
from sb3_dualqdm.algorithms.soft_actor_critic import SoftActorCritic
from sb3_dualqdm.networks import StateActionNetwork
from sb3_dualqdm.objectives import LSIQTargets, Rows, RowWeights
from sb3_dualqdm.policies import Draw

VARIANTS = ("plain", "H", "HC")
POLICY_TERMS = ("value", "q_old_policy")
EXPERT_TARGETS = ("fixed", "bootstrap")
LOSSES = ("mse", "huber")
EXPERT_ENTROPIES = ("clip_below", "clip_above", "unclipped")
CHARGED_STATES = ("current", "next")
# Range of the entropies that the H network may predict
ENTROPY_RANGE = (-1e4, 1e3)


class EntropyNetwork(StateActionNetwork):
    """H(s, a), with the running maximum of the policy's entropies."""

    largest_entropy: th.Tensor

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.register_buffer("largest_entropy", th.zeros(()))


class LSIQ(SoftActorCritic):
    """
    LS-IQ (Al-Hafez et al., 2023), as its authors' launchers run it: fixed targets ``1 / (c (1 - gamma))`` on expert rows,
    least squares towards the reward ``-1 / c`` under the policy, and target values clipped to what these rewards allow.

    The authors leave values after terminations at zero in what they run (``terminal_value="zero"``) and offer an option that
    is ``"absorbing"`` (default) here. Discrete actions, which the authors do not treat, use the exact soft value.

    :param args: see :class:`ImitationAlgorithm`; ``value_mode`` is unused, ``objective`` must be left out
    :param regularization: c, default 0.5
    :param variant: ``"plain"`` (default); ``"H"``: Q without entropy, a second network H(s, a) with the future entropy, the
        actor maximises their sum; ``"HC"``: H accumulates the charge ``c r^2`` of the rewards too. H and HC: Box only
    :param policy_term: ``"value"`` (default): V(s) of all rows; ``"q_old_policy"``: Q(s, a) of replay rows
    :param expert_target: ``"fixed"`` (default) or ``"bootstrap"``: ``1 / c + gamma V(s')``
    :param td_loss: ``"mse"`` (default) or ``"huber"``, of both terms
    :param expert_entropy: entropies at the expert's next states, for H and HC: ``"clip_below"`` (default, what the authors'
        code does): at least the running maximum of the policy's; ``"clip_above"``: at most it, which their comment says;
        ``"unclipped"``
    :param charged_state: V in the reward that HC charges: of the ``"current"`` state (default, what the authors' code does)
        or of the ``"next"`` one, as in the implicit reward
    :param entropy_tau: Polyak coefficient of H's target network, default None: ``tau``
    :param kwargs: see :class:`ImitationAlgorithm`
    """

    search_space = SoftActorCritic.search_space | REGULARIZATION_WEIGHT

    def __init__(
        self,
        *args: Any,
        regularization: float = 0.5,
        variant: str = "plain",
        policy_term: str = "value",
        expert_target: str = "fixed",
        td_loss: str = "mse",
        expert_entropy: str = "clip_below",
        charged_state: str = "current",
        entropy_tau: float | None = None,
        **kwargs: Any,
    ):
        self.regularization = regularization
        self.variant = variant
        self.policy_term = policy_term
        self.expert_target = expert_target
        self.td_loss = td_loss
        self.expert_entropy = expert_entropy
        self.charged_state = charged_state
        self.entropy_tau = entropy_tau
        super().__init__(*args, **kwargs)

    def _check_arguments(self) -> None:
        super()._check_arguments()
        for name, options in {
            "variant": VARIANTS,
            "policy_term": POLICY_TERMS,
            "expert_target": EXPERT_TARGETS,
            "td_loss": LOSSES,
            "expert_entropy": EXPERT_ENTROPIES,
            "charged_state": CHARGED_STATES,
        }.items():
            check_choice(name, getattr(self, name), options)
        check_number("regularization", self.regularization, "(0, inf)")
        if self.gamma == 1:
            raise ValueError("gamma is 1 but the largest value of LS-IQ is 1 / (c (1 - gamma)): use gamma < 1.")
        if self.entropy_tau is not None:
            check_number("entropy_tau", self.entropy_tau, "[0, 1]", ", or None for tau,")
        if self.variant != "plain" and isinstance(self.action_space, spaces.Discrete):
            raise ValueError(f"variant is {self.variant!r} but Discrete actions have an exact soft value: use 'plain'.")

    def _check_offline_data(self) -> None:
        super()._check_offline_data()
        if self.offline and self.extra_transitions is None and self.policy_term == "q_old_policy":
            raise ValueError(
                "policy_term='q_old_policy' needs replay rows but offline=True has none: use 'value' or extra_transitions=."
            )

    def _make_networks(self) -> dict[str, th.nn.Module]:
        if self.variant == "plain":
            return {}
        arch = self.policy.critic_kwargs["net_arch"]
        h, h_target = (EntropyNetwork(self.policy, arch) for _ in range(2))
        h_target.load_state_dict(h.state_dict())
        return {"h": h.optimised_by(th.optim.Adam, self.lr_schedule(1)), "h_target": h_target}

    @property
    def _targets(self) -> LSIQTargets:
        return LSIQTargets.of(self.regularization, self.gamma)

    def critic_loss(self, rows: Rows, weights: RowWeights) -> th.Tensor:
        huber = self.td_loss == "huber"
        return objectives.ls_iq_loss(rows, weights, self.gamma, self._targets, self.policy_term, self.expert_target, huber)

    def _largest_reward(self) -> float:
        return self._targets.r_max

    def _critic_ent_coef(self) -> th.Tensor | float:
        return super()._critic_ent_coef() if self.variant == "plain" else 0.0  # H has the entropy

    def _actor_values(self, batch: Batch, draw: Draw) -> th.Tensor:
        q = super()._actor_values(batch, draw)
        return q if self.variant == "plain" else q + self.networks["h"](batch.obs, draw.actions[0])

    def _update(self, batch: Batch) -> dict[str, th.Tensor]:
        statistics = {} if self.variant == "plain" else {"entropy_loss": self._entropy_step(batch)}
        return {**statistics, **super()._update(batch)}

    def _entropy_step(self, batch: Batch) -> th.Tensor:
        """H towards the discounted entropy of what follows, and for HC the charge of this row."""
        h, h_target, ent_coef = self.networks["h"], self.networks["h_target"], self._current_ent_coef()
        with th.no_grad():
            draw = self.policy.draw(batch.next_obs, batch.noise.next_obs)
            entropy = self._next_entropies(-draw.log_prob[0], self._n_replay(batch))
            following = h_target(batch.next_obs, draw.actions[0]) + ent_coef * entropy
            target = self.gamma * batch.not_terminated * following
            if self.variant == "HC":
                highest = self._targets.r_max**2 / (1 - self.gamma) + 100
                target = (target + self._charge(batch, draw)).clamp(-1000, highest)
            else:
                target = target.clamp(*ENTROPY_RANGE)
        h_values = h(batch.obs, batch.actions)
        loss = F.huber_loss(h_values, target) if self.variant == "HC" else F.mse_loss(h_values, target)
        self._descend(h.optimizer, loss)
        return loss.detach()

    def _next_entropies(self, entropy: th.Tensor, n_replay: int) -> th.Tensor:
        """Entropies of the next states, those of expert rows clipped by the running maximum of the replay rows'."""
        if self.expert_entropy == "unclipped" or n_replay == 0:
            return entropy
        largest = self.networks["h"].largest_entropy
        gap = entropy[:n_replay].amax() - largest
        largest.add_(gap * th.where(gap > 0, 1e-2, 1e-4))
        expert = entropy[n_replay:]
        clipped = expert.maximum(largest) if self.expert_entropy == "clip_below" else expert.minimum(largest)
        return th.cat([entropy[:n_replay], clipped])

    def _charge(self, batch: Batch, next_draw: Draw) -> th.Tensor:
        q = self.critic_target.q_values(batch.obs, batch.actions).amin(dim=0)
        obs, draw = batch.next_obs, next_draw
        if self.charged_state == "current":
            obs, draw = batch.obs, self.policy.draw(batch.obs, batch.noise.obs)
        v = self.policy.value(self.critic_target, obs, draw, 0.0)
        is_absorbing = self.terminal_value == "absorbing"
        return objectives.ls_iq_regularizer(q, v, 1 - batch.not_terminated, self.gamma, self.regularization, is_absorbing)

    def _target_networks(self) -> list[tuple[Any, Any, float]]:
        critics = super()._target_networks()
        if self.variant == "plain":
            return critics
        tau = self.tau if self.entropy_tau is None else self.entropy_tau
        return [*critics, (self.networks["h"], self.networks["h_target"], tau)]
