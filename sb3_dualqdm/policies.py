"""
Policies: a squashed-Gaussian actor with a soft Q critic for Box actions, a soft Q critic alone for Discrete actions.

Both offer the same few operations (``draw``, ``value``, ``q_and_value``, ``log_prob``), so that the training loop
is written once. ``MlpPolicy``, ``CnnPolicy`` and ``MultiInputPolicy`` name the Box classes; ``policy_for`` gives the
class that serves a space, since SB3 resolves the alias before the space is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import DiagGaussianDistribution, SquashedDiagGaussianDistribution
from stable_baselines3.common.policies import BaseModel, BasePolicy, ContinuousCritic
from stable_baselines3.common.preprocessing import get_action_dim
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
    create_mlp,
)
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from stable_baselines3.common.utils import get_device
from stable_baselines3.sac.policies import Actor, SACPolicy
from torch import nn
from torch.nn import functional as F

from sb3_dualqdm.objectives import sampled_soft_value, soft_value

NETWORK_STYLES = ("reference", "sb3")
ACTOR_DISTRIBUTIONS = ("squashed", "clipped")
# Recorded actions are kept this far from the box's border in [-1, 1], where the density of a squashed Gaussian is not finite.
ACTION_CLAMP = 1e-6


class Draw(NamedTuple):
    """Reparameterised samples, S for each state: ``actions`` in [-1, 1], ``(S, N, |A|)``, and ``log_prob``, ``(S, N)``."""

    actions: th.Tensor
    log_prob: th.Tensor

    def detach(self) -> Draw:
        return Draw(self.actions.detach(), self.log_prob.detach())


def fused(optimizer_class: type[th.optim.Optimizer], optimizer_kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """Adam steps all parameters in one pass unless the user says otherwise, be it by what excludes that."""
    kwargs = optimizer_kwargs or {}
    is_free = optimizer_class in (th.optim.Adam, th.optim.AdamW) and not {"foreach", "differentiable"} & kwargs.keys()
    return {**({"fused": True} if is_free else {}), **kwargs}


def orthogonal_init(*modules: nn.Module) -> None:
    """Orthogonal weights of gain 1 and zero biases in every linear layer, output layers included (the reference's choice)."""
    for module in modules:
        for layer in module.modules():
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight)
                nn.init.zeros_(layer.bias)


def in_place_relu(*modules: nn.Module) -> None:
    """Let every ReLU overwrite the output of the linear layer before it, which nothing else reads."""
    for module in modules:
        for layer in module.modules():
            if isinstance(layer, nn.ReLU):
                layer.inplace = True


class ExactSquashedGaussian(SquashedDiagGaussianDistribution):
    """SB3's squashed Gaussian with the exact log-determinant of tanh, ``2 (log 2 - u - softplus(-2u))``."""

    def log_prob(self, actions: th.Tensor, gaussian_actions: th.Tensor | None = None) -> th.Tensor:
        if gaussian_actions is None:
            gaussian_actions = unsquash(actions)
        gaussian = self.distribution.log_prob(gaussian_actions).sum(dim=1)
        return gaussian - log_det_tanh(gaussian_actions)


class ClippedGaussian(DiagGaussianDistribution):
    """Normal around ``tanh(mean)``, whose samples are clipped to [-1, 1]; its density is that before clipping."""

    def proba_distribution(self, mean_actions: th.Tensor, log_std: th.Tensor) -> ClippedGaussian:
        super().proba_distribution(th.tanh(mean_actions), log_std)
        return self

    def sample(self) -> th.Tensor:
        return super().sample().clamp(-1, 1)


def log_det_tanh(u: th.Tensor) -> th.Tensor:
    """``sum_i log(1 - tanh(u_i)^2)`` over the last dimension, exact for every finite u."""
    return (2 * (math.log(2) - u - F.softplus(-2 * u))).sum(dim=-1)


def unsquash(actions: th.Tensor) -> th.Tensor:
    """Inverse tanh of actions in [-1, 1], clamped ``ACTION_CLAMP`` inside the border."""
    return th.atanh(actions.clamp(-1 + ACTION_CLAMP, 1 - ACTION_CLAMP))


