"""Networks of the methods beside policy and critic: functions of a state, or of a state and an action, as SB3 modules."""

from __future__ import annotations

from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import BaseModel, BasePolicy
from stable_baselines3.common.preprocessing import get_action_dim
from stable_baselines3.common.torch_layers import create_mlp
from torch import nn

from sb3_dualqdm.policies import fused, in_place_relu, orthogonal_init


class _FeatureNetwork(BaseModel):
    """A scalar head on features of observations, which are extracted as the policy's are, with the policy's activation."""

    features_extractor: Any

    def __init__(
        self,
        policy: BasePolicy,
        input_dim: int,
        net_arch: list[int],
        gain: float = 1.0,
        spectral_norm: bool = False,
    ):
        super().__init__(
            policy.observation_space,
            policy.action_space,
            features_extractor_class=policy.features_extractor_class,
            features_extractor_kwargs=policy.features_extractor_kwargs,
            normalize_images=policy.normalize_images,
        )
        self.features_extractor = self.make_features_extractor()
        dim = self.features_extractor.features_dim + input_dim
        self.head = nn.Sequential(*create_mlp(dim, 1, net_arch, policy.activation_fn))  # type: ignore[arg-type]
        orthogonal_init(self.head)
        for layer in self.head:
            if isinstance(layer, nn.Linear):
                layer.weight.data.mul_(gain)
                if spectral_norm:
                    nn.utils.parametrizations.spectral_norm(layer)
        if not spectral_norm:
            in_place_relu(self.head)

    def features(self, obs: Any) -> th.Tensor:
        """Features of normalised observations, shape ``(N, F)``."""
        return self.extract_features(obs, self.features_extractor)

    def optimised_by(self, optimizer_class: type[th.optim.Optimizer], lr: float, **kwargs: Any) -> Any:
        """Give the network its optimiser, which is saved with it."""
        self.optimizer = optimizer_class(self.parameters(), lr=lr, **fused(optimizer_class, kwargs))  # type: ignore[call-arg]
        return self


class StateNetwork(_FeatureNetwork):
    """
    V(s).

    :param policy: has the spaces, the kind of features extractor and the activation
    :param net_arch: sizes of the hidden layers
    :param gain: gain of the orthogonal weights, default 1
    """

    def __init__(self, policy: BasePolicy, net_arch: list[int], gain: float = 1.0):
        super().__init__(policy, 0, net_arch, gain)

    def forward(self, obs: Any) -> th.Tensor:
        """Values of normalised observations, shape ``(N,)``."""
        return self.head(self.features(obs)).squeeze(-1)


class StateActionNetwork(_FeatureNetwork):
    """
    f(s, a), defined for the absorbing state too: its input is zero but for an indicator bit, which is zero elsewhere.

    :param policy: has the spaces, the kind of features extractor and the activation
    :param net_arch: sizes of the hidden layers
    :param spectral_norm: bound every layer's spectral norm by 1, default False
    """

    def __init__(self, policy: BasePolicy, net_arch: list[int], spectral_norm: bool = False):
        space = policy.action_space
        self.n_choices = int(space.n) if isinstance(space, spaces.Discrete) else 0
        self.action_dim = self.n_choices or get_action_dim(space)
        super().__init__(policy, self.action_dim + 1, net_arch, spectral_norm=spectral_norm)

    def inputs(self, obs: Any, actions: th.Tensor) -> th.Tensor:
        """
        What the head sees: features, action (one-hot for Discrete) and indicator bit, shape ``(N, F + A + 1)``.

        :param obs: normalised observations
        :param actions: ``(N, |A|)`` in [-1, 1], or ``(N,)`` integers
        """
        if self.n_choices > 0:
            # one_hot() would read the values on the host, which no captured or compiled update can
            actions = (actions.unsqueeze(-1) == th.arange(self.n_choices, device=actions.device)).float()
        features = self.features(obs)
        return th.cat([features, actions, th.zeros_like(features[:, :1])], dim=1)

    def forward(self, obs: Any, actions: th.Tensor) -> th.Tensor:
        """Values of states and actions, shape ``(N,)``."""
        return self.of_inputs(self.inputs(obs, actions))

    def of_inputs(self, inputs: th.Tensor) -> th.Tensor:
        """Values of what :meth:`inputs` returns, or of points between, shape ``(N,)``."""
        return self.head(inputs).squeeze(-1)

    def absorbing(self) -> th.Tensor:
        """Value of the absorbing state, where no action matters, shape ``()``."""
        size = self.features_extractor.features_dim + self.action_dim
        point = th.zeros(1, size + 1, device=self.device)
        point[:, size:] = 1
        return self.head(point).squeeze()

    def of_batch(self, batch: Any, terminal_value: str) -> th.Tensor:
        """
        Values of a batch's N rows, and with ``terminal_value="absorbing"`` of the N absorbing rows that follow them.

        :param batch: has ``obs`` and ``actions``
        :param terminal_value: see the constructor of the algorithms
        """
        values = self(batch.obs, batch.actions)
        return th.cat([values, self.absorbing().expand_as(values)]) if terminal_value == "absorbing" else values
