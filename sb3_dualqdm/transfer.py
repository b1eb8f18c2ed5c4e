"""Continuing with reinforcement learning: a trained actor in Stable-Baselines3's SAC."""

from __future__ import annotations

import warnings
from typing import Any

from gymnasium import spaces
from stable_baselines3 import SAC
from stable_baselines3.sac.policies import SACPolicy
from torch import nn

from sb3_dualqdm.algorithms import ImitationAlgorithm
from sb3_dualqdm.algorithms.arguments import noise_for
from sb3_dualqdm.algorithms.environments import is_placeholder

# What SAC takes over from the model, unless the caller says otherwise
_ARGUMENTS = (
    *("learning_rate", "buffer_size", "batch_size", "tau", "gamma", "gradient_steps", "action_noise"),
    *("target_update_interval", "tensorboard_log", "verbose", "seed", "device"),
)
_POLICY_ARGUMENTS = (
    *("net_arch", "activation_fn", "clip_mean", "n_critics", "normalize_images", "optimizer_class"),
    *("optimizer_kwargs", "features_extractor_class", "features_extractor_kwargs"),
)


def to_sac(model: ImitationAlgorithm, env: Any = None, **kwargs: Any) -> SAC:
    """
    A SAC with the trained actor and critics of a model, to go on learning from the environment's reward.

    With ``network_style="sb3"`` the policy is the same one. With the default style its mean is the same, but SAC maps the log
    standard deviation by another function, which a linear approximation of ours replaces; a warning says so. Critics are
    copied (ValueDICE's nu with the opposite sign) where their shapes agree and no ``q_range`` bounds them, which SAC cannot
    express. The replay buffer, which holds the rewards that the model never read, moves along unless it has
    ``extra_transitions`` (whose rewards are unknown) or ``env`` has another number of copies.

    :param model: a model with Box actions
    :param env: environment, default None: the model's
    :param kwargs: arguments of SAC; by default the model's own, a temperature that is learned from the model's on, and
        ``learning_starts=0`` where the replay buffer moves along. ``policy_kwargs`` extends the model's
    :return: the new model; ``model`` keeps its networks
    :raises ValueError: for Discrete actions, without environment, or with an actor of other shapes
    """
    if isinstance(model.action_space, spaces.Discrete):
        raise ValueError(f"The actions are {model.action_space} but SAC needs Box actions: a soft Q-function has no actor.")
    env = model.get_env() if env is None else env
    if env is None or is_placeholder(env):
        raise ValueError("Neither the model nor the call has an environment to continue in: pass env=.")
    policy_arguments = model.policy._get_constructor_parameters()
    policy_kwargs = {name: policy_arguments[name] for name in _POLICY_ARGUMENTS}
    policy_kwargs["share_features_extractor"] = model.policy.share_features_extractor
    policy_kwargs.update(kwargs.pop("policy_kwargs", None) or {})
    arguments = {name: getattr(model, name) for name in _ARGUMENTS}
    temperature = float(model._current_ent_coef())
    arguments["ent_coef"] = f"auto_{temperature}" if temperature > 0 else "auto"
    train_freq: Any = model.train_freq
    arguments["train_freq"] = (train_freq.frequency, train_freq.unit.value)
    replay_buffer = model._replay_buffer
    moves = replay_buffer is not None and replay_buffer.size() > 0 and not replay_buffer.prefilled
    moves = moves and not {"buffer_size", "replay_buffer_class", "replay_buffer_kwargs", "optimize_memory_usage"} & set(kwargs)
    sac = SAC(SACPolicy, env, **{**arguments, **kwargs}, policy_kwargs=policy_kwargs)
    if moves and replay_buffer.n_envs == sac.n_envs:
        sac.replay_buffer = replay_buffer
        sac.learning_starts = kwargs.get("learning_starts", 0)

    if "action_noise" not in kwargs:
        sac.action_noise = noise_for(sac.action_noise, sac.n_envs)

    actor = model.actor.state_dict()
    if model.policy.actor_distribution == "clipped":
        # one deviation for all states: the head that gives it
        log_std = actor.pop("log_std")
        actor["log_std.weight"] = log_std.new_zeros(len(log_std), actor["mu.weight"].shape[1])
        actor["log_std.bias"] = log_std
        warnings.warn(
            "The mean of the policy is exact but its spread differs in SAC, which adds noise before tanh: train with "
            'policy_kwargs={"actor_distribution": "squashed", "network_style": "sb3"} to move a policy exactly.',
            stacklevel=2,
        )
    elif model.actor.network_style != "sb3":
        # -5 + 3.5 (tanh(x) + 1) around x = 0
        actor["log_std.weight"] = 3.5 * actor["log_std.weight"]
        actor["log_std.bias"] = 3.5 * actor["log_std.bias"] - 1.5
        warnings.warn(
            'The mean of the policy is exact but its spread differs in SAC: train with policy_kwargs={"network_style": "sb3"} '
            "to move a policy exactly.",
            stacklevel=2,
        )
    if not _copied(sac.actor, actor):
        raise ValueError(
            f"policy_kwargs has an actor of other shapes than the trained one ({policy_arguments['net_arch']}): leave out "
            "net_arch and the features extractor."
        )
    if model.critic.q_range is None:
        for ours, theirs in ((model.critic, sac.critic), (model.critic_target, sac.critic_target)):
            for name, network in theirs.named_children():
                if hasattr(ours, name) and _copied(network, getattr(ours, name).state_dict()) and name.startswith("qf"):
                    for parameter in list(network.children())[-1].parameters():  # SAC's critics are a Q
                        parameter.data.mul_(model.critic_sign)
    return sac


def _copied(network: nn.Module, state: dict[str, Any]) -> bool:
    """Copy weights into a network of the same shapes; whether it is one."""
    shapes = [{name: value.shape for name, value in part.items()} for part in (network.state_dict(), state)]
    if shapes[0] != shapes[1]:
        return False
    network.load_state_dict(state)
    return True