class _LoadsAlone(BaseModel):
    """Loading of a network saved alone, which torch 2.6 and newer refuse with Stable-Baselines3 before 2.5."""

    @classmethod
    def load(cls, path: Any, device: th.device | str = "auto") -> Any:
        """
        Load a network that ``save`` stored; only from where you would run code from, as with every SB3 file.

        :param path: file
        :param device: torch device, default ``"auto"``
        """
        device = get_device(device)
        # Spaces and classes are stored beside the weights
        saved = th.load(path, map_location=device, weights_only=False)
        network = cls(**saved["data"])
        network.load_state_dict(saved["state_dict"])
        return network.to(device)


class SquashedGaussianActor(_LoadsAlone, Actor):
    """
    SAC's actor, by default in the reference's parameterisation: orthogonal init, a smooth map of the log standard deviation
    to [-5, 2] and the exact tanh log-determinant.

    :param network_style: ``"reference"``, or ``"sb3"`` for SB3's own init, clamp to [-20, 2] and log-determinant
    """

    log_std: Any

    def __init__(self, *args: Any, network_style: str = "reference", **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.network_style = network_style
        in_place_relu(self.latent_pi)
        if network_style == "reference":
            self.action_dist: Any = ExactSquashedGaussian(get_action_dim(self.action_space))
            orthogonal_init(self.latent_pi, self.mu, self.log_std)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "network_style": self.network_style}

    def get_action_dist_params(self, obs: PyTorchObs) -> tuple[th.Tensor, th.Tensor, dict[str, th.Tensor]]:
        if self.network_style == "sb3":
            return super().get_action_dist_params(obs)
        latent_pi = self.latent_pi(self.extract_features(obs, self.features_extractor))
        log_std = -5 + 3.5 * (th.tanh(self.log_std(latent_pi)) + 1)
        return self.mu(latent_pi), log_std, {}

    def draw(self, obs: PyTorchObs, noise: th.Tensor) -> Draw:
        """
        Reparameterised samples.

        :param noise: standard normal, shape ``(S, N, |A|)`` for S samples of each state
        """
        mean, log_std, _ = self.get_action_dist_params(obs)
        u = mean + log_std.exp() * noise
        return Draw(th.tanh(u), self._log_density(noise, log_std, u))

    @staticmethod
    def _gaussian_log_density(standard: th.Tensor, log_std: th.Tensor) -> th.Tensor:
        return (-0.5 * standard.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(dim=-1)

    def _log_density(self, standard: th.Tensor, log_std: th.Tensor, u: th.Tensor) -> th.Tensor:
        """Of ``tanh(u)``, where ``standard`` is u less its mean, in standard deviations."""
        gaussian = self._gaussian_log_density(standard, log_std)
        if self.network_style == "sb3":
            return gaussian - th.log(1 - th.tanh(u).square() + self.action_dist.epsilon).sum(dim=-1)
        return gaussian - log_det_tanh(u)

    def log_prob(self, obs: PyTorchObs, actions: th.Tensor) -> th.Tensor:
        """Log-likelihood of actions in [-1, 1], shape ``(N,)``; actions at the border are clamped (``ACTION_CLAMP``)."""
        mean, log_std, _ = self.get_action_dist_params(obs)
        u = unsquash(actions)
        # written out: torch's Normal looks at its arguments, for which a captured update cannot wait
        return self._log_density((u - mean) * th.exp(-log_std), log_std, u)


class ClippedGaussianActor(SquashedGaussianActor):
    """
    ReCOIL's actor: a normal around ``tanh(mean(s))`` with one learned deviation for all states, clipped to the action box.

    Cloning with it is least squares on the mean. Where the deviation depends on the state, the likelihood is raised most by
    shrinking it where actions are fitted already, and all other states lose their share of the gradient.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        action_dim = get_action_dim(self.action_space)
        self.log_std = nn.Parameter(th.zeros(action_dim))
        self.action_dist = ClippedGaussian(action_dim)

    def get_action_dist_params(self, obs: PyTorchObs) -> tuple[th.Tensor, th.Tensor, dict[str, th.Tensor]]:
        mean = self.mu(self.latent_pi(self.extract_features(obs, self.features_extractor)))
        return mean, self.log_std.clamp(-5, 2).expand_as(mean), {}

    def draw(self, obs: PyTorchObs, noise: th.Tensor) -> Draw:
        mean, log_std, _ = self.get_action_dist_params(obs)
        return Draw((th.tanh(mean) + log_std.exp() * noise).clamp(-1, 1), self._gaussian_log_density(noise, log_std))

    def log_prob(self, obs: PyTorchObs, actions: th.Tensor) -> th.Tensor:
        mean, log_std, _ = self.get_action_dist_params(obs)
        return self._gaussian_log_density((actions - th.tanh(mean)) * th.exp(-log_std), log_std)


def batched(networks: Sequence[nn.Module], x: th.Tensor) -> th.Tensor:
    """
    Outputs of an ensemble of equal MLPs on the same rows, every layer as one batched product.

    :param networks: C sequential networks of the same architecture
    :param x: shape ``(N, in)``
    :return: shape ``(C, N, out)``
    """
    if len(networks) == 1:
        return networks[0](x).unsqueeze(0)
    x = x.expand(len(networks), *x.shape)
    for layers in zip(*networks):  # type: ignore[call-overload]
        if isinstance(layers[0], nn.Linear):
            bias = th.stack([layer.bias for layer in layers]).unsqueeze(1)
            x = th.baddbmm(bias, x, th.stack([layer.weight for layer in layers]).transpose(1, 2))
        else:
            x = layers[0](x)
    return x


class _SoftQMixin(_LoadsAlone):
    """What continuous and discrete critics share: the absorbing state's value, the bounded head and the init."""

    def _setup_soft_q(
        self: Any,
        net_arch: list[int],
        features_dim: int,
        activation_fn: type[nn.Module],
        network_style: str,
        q_range: tuple[float, float] | None,
    ) -> None:
        self.net_arch = net_arch
        self.features_dim = features_dim
        self.activation_fn = activation_fn
        self.network_style = network_style
        self.q_range = q_range
        # Value of the absorbing state that terminated transitions lead to, one per critic, in units of 1 / (1 - gamma)
        self.absorbing = nn.Parameter(th.zeros(self.n_critics))
        in_place_relu(*self.q_networks)
        if network_style == "reference":
            orthogonal_init(*self.q_networks)

    def _get_constructor_parameters(self: Any) -> dict[str, Any]:
        names = ("net_arch", "features_extractor", "features_dim", "activation_fn", "n_critics", "network_style", "q_range")
        return {**super()._get_constructor_parameters(), **{name: getattr(self, name) for name in names}}

    def bounded(self: Any, q: th.Tensor) -> th.Tensor:
        """Smooth head onto the Q-class ``[low, high]``; the identity where no range is set."""
        if self.q_range is None:
            return q
        low, high = self.q_range
        half = (high - low) / 2
        return low + half + half * th.tanh(q / half)


class ContinuousSoftQ(_SoftQMixin, ContinuousCritic):
    """
    Q(s, a) for Box actions: SB3's ``ContinuousCritic`` with the values stacked.

    :param network_style: see :class:`SquashedGaussianActor`
    :param q_range: bounds of the Q-class (the paper's [0, C]), enforced by a tanh head; None: unbounded
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Box,
        net_arch: list[int],
        features_extractor: BaseFeaturesExtractor,
        features_dim: int,
        activation_fn: type[nn.Module] = nn.ReLU,
        *args: Any,
        network_style: str = "reference",
        q_range: tuple[float, float] | None = None,
        **kwargs: Any,
    ):
        super().__init__(
            observation_space, action_space, net_arch, features_extractor, features_dim, activation_fn, *args, **kwargs
        )
        self._setup_soft_q(net_arch, features_dim, activation_fn, network_style, q_range)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "share_features_extractor": self.share_features_extractor}

    def q_values(self, obs: Any, actions: th.Tensor) -> th.Tensor:
        """
        Q of every critic, shape ``(C, k * N)``.

        :param obs: N observations, whose features are computed once
        :param actions: k actions in [-1, 1] for each of them, shape ``(k * N, |A|)``: the first of all N, then the second, ...
        """
        with th.set_grad_enabled(th.is_grad_enabled() and not self.share_features_extractor):
            features = self.extract_features(obs, self.features_extractor)
        features = features.expand(len(actions) // len(features), *features.shape).flatten(0, 1)
        return self.bounded(batched(self.q_networks, th.cat([features, actions], dim=1)).squeeze(-1))


class DiscreteSoftQ(_SoftQMixin, BaseModel):
    """
    Q(s, .) for Discrete actions, shape ``(C, N, |A|)``; parameters as in :class:`ContinuousSoftQ`.
    """

    action_space: spaces.Discrete
    features_extractor: BaseFeaturesExtractor

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Discrete,
        net_arch: list[int],
        features_extractor: BaseFeaturesExtractor,
        features_dim: int,
        activation_fn: type[nn.Module] = nn.ReLU,
        normalize_images: bool = True,
        n_critics: int = 1,
        network_style: str = "reference",
        q_range: tuple[float, float] | None = None,
    ):
        super().__init__(
            observation_space, action_space, features_extractor=features_extractor, normalize_images=normalize_images
        )
        self.n_critics = n_critics
        self.q_networks: list[nn.Module] = []
        for index in range(n_critics):
            q_net = nn.Sequential(*create_mlp(features_dim, int(action_space.n), net_arch, activation_fn))
            self.add_module(f"qf{index}", q_net)
            self.q_networks.append(q_net)
        self._setup_soft_q(net_arch, features_dim, activation_fn, network_style, q_range)

    def forward(self, obs: PyTorchObs) -> th.Tensor:
        features = self.extract_features(obs, self.features_extractor)
        return self.bounded(batched(self.q_networks, features))


def _check_choice(name: str, value: Any, options: Sequence[str]) -> None:
    if value not in options:
        raise ValueError(f"{name} is {value!r} but must be one of {options}: set it in policy_kwargs.")


class SoftActorCriticPolicy(_LoadsAlone, SACPolicy):
    """
    Actor and soft Q critics for Box actions. Parameters are SAC's; see :class:`stable_baselines3.sac.policies.SACPolicy`.

    :param n_critics: number of critics, default 1 as in the reference; V uses their minimum
    :param network_style: ``"reference"`` (default) or ``"sb3"``, see :class:`SquashedGaussianActor`
    :param q_range: bounds of the Q-class, see :class:`ContinuousSoftQ`; default None
    :param actor_distribution: ``"squashed"`` (default), see :class:`SquashedGaussianActor`, or ``"clipped"``, see
        :class:`ClippedGaussianActor`
    """

    actor: SquashedGaussianActor
    critic: ContinuousSoftQ
    critic_target: ContinuousSoftQ

    def __init__(
        self,
        *args: Any,
        n_critics: int = 1,
        network_style: str = "reference",
        q_range: tuple[float, float] | None = None,
        actor_distribution: str = "squashed",
        **kwargs: Any,
    ):
        _check_choice("network_style", network_style, NETWORK_STYLES)
        _check_choice("actor_distribution", actor_distribution, ACTOR_DISTRIBUTIONS)
        self.actor_distribution = actor_distribution
        self._style = {"network_style": network_style}
        self._critic_style: dict[str, Any] = {"network_style": network_style, "q_range": q_range}
        optimizer_kwargs = fused(kwargs.get("optimizer_class", th.optim.Adam), kwargs.pop("optimizer_kwargs", None))
        super().__init__(*args, **{"n_critics": n_critics, "optimizer_kwargs": optimizer_kwargs, **kwargs})

    def _get_constructor_parameters(self) -> dict[str, Any]:
        own = {**self._critic_style, "actor_distribution": self.actor_distribution}
        return {**super()._get_constructor_parameters(), **own}

    def make_actor(self, features_extractor: BaseFeaturesExtractor | None = None) -> SquashedGaussianActor:
        kwargs = self._update_features_extractor(self.actor_kwargs, features_extractor)
        actor_class = ClippedGaussianActor if self.actor_distribution == "clipped" else SquashedGaussianActor
        return actor_class(**kwargs, **self._style).to(self.device)

    def make_critic(self, features_extractor: BaseFeaturesExtractor | None = None) -> ContinuousSoftQ:
        kwargs = self._update_features_extractor(self.critic_kwargs, features_extractor)
        return ContinuousSoftQ(**kwargs, **self._critic_style).to(self.device)

    # The operations that the training loop uses

    def draw(self, obs: PyTorchObs, noise: th.Tensor) -> Draw:
        """Policy samples for every state of ``obs``; ``noise`` is standard normal of shape ``(S, N, |A|)``."""
        return self.actor.draw(obs, noise)

    def value(self, critic: ContinuousSoftQ, obs: PyTorchObs, draw: Draw, ent_coef: th.Tensor | float) -> th.Tensor:
        """Soft value V(s), shape ``(N,)``, the mean over the samples of each state; the policy is a constant in it."""
        actions, log_prob = draw.detach()
        q = critic.q_values(obs, actions.flatten(0, 1)).amin(dim=0)
        return sampled_soft_value(q.view_as(log_prob), log_prob, ent_coef).mean(dim=0)

    def q_and_value(
        self, obs: PyTorchObs, actions: th.Tensor, draw: Draw, ent_coef: th.Tensor | float
    ) -> tuple[th.Tensor, th.Tensor]:
        """Online Q(s, a), shape ``(C, N)``, and V(s), shape ``(N,)``, by one pass through the critics."""
        policy_actions, log_prob = draw.detach()
        values = self.critic.q_values(obs, th.cat([actions, policy_actions.flatten(0, 1)]))
        q, policy_q = values.split([len(actions), log_prob.numel()], dim=1)
        v = sampled_soft_value(policy_q.amin(dim=0).view_as(log_prob), log_prob, ent_coef)
        return q, v.mean(dim=0)

    def log_prob(self, obs: PyTorchObs, actions: th.Tensor) -> th.Tensor:
        """Log-likelihood of recorded actions, shape ``(N,)``."""
        return self.actor.log_prob(obs, actions)


class SoftQPolicy(_LoadsAlone, BasePolicy):
    """
    Softmax policy of a soft Q-function for Discrete actions: ``pi(a|s) = softmax(Q(s, .) / alpha)`` (paper, eq. softmax_pi).

    ``predict(..., deterministic=True)`` takes the action of highest Q, otherwise it samples.
    Parameters as in :class:`SoftActorCriticPolicy`, without those of the actor.
    """

    critic: DiscreteSoftQ
    critic_target: DiscreteSoftQ
    temperature: th.Tensor

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        net_arch: list[int] | dict[str, list[int]] | None = None,
        activation_fn: type[nn.Module] = nn.ReLU,
        features_extractor_class: type[BaseFeaturesExtractor] = FlattenExtractor,
        features_extractor_kwargs: dict[str, Any] | None = None,
        normalize_images: bool = True,
        optimizer_class: type[th.optim.Optimizer] = th.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        n_critics: int = 1,
        network_style: str = "reference",
        q_range: tuple[float, float] | None = None,
    ):
        _check_choice("network_style", network_style, NETWORK_STYLES)
        super().__init__(
            observation_space,
            action_space,
            features_extractor_class,
            features_extractor_kwargs,
            optimizer_class=optimizer_class,
            optimizer_kwargs=fused(optimizer_class, optimizer_kwargs),
            normalize_images=normalize_images,
        )
        if net_arch is None:
            net_arch = [256, 256]
        if isinstance(net_arch, dict) and "qf" not in net_arch:
            raise ValueError(
                f"net_arch has the keys {sorted(net_arch)} but the policy is a Q-network alone: give its layers as 'qf'."
            )
        self.net_arch = net_arch["qf"] if isinstance(net_arch, dict) else net_arch
        self.activation_fn = activation_fn
        self.critic_kwargs: dict[str, Any] = {
            "observation_space": observation_space,
            "action_space": action_space,
            "net_arch": self.net_arch,
            "activation_fn": activation_fn,
            "normalize_images": normalize_images,
            "n_critics": n_critics,
            "network_style": network_style,
            "q_range": q_range,
        }
        # The temperature alpha of the softmax, kept with the weights so that a policy saved alone samples as trained
        self.register_buffer("temperature", th.ones(()))
        self.critic, self.critic_target = self.make_critic(), self.make_critic()
        self.critic_target.load_state_dict(self.critic.state_dict())
        self.critic.optimizer = self.optimizer_class(
            self.critic.parameters(),
            lr=lr_schedule(1),  # type: ignore[call-arg]
            **self.optimizer_kwargs,
        )
        self.critic_target.set_training_mode(False)

    def make_critic(self) -> DiscreteSoftQ:
        return DiscreteSoftQ(**self._update_features_extractor(self.critic_kwargs)).to(self.device)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {
            **super()._get_constructor_parameters(),
            **{k: v for k, v in self.critic_kwargs.items() if k not in ("observation_space", "action_space")},
            "lr_schedule": self._dummy_schedule,
            "optimizer_class": self.optimizer_class,
            "optimizer_kwargs": self.optimizer_kwargs,
            "features_extractor_class": self.features_extractor_class,
            "features_extractor_kwargs": self.features_extractor_kwargs,
        }

    def set_training_mode(self, mode: bool) -> None:
        self.critic.set_training_mode(mode)
        self.training = mode

    def forward(self, obs: PyTorchObs, deterministic: bool = False) -> th.Tensor:
        return self._predict(obs, deterministic)

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> th.Tensor:
        q = self.critic(observation).amin(dim=0)
        if deterministic:
            return q.argmax(dim=-1)
        # A softmax sample by the Gumbel-max trick; at temperature 0 the softmax is the greedy policy
        return (q / self.temperature.clamp(min=1e-8) - th.empty_like(q).exponential_().log()).argmax(dim=-1)

    # The operations that the training loop uses; nothing is sampled, the soft value is exact

    def draw(self, obs: PyTorchObs, noise: th.Tensor | None) -> None:
        return None

    def value(self, critic: DiscreteSoftQ, obs: PyTorchObs, draw: None, ent_coef: th.Tensor | float) -> th.Tensor:
        """Exact soft value V(s), shape ``(N,)``."""
        return soft_value(critic(obs).amin(dim=0), ent_coef)

    def q_and_value(
        self, obs: PyTorchObs, actions: th.Tensor, draw: None, ent_coef: th.Tensor | float
    ) -> tuple[th.Tensor, th.Tensor]:
        """Online Q(s, a), shape ``(C, N)``, and V(s), shape ``(N,)``, by one pass through the critics."""
        q = self.critic(obs)
        index = actions.expand(len(q), -1).unsqueeze(-1)
        return q.gather(-1, index).squeeze(-1), soft_value(q.amin(dim=0), ent_coef)

    def log_prob(self, obs: PyTorchObs, actions: th.Tensor) -> th.Tensor:
        """Log-likelihood of recorded actions, shape ``(N,)``."""
        log_probs = F.log_softmax(self.critic(obs).amin(dim=0) / self.temperature.clamp(min=1e-8), dim=-1)
        return log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


class MlpPolicy(SoftActorCriticPolicy):
    """Box actions, flat observations."""


class CnnPolicy(SoftActorCriticPolicy):
    """Box actions, image observations (``NatureCNN``)."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{"features_extractor_class": NatureCNN, **kwargs})


class MultiInputPolicy(SoftActorCriticPolicy):
    """Box actions, Dict observations (``CombinedExtractor``)."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{"features_extractor_class": CombinedExtractor, **kwargs})


class DiscreteMlpPolicy(SoftQPolicy):
    """Discrete actions, flat observations."""


class DiscreteCnnPolicy(SoftQPolicy):
    """Discrete actions, image observations (``NatureCNN``)."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{"features_extractor_class": NatureCNN, **kwargs})


class DiscreteMultiInputPolicy(SoftQPolicy):
    """Discrete actions, Dict observations (``CombinedExtractor``)."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{"features_extractor_class": CombinedExtractor, **kwargs})


POLICY_ALIASES: dict[str, type[BasePolicy]] = {
    "MlpPolicy": MlpPolicy,
    "CnnPolicy": CnnPolicy,
    "MultiInputPolicy": MultiInputPolicy,
}
_DISCRETE: dict[type[BasePolicy], type[BasePolicy]] = {
    MlpPolicy: DiscreteMlpPolicy,
    CnnPolicy: DiscreteCnnPolicy,
    MultiInputPolicy: DiscreteMultiInputPolicy,
}


def policy_for(policy_class: type[BasePolicy], action_space: spaces.Space) -> type[BasePolicy]:
    """
    The class that serves an action space: ours are exchanged for their counterpart, a user's own class must fit already.

    :param policy_class: class that an alias or the user named
    :raises TypeError: when the class cannot serve the space
    """
    needed: type[BasePolicy] = SoftQPolicy if isinstance(action_space, spaces.Discrete) else SoftActorCriticPolicy
    if issubclass(policy_class, needed):
        return policy_class
    counterparts = {**_DISCRETE, **{discrete: box for box, discrete in _DISCRETE.items()}}
    if policy_class in counterparts:
        return counterparts[policy_class]
    raise TypeError(
        f"The policy class {policy_class.__name__} cannot serve {type(action_space).__name__} actions: "
        f"use 'MlpPolicy', 'CnnPolicy', 'MultiInputPolicy' or a subclass of {needed.__name__}."
    )
