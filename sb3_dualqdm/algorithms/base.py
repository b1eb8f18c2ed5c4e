"""
The one training loop behind every method: an SB3 off-policy algorithm that learns from demonstrations instead of rewards.

A method is a subclass that says which objective it minimises (:meth:`ImitationAlgorithm.critic_loss`); collecting, sampling,
target networks, saving and logging are written here once. One update, in the order of the paper's Algorithm 2:
critic step, actor step on the same states, temperature step, Polyak step.
"""

from __future__ import annotations

import inspect
import math
import pathlib
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from numbers import Real
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, RolloutReturn, Schedule
from stable_baselines3.common.utils import get_parameters_by_name, polyak_update
from stable_baselines3.common.vec_env import VecEnv, VecTransposeImage, unwrap_vec_normalize
from torch.nn import functional as F

from sb3_dualqdm import objectives
from sb3_dualqdm.acceleration import Update, accelerated, plain_optimizers, resolve, set_learning_rate, tree_map
from sb3_dualqdm.algorithms.search import DISCOUNT, ENTROPY, Range, SearchSpace
from sb3_dualqdm.algorithms.spaces_only import SpacesOnly, is_placeholder
from sb3_dualqdm.algorithms.statistics import DeviceMeans
from sb3_dualqdm.buffers import (
    DemonstrationBuffer,
    ImitationDictReplayBuffer,
    ImitationReplayBuffer,
    RawRows,
    as_tensor,
    concatenate,
)
from sb3_dualqdm.demonstrations import builtin_ids, load_demonstrations, normalized_score
from sb3_dualqdm.demonstrations.types import map_obs
from sb3_dualqdm.objectives import VALUE_MODES, Rows, RowWeights
from sb3_dualqdm.policies import POLICY_ALIASES, Draw, policy_for
from sb3_dualqdm.resume import RunState, load_checkpoint, restart_episodes, unchanged_global_generators

SelfImitation = TypeVar("SelfImitation", bound="ImitationAlgorithm")

OBJECTIVES = ("reference", "paper")
TERMINAL_VALUES = ("absorbing", "zero")
WARMUPS = ("policy", "uniform")
# Statistics are read, and NaN is noticed, at every log interval and at least this often (in updates).
READ_INTERVAL = 1000
# Batches of a training phase that are sampled together
SAMPLED_AT_ONCE = 32
# Replay buffers of SB3 that make no sense here
REFUSED_REPLAY_BUFFERS = {
    "HerReplayBuffer": "hindsight relabels goals to change rewards, which are never read",
    "NStepReplayBuffer": "the implicit reward is defined over one step",
}
# Share of clipped demonstration values that is worth a warning
CLIPPED_SHARE = 0.01
# A critic is called diverging when the mean of |Q| exceeds this multiple of the largest value the bounds allow.
DIVERGENCE_FACTOR = 10.0


def _plain(demonstrations: Any) -> Any:
    """A path as a string, which a zip can carry to another system."""
    return str(demonstrations) if isinstance(demonstrations, pathlib.Path) else demonstrations


def _initial_temperature(ent_coef: str) -> float:
    """The number in ``"auto_<number>"``, 1 for ``"auto"``."""
    kind, _, number = ent_coef.partition("_")
    try:
        initial = float(number or 1.0)
    except ValueError:
        initial = 0.0
    if kind != "auto" or not 0 < initial < math.inf:
        raise ValueError(f"ent_coef is {ent_coef!r} but a float, 'auto' or 'auto_<initial value>' is needed.")
    return initial


class UnsupportedSpaceError(ValueError, AssertionError):
    """A space that no policy here serves; an AssertionError too, which is what SB3 raises for it."""


def own_defaults(args: tuple[Any, ...], kwargs: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    """Keyword arguments with a method's own defaults for what was given neither by position nor by name."""
    names = list(inspect.signature(ImitationAlgorithm.__init__).parameters)[1:]
    return {**{name: value for name, value in defaults.items() if name not in names[: len(args)]}, **kwargs}


class Noise(NamedTuple):
    """
    Standard normal noise for the policy samples of an update, S for each state; None for exact policies.

    :param obs: for the batch's observations, shape ``(S, n + m, |A|)``
    :param next_obs: for the next observations, same shape
    :param initial_obs: for the initial states, shape ``(S, n, |A|)``, or None
    :param uniform: uniform numbers in [0, 1] for methods that need some, shape ``(n + m, k)``, or None
    """

    obs: th.Tensor | None
    next_obs: th.Tensor | None
    initial_obs: th.Tensor | None
    uniform: th.Tensor | None = None


class Batch(NamedTuple):
    """
    Everything that one update depends on beside the parameters, on the device: ``n`` replay rows first, then ``m`` expert
    rows. A training phase's batches are made at once, with a leading axis.

    :param obs: normalised observations, shape ``(n + m, ...)``, or a dict of them
    :param actions: ``(n + m, |A|)`` in [-1, 1] for Box, ``(n + m,)`` integers for Discrete
    :param next_obs: normalised next observations
    :param not_terminated: 1 unless terminated, shape ``(n + m,)``
    :param weights: the expectations over these rows, and over the absorbing rows appended to them
    :param initial_obs: normalised initial states, or None when no term needs them
    :param noise: noise of the policy samples
    """

    obs: Any
    actions: th.Tensor
    next_obs: Any
    not_terminated: th.Tensor
    weights: RowWeights
    initial_obs: Any | None
    noise: Noise


class ImitationAlgorithm(OffPolicyAlgorithm):
    """
    Base of the methods. The first arguments are SAC's, in SAC's order; what follows ``_init_setup_model`` is new.

    :param policy: ``"MlpPolicy"``, ``"CnnPolicy"``, ``"MultiInputPolicy"``, or a policy class of :mod:`sb3_dualqdm.policies`
    :param env: environment (id, gymnasium env or VecEnv) with Box or Discrete actions; None for loading, or offline with the
        spaces given
    :param learning_rate: critic's learning rate, float or schedule of the remaining progress, default 3e-4
    :param buffer_size: replay capacity in transitions, default 1e6; allocated when first used
    :param learning_starts: environment steps before the first update, default 1280
    :param batch_size: replay rows per update, default 256
    :param tau: Polyak coefficient of the target critic, default 0.005
    :param gamma: discount, default 0.99
    :param train_freq: environment steps (or ``(n, "episode")``) between training phases, default 1
    :param gradient_steps: updates per training phase, -1: as many as environment steps; default 1
    :param action_noise: noise added to Box actions while collecting, default None
    :param replay_buffer_class: a subclass of :class:`sb3_dualqdm.buffers.ImitationReplayBuffer` (or of its Dict variant),
        default None: chosen by the observation space
    :param replay_buffer_kwargs: keyword arguments of the replay buffer
    :param optimize_memory_usage: not supported, must be False
    :param n_steps: n-step returns are not defined for these objectives, must be 1
    :param ent_coef: temperature alpha, default 0.01; 0: V is the maximum; ``"auto"`` or ``"auto_0.1"``: learned as in SAC
        (known to destabilise IQ-Learn)
    :param target_update_interval: updates between Polyak steps, default 1
    :param target_entropy: for a learned temperature; ``"auto"``: ``-|A|`` for Box, ``0.1 log |A|`` for Discrete
    :param use_sde: gSDE is not supported, must be False (so are the two following arguments unused)
    :param sde_sample_freq: unused
    :param use_sde_at_warmup: unused
    :param stats_window_size: episodes in the rollout statistics, default 100
    :param tensorboard_log: directory for TensorBoard, default None
    :param policy_kwargs: as SAC's, with ``n_critics`` (1), ``network_style`` (``"reference"`` or ``"sb3"``) and ``q_range``
    :param verbose: 0 silent, 1 info, 2 debug
    :param seed: seed of networks, environment, sampling and noise
    :param device: torch device, default ``"auto"``
    :param _init_setup_model: build the networks at construction
    :param demonstrations: what :func:`sb3_dualqdm.load_demonstrations` accepts: imitation trajectories, a path,
        ``"builtin:<env id>"`` or :class:`sb3_dualqdm.Demonstrations`; None: the model predicts, but does not learn
    :param n_demonstrations: the first n episodes, or a list of episode indices; None (default): all
    :param subsample: keep every k-th transition (with its true successor), default 1
    :param demonstrations_kwargs: further keyword arguments of :func:`sb3_dualqdm.load_demonstrations`
    :param demo_batch_size: expert rows per update, default None: ``batch_size``
    :param actor_learning_rate: float, schedule or ``"lin_3e-5"`` (linear decay to 0); None (default): ``learning_rate``;
        Box only
    :param value_mode: which form of ``(1 - gamma) E_rho[V]`` pushes values down, see :func:`objectives.value_term`;
        default ``"value"``
    :param objective: ``"reference"`` (default): every V(s') comes from the target network, constraints on all rows, the
        actor sees all states; ``"paper"``: gradient through V(s') in the objective, target network only in the constraint
        terms, those on replay rows, the actor on replay states, and rows weighted by gamma^t of their episode step
    :param terminal_value: ``"absorbing"`` (default): a terminated transition leads to an absorbing state whose value is
        learned by the same objective; ``"zero"``: it is worth 0 (as in the reference code), so that episode length leaks
        into the policy
    :param warmup: actions before ``learning_starts``: ``"policy"`` (default) or ``"uniform"``
    :param n_action_samples: policy samples per soft value on Box, default 1
    :param bc_warmup_steps: behavioural-cloning updates before the first environment step, default 0
    :param extra_transitions: older or suboptimal experience that counts as replay rows: what ``demonstrations`` accepts, such
        as a replay buffer of SB3; stored in the replay buffer first, where new transitions overwrite it in turn. Default None
    :param normalize_by_demonstrations: let VecNormalize see the demonstrations before the first environment step, default
        False (offline methods and ``bc_warmup_steps`` do so in any case)
    :param acceleration: how updates run: ``"none"``, ``"compile"`` (as one program, needs a C++ compiler), ``"cudagraph"``
        (captured once and replayed) or ``"auto"`` (default): captured on CUDA, plain elsewhere. Not saved
    :param offline: learn from the demonstrations (and ``extra_transitions``) alone: no environment step is made, ``learn(n)``
        makes n updates, and every expectation over replay rows is one over what there is; default False
    :param observation_space: with ``offline=True`` and ``env=None``, the space of the observations; default None
    :param action_space: likewise, of the actions
    :param replay_device: device that replay rows are drawn on, default ``"cpu"``; ``"cuda"`` keeps a copy of the buffer there.
        With VecNormalize rows are always drawn in host memory
    :raises ValueError: for an argument outside its domain, unsuitable spaces or demonstrations
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = POLICY_ALIASES
    policy: Any  # SoftActorCriticPolicy or SoftQPolicy
    _replay_buffer: Any
    # What a user can do about a diverging critic
    divergence_advice: ClassVar[str] = "lower learning_rate or gamma"
    # What the method learns from without an environment: demonstrations alone, replay rows as well, or it does not
    offline_support: ClassVar[str] = "demonstrations"
    # Whether Discrete actions are defined for the method
    supports_discrete: ClassVar[bool] = True
    # States that actor and temperature are trained on: "all" rows of a batch or its "replay" rows
    policy_rows: ClassVar[str] = "all"
    # target_entropy="auto" is this many times -|A|
    entropy_factor: ClassVar[float] = 1.0
    # What a hyperparameter search tries beside the learning rate, the batch and the layers, and with Box actions only
    search_space: ClassVar[SearchSpace] = DISCOUNT | ENTROPY
    box_search_space: ClassVar[SearchSpace] = {"actor_learning_rate": Range(1e-5, 1e-3)}
    # Uniform numbers in [0, 1] that the method needs for each row of a batch
    n_uniform: int = 0

    def __init__(
        self,
        policy: str | type[BasePolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule = 3e-4,
        buffer_size: int = 1_000_000,
        learning_starts: int = 1280,
        batch_size: int = 256,
        tau: float = 0.005,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 1,
        gradient_steps: int = 1,
        action_noise: ActionNoise | None = None,
        replay_buffer_class: type[ReplayBuffer] | None = None,
        replay_buffer_kwargs: dict[str, Any] | None = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 1,
        ent_coef: str | float = 0.01,
        target_update_interval: int = 1,
        target_entropy: str | float = "auto",
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        use_sde_at_warmup: bool = False,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        demonstrations: Any = None,
        n_demonstrations: int | list[int] | None = None,
        subsample: int = 1,
        demonstrations_kwargs: dict[str, Any] | None = None,
        demo_batch_size: int | None = None,
        actor_learning_rate: float | str | Schedule | None = None,
        value_mode: str = "value",
        objective: str = "reference",
        terminal_value: str = "absorbing",
        warmup: str = "policy",
        n_action_samples: int = 1,
        bc_warmup_steps: int = 0,
        extra_transitions: Any = None,
        normalize_by_demonstrations: bool = False,
        acceleration: str = "auto",
        replay_device: str = "cpu",
        offline: bool = False,
        observation_space: spaces.Space | None = None,
        action_space: spaces.Space | None = None,
    ):
        if env is None and observation_space is not None and action_space is not None:
            env = SpacesOnly(observation_space, action_space)
        super().__init__(
            policy,
            env,  # type: ignore[arg-type]
            learning_rate,
            buffer_size=int(buffer_size),
            learning_starts=learning_starts,
            batch_size=batch_size,
            tau=tau,
            gamma=gamma,
            train_freq=train_freq,
            gradient_steps=gradient_steps,
            action_noise=action_noise,
            replay_buffer_class=replay_buffer_class,
            replay_buffer_kwargs=replay_buffer_kwargs,
            optimize_memory_usage=optimize_memory_usage,
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            seed=seed,
            sde_support=False,
            support_multi_env=True,
        )
        if use_sde:
            raise ValueError("use_sde=True was given but gSDE is not supported here: use action_noise or a larger ent_coef.")
        if n_steps != 1:
            raise ValueError(
                f"n_steps={n_steps} was given but the implicit reward is defined over one step: leave n_steps at 1."
            )
        self.ent_coef = ent_coef
        self.target_update_interval = target_update_interval
        self.target_entropy = target_entropy
        self.demonstrations = _plain(demonstrations)
        self.demonstrations_sha256: str | None = None
        self.n_demonstrations = n_demonstrations
        self.subsample = subsample
        self.demonstrations_kwargs = demonstrations_kwargs or {}
        self.demo_batch_size = demo_batch_size
        self.actor_learning_rate = actor_learning_rate
        self.value_mode = value_mode
        self.objective = objective
        self.terminal_value = terminal_value
        self.warmup = warmup
        self.n_action_samples = n_action_samples
        self.bc_warmup_steps = bc_warmup_steps
        self.extra_transitions = _plain(extra_transitions)
        self.normalize_by_demonstrations = normalize_by_demonstrations
        self.acceleration = acceleration
        self.replay_device = replay_device
        self.offline = offline

        self.demo_buffer: DemonstrationBuffer | None = None
        self.log_ent_coef: th.Tensor | None = None
        self.ent_coef_optimizer: th.optim.Optimizer | None = None
        self._warned: set[str] = set()
        self._warmed_up = False
        self._saw_demonstrations = False  # whether VecNormalize did
        self._resumed: RunState | None = None  # what learn() has yet to restore
        self._asked_timesteps = 0  # total_timesteps of the call of learn()
        if _init_setup_model:
            if self.env is None:
                raise ValueError(
                    "env is None: pass an environment, or offline=True with observation_space= and action_space=."
                )
            self._setup_model()
            if demonstrations is not None:
                self._load_demonstrations()
            self._add_extra_transitions()

    # ------------------------------------------------------------------------------------------------------------------
    # Construction
    # ------------------------------------------------------------------------------------------------------------------

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        space = env.action_space
        if not isinstance(space, (spaces.Box, spaces.Discrete)):
            raise UnsupportedSpaceError(
                f"The action space is {space} but Box or Discrete is needed: wrap the environment to convert its actions."
            )
        if isinstance(space, spaces.Discrete) and space.start != 0:
            raise UnsupportedSpaceError(
                f"The action space {space} starts at {space.start} but 0 is needed: shift the actions in a wrapper."
            )
        if isinstance(space, spaces.Box) and not (space.low < space.high).all():
            raise UnsupportedSpaceError(
                f"The action space {space} has an empty range but low < high is needed: drop constant actions."
            )
        if isinstance(space, spaces.Box) and not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise UnsupportedSpaceError(
                f"The action space {space} has infinite bounds but finite ones are needed to squash actions: wrap the "
                "environment with gymnasium.wrappers.RescaleAction or set bounds from percentiles of the recorded actions."
            )
        venv = BaseAlgorithm._wrap_env(env, verbose, monitor_wrapper)
        if isinstance(venv, VecTransposeImage) and unwrap_vec_normalize(venv) is not None:
            raise ValueError(
                "VecNormalize gives images with channels last but they are stored with channels first: wrap the environment "
                "as VecNormalize(VecTransposeImage(env), ...)."
            )
        return venv

    def _check_arguments(self) -> None:
        """One sentence for each argument outside its domain."""
        for name, options in {
            "value_mode": VALUE_MODES,
            "objective": OBJECTIVES,
            "terminal_value": TERMINAL_VALUES,
            "warmup": WARMUPS,
        }.items():
            if getattr(self, name) not in options:
                raise ValueError(f"{name} is {getattr(self, name)!r} but must be one of {options}.")
        resolve(self.acceleration, self.device)
        self._check_spaces_and_offline()
        for name in ("batch_size", "demo_batch_size", "n_action_samples", "subsample", "target_update_interval"):
            self._check_count(name)
        if not 0 < self.gamma <= 1:
            raise ValueError(f"gamma is {self.gamma} but must be in (0, 1].")
        if not 0 <= self.tau <= 1:
            raise ValueError(f"tau is {self.tau} but must be in [0, 1].")
        if not self.replay_buffer_kwargs.get("handle_timeout_termination", True):
            raise ValueError(
                "handle_timeout_termination=False was given but time limits would be stored as terminations: leave it out."
            )
        if self.gamma == 1 and (
            self.objective == "paper" or self.terminal_value == "absorbing" or not self.value_mode.startswith("value")
        ):
            raise ValueError(
                "gamma is 1, where an absorbing state has no finite value and (1 - gamma) E[V] vanishes: use gamma < 1, or "
                "terminal_value='zero' with value_mode='value' and objective='reference'."
            )
        if self.objective == "paper" and self.value_mode.startswith("v0"):
            raise ValueError(
                f"value_mode {self.value_mode!r} is a heuristic of the reference code but objective='paper' was given: "
                "use 'initial', 'value' or 'value_expert'."
            )
        if self.optimize_memory_usage:
            raise ValueError(
                "optimize_memory_usage=True was given but it cannot tell time limits from terminations: leave it False."
            )
        if self.replay_buffer_class is not None and not issubclass(
            self.replay_buffer_class, (ImitationReplayBuffer, ImitationDictReplayBuffer)
        ):
            for name, reason in REFUSED_REPLAY_BUFFERS.items():
                if any(base.__name__ == name for base in self.replay_buffer_class.__mro__):
                    raise ValueError(f"replay_buffer_class is {self.replay_buffer_class.__name__} but {reason}: leave it out.")
            raise ValueError(
                f"replay_buffer_class is {self.replay_buffer_class.__name__} but initial states and episode steps are needed "
                "beside the transitions: derive it from sb3_dualqdm.buffers.ImitationReplayBuffer or leave it out."
            )
        if self.actor_learning_rate is not None and isinstance(self.action_space, spaces.Discrete):
            raise ValueError(
                f"actor_learning_rate is {self.actor_learning_rate!r} but Discrete actions have no actor (the policy is the "
                "softmax of Q): leave it out and set learning_rate."
            )

    def _check_spaces_and_offline(self) -> None:
        name = type(self).__name__
        if isinstance(self.action_space, spaces.Discrete) and not self.supports_discrete:
            raise ValueError(
                f"The action space is {self.action_space} but {name} is defined for Box actions only: use DualQDM, IQLearn or "
                "SQIL with Discrete actions."
            )
        if self.offline and self.offline_support == "none":
            raise ValueError(f"offline=True was given but {name} needs rollouts of its policy: leave it False.")
        if self.offline and self.offline_support == "extra_transitions" and self.extra_transitions is None:
            raise ValueError(
                f"offline=True was given but {name} needs transitions beside the demonstrations: pass extra_transitions=."
            )
        if not self.offline and self.env is not None and is_placeholder(self.env):
            raise ValueError(f"env is None but {name} makes environment steps: pass an environment, or offline=True.")

    def _check_count(self, name: str) -> None:
        value = getattr(self, name)
        if value is not None and (int(value) != value or value < 1):
            raise ValueError(f"{name} is {value} but a whole number of at least 1 is needed.")

    def _setup_model(self) -> None:
        if self.replay_buffer_class is None:
            is_dict = isinstance(self.observation_space, spaces.Dict)
            self.replay_buffer_class = ImitationDictReplayBuffer if is_dict else ImitationReplayBuffer
        self._check_arguments()
        self._setup_lr_schedule()
        self.actor_lr_schedule = self._make_actor_lr_schedule()
        self.set_random_seed(self.seed)
        # Every draw of rows and noise comes from here; a loaded model continues with another stream than it began with
        self._rng = np.random.default_rng(None if self.seed is None else [self.seed, self.num_timesteps])
        self.policy_class = policy_for(self.policy_class, self.action_space)
        self.policy = self.policy_class(  # type: ignore[assignment]
            self.observation_space, self.action_space, self.lr_schedule, **self._policy_arguments()
        ).to(self.device)
        self._convert_train_freq()
        self._setup_ent_coef()
        self.networks: Any = th.nn.ModuleDict(self._make_networks()).to(self.device)
        self._step: Update | None = None
        self._weights: tuple[tuple[int, int], th.Tensor] | None = None
        self._statistics = DeviceMeans()
        self._first_unread_update = self._n_updates
        self._last_batch: Batch | None = None
        self._norm_stats = get_parameters_by_name(self.critic, ["running_"])
        self._norm_stats_target = get_parameters_by_name(self.critic_target, ["running_"])

    def _policy_arguments(self) -> dict[str, Any]:
        """Keyword arguments of the policy: the user's, and what a method adds."""
        return self.policy_kwargs

    def _make_networks(self) -> dict[str, th.nn.Module]:
        """
        Networks of a method beside the policy's, saved and resumed with the model; those that have an ``optimizer`` are
        trained by it.
        """
        return {}

    def _trained_networks(self) -> dict[str, Any]:
        return {name: network for name, network in self.networks.items() if hasattr(network, "optimizer")}

    def _network_rate(self, name: str, progress: float) -> float:
        """Learning rate of one of the method's networks."""
        return self.lr_schedule(progress)

    @property
    def actor(self) -> Any:  # type: ignore[override]
        """The actor of Box actions; None for Discrete actions, whose policy is the softmax of the critic."""
        return getattr(self.policy, "actor", None)

    @property
    def critic(self) -> Any:
        """The soft Q-function(s)."""
        return self.policy.critic

    @property
    def critic_target(self) -> Any:
        """Polyak average of the critic."""
        return self.policy.critic_target

    @property
    def replay_buffer(self) -> Any:  # type: ignore[override]
        """The replay buffer, allocated when first used."""
        if self._replay_buffer is None and hasattr(self, "observation_space"):
            self._replay_buffer = self.replay_buffer_class(  # type: ignore[misc]
                self.buffer_size,
                self.observation_space,
                self.action_space,
                device=self.device,
                n_envs=self.n_envs,
                **{"storage_device": self._storage_device(self.replay_device), **self.replay_buffer_kwargs},
            )
        return self._replay_buffer

    @replay_buffer.setter
    def replay_buffer(self, replay_buffer: ReplayBuffer | None) -> None:
        self._replay_buffer = replay_buffer

    def _storage_device(self, device: th.device | str) -> th.device | str:
        """VecNormalize works on arrays in host memory."""
        return "cpu" if self._vec_normalize_env is not None else device

    def _make_actor_lr_schedule(self) -> Callable[[float], float]:
        return self._rate_schedule("actor_learning_rate")

    def _rate_schedule(self, name: str) -> Callable[[float], float]:
        """The schedule that an argument gives as a float, a function or text; None: ``learning_rate``'s."""
        rate = getattr(self, name)
        if rate is None:
            return self.lr_schedule
        if callable(rate):
            return lambda progress: float(rate(progress))
        if isinstance(rate, str):
            prefix, _, initial = rate.partition("_")
            try:
                start = float(initial)
            except ValueError:
                prefix = ""
            if prefix != "lin":
                raise ValueError(f"{name} is {rate!r} but a float, a schedule or 'lin_<float>' is needed.")
            return lambda progress: progress * start
        constant = float(rate)
        return lambda _: constant

    def _setup_ent_coef(self) -> None:
        is_discrete = isinstance(self.action_space, spaces.Discrete)
        if self.target_entropy == "auto":
            space: Any = self.action_space
            self._target_entropy = (
                0.1 * math.log(int(space.n)) if is_discrete else -self.entropy_factor * float(np.prod(space.shape))
            )
        else:
            self._target_entropy = float(self.target_entropy)
        if isinstance(self.ent_coef, str):
            start = th.full((1,), _initial_temperature(self.ent_coef), device=self.device)
            self.log_ent_coef = start.log().requires_grad_(True)
            self.ent_coef_optimizer = th.optim.Adam([self.log_ent_coef], lr=self.lr_schedule(1), fused=True)
        elif not isinstance(self.ent_coef, Real) or not 0 <= self.ent_coef < math.inf:
            raise ValueError(f"ent_coef is {self.ent_coef} but a finite temperature of at least 0, or 'auto', is needed.")
        self._sync_temperature()

    def _current_ent_coef(self) -> th.Tensor | float:
        return float(self.ent_coef) if self.log_ent_coef is None else self.log_ent_coef.detach().exp().squeeze()

    def _critic_ent_coef(self) -> th.Tensor | float:
        """Temperature of the entropy that is part of the critic's values."""
        return self._current_ent_coef()

    def _sync_temperature(self) -> None:
        """The softmax policy of Discrete actions carries its temperature."""
        if isinstance(self.action_space, spaces.Discrete):
            self.policy.temperature.fill_(self._current_ent_coef())

    # ------------------------------------------------------------------------------------------------------------------
    # Demonstrations
    # ------------------------------------------------------------------------------------------------------------------

    def set_demonstrations(self, demonstrations: Any) -> None:
        """
        Replace the demonstrations.

        :param demonstrations: see the constructor
        :raises ValueError: when they do not fit the spaces
        """
        previous = self.demonstrations, self.demonstrations_sha256
        self.demonstrations, self.demonstrations_sha256 = _plain(demonstrations), None
        try:
            self._load_demonstrations()
        except Exception:
            self.demonstrations, self.demonstrations_sha256 = previous
            raise

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """
        Change the environment; see SB3's ``set_env``. Demonstrations are read again if its time limit is another one.

        :param env: environment with the same spaces and number of copies
        :param force_reset: reset it before learning continues
        """
        super().set_env(env, force_reset)
        if self.demo_buffer is not None and self._time_limit() != self._demonstrations_time_limit:
            self.demo_buffer = None

    def load_replay_buffer(self, path: Any, truncate_last_traj: bool = True) -> None:
        """
        Load a replay buffer that a model of this package saved.

        :param path: file to read
        :param truncate_last_traj: unused
        :raises ValueError: for a buffer without initial states, or of another number of environments
        """
        super().load_replay_buffer(path, truncate_last_traj)
        buffer = self._replay_buffer
        if not isinstance(buffer, (ImitationReplayBuffer, ImitationDictReplayBuffer)) or buffer.n_envs != self.n_envs:
            self._replay_buffer = None
            raise ValueError(
                f"The replay buffer in {path} is a {type(buffer).__name__} of {buffer.n_envs} environments but one saved by a "
                f"model of this package with {self.n_envs} is needed: use the same number of environments."
            )
        buffer.storage_device = th.device(self._storage_device(self.replay_device))
        self._last_obs = None  # the stored episodes end here

    def _load_demonstrations(self) -> None:
        """Read, validate and scale the demonstrations; a path that changed since it was saved in a zip is reported."""
        self._demonstrations_time_limit = self._time_limit()
        options: dict[str, Any] = {"max_episode_steps": self._demonstrations_time_limit}
        options.update(self.demonstrations_kwargs)
        demos = load_demonstrations(
            self.demonstrations,
            observation_space=self.observation_space,
            action_space=self.action_space,
            n_demonstrations=self.n_demonstrations,
            subsample=self.subsample,
            keep_terminal=self.terminal_value == "absorbing",
            **options,
        )
        if self.demonstrations_sha256 not in (None, demos.sha256):
            self._warn_once(
                "demonstrations changed",
                f"The demonstrations {self.demonstrations} have changed since the model was saved: pass demonstrations= to "
                "load() if others are meant.",
            )
        self.demonstrations_sha256 = demos.sha256
        row_discount = self.gamma if self.objective == "paper" else 1.0
        device = self._storage_device(self.device)
        self.demo_buffer = DemonstrationBuffer(demos, self.policy, self.observation_space, row_discount, device)
        if self.verbose >= 1:
            print(demos.summary())

    def _add_extra_transitions(self) -> None:
        """Store older experience in a replay buffer that has none yet."""
        if self.extra_transitions is None or self.env is None or self.replay_buffer.prefilled:
            return
        options: dict[str, Any] = {"max_episode_steps": self._time_limit()}
        options.update(self.demonstrations_kwargs)
        transitions = load_demonstrations(
            self.extra_transitions, observation_space=self.observation_space, action_space=self.action_space, **options
        )
        self.replay_buffer.prefill(DemonstrationBuffer(transitions, self.policy, self.observation_space).stored)

    def _time_limit(self) -> int | None:
        """The environment's own step limit, if it is known."""
        if self.env is None:
            return None
        try:
            # a spec need not survive the way from a subprocess; text and numbers do
            if "TimeLimit<" not in self.env.env_method("__str__", indices=[0])[0]:  # rl_zoo3 has a PatchedTimeLimit
                return None
            return self.env.env_method("get_wrapper_attr", "_max_episode_steps", indices=[0])[0]
        except (AttributeError, NotImplementedError):
            return None

    def _require_demonstrations(self) -> DemonstrationBuffer:
        if self.demo_buffer is None:
            if self.demonstrations is None:
                raise ValueError(
                    f"{type(self).__name__} has no demonstrations to learn from: pass demonstrations= (trajectories, a "
                    "path or 'builtin:<env id>') to the constructor, to load() or to set_demonstrations(); with rl_zoo3, "
                    "-params demonstrations:\"'PATH'\"."
                )
            self._load_demonstrations()
        assert self.demo_buffer is not None
        return self.demo_buffer

    # ------------------------------------------------------------------------------------------------------------------
    # Learning
    # ------------------------------------------------------------------------------------------------------------------

    def learn(
        self: SelfImitation,
        total_timesteps: float,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfImitation:
        """
        Learn from the demonstrations; see SB3's ``learn``.

        :param total_timesteps: environment steps, as an int or a float such as 1e6 (updates for an offline method)
        :param callback: callbacks called at every step
        :param log_interval: episodes between two logs (thousands of updates for an offline method)
        :param tb_log_name: name of the TensorBoard run, default the class's name
        :param reset_num_timesteps: start counting steps at 0
        :param progress_bar: show a progress bar
        :raises ValueError: without demonstrations
        :raises FloatingPointError: when NaN or infinite losses were found
        """
        self._require_demonstrations()
        if self.env is None and self.offline:
            self.env = self._wrap_env(SpacesOnly(self.observation_space, self.action_space))
        if self.env is None:
            raise ValueError("learn() was called without an environment: pass env= to load() or call set_env() first.")
        run = self._learn_offline if self.offline else super().learn
        tb_log_name = tb_log_name or type(self).__name__
        run(int(total_timesteps), callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
        self._read_statistics()
        return self

    def _learn_offline(
        self, total_timesteps: int, callback: Any, log_interval: int, tb_log_name: str, reset: bool, progress_bar: bool
    ) -> None:
        """``learn`` without environment steps: one update counts as one time step, callbacks run as usual."""
        total_timesteps, callback = self._setup_learn(total_timesteps, callback, reset, tb_log_name, progress_bar)
        callback.on_training_start(locals(), globals())
        callback.on_rollout_start()
        while self.num_timesteps < total_timesteps and not self._finished():
            self.train(gradient_steps=1, batch_size=self.batch_size)
            self.num_timesteps += 1
            self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
            callback.update_locals(locals())
            if not callback.on_step():
                break
            if log_interval is not None and self.num_timesteps % (1000 * log_interval) == 0:
                self.dump_logs()
        callback.on_rollout_end()
        callback.on_training_end()

    def _finished(self) -> bool:
        """Whether an offline method has nothing left to learn."""
        return False

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "run",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        resumed = None if reset_num_timesteps else self._resumed
        self._resumed = None
        will_reset = reset_num_timesteps or self._last_obs is None
        if resumed is not None:
            self._last_obs = np.empty(0)  # the one reset is that of the checkpoint
        if resumed is not None and total_timesteps == self._asked_timesteps:
            # the interrupted call again; once that is complete, further steps are meant
            total_timesteps = max(self._total_timesteps - self.num_timesteps, 0) or total_timesteps
        else:
            self._asked_timesteps = total_timesteps
        total_timesteps, callback = super()._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
        )
        if resumed is not None:
            resumed.restore_generators(self)
        if not self.offline:
            if resumed is not None:
                restart_episodes(self, resumed.reset_seed)
            elif will_reset:
                self.replay_buffer.start_episodes(self._raw(self._last_obs))
            self._warn_about_update_ratio()
        self._add_extra_transitions()
        self._log_demonstrations()
        warm_up = self.bc_warmup_steps > 0 and not self._warmed_up
        if self._n_updates == 0 and (self.offline or warm_up or self.normalize_by_demonstrations):
            self._normalise_by_demonstrations()
        if warm_up:
            self._bc_warmup()
            self._warmed_up = True
        return total_timesteps, callback

    def _normalise_by_demonstrations(self) -> None:
        """VecNormalize has seen next to nothing before the first environment step: let it see the demonstrations."""
        venv, demos = self._vec_normalize_env, self._require_demonstrations()
        if venv is None or not venv.training or not venv.norm_obs or self._saw_demonstrations:
            return
        self._saw_demonstrations = True
        obs = map_obs(np.asarray, demos.stored.obs)
        if isinstance(obs, dict):
            for key in venv.norm_obs_keys or ():
                venv.obs_rms[key].update(obs[key])
        else:
            venv.obs_rms.update(obs)
        if not self.offline:
            self._last_obs = venv.normalize_obs(venv.get_original_obs())

    def _raw(self, obs: Any) -> Any:
        """Observations before VecNormalize."""
        return obs if self._vec_normalize_env is None else self._vec_normalize_env.get_original_obs()

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        return super()._sample_action(0 if self.warmup == "policy" else learning_starts, action_noise, n_envs)

    def _store_transition(
        self, replay_buffer: Any, buffer_action: np.ndarray, new_obs: Any, reward: Any, dones: Any, infos: Any
    ) -> None:
        super()._store_transition(replay_buffer, buffer_action, new_obs, reward, dones, infos)
        raw = self._raw(new_obs)
        for index in np.flatnonzero(dones):
            # VecEnvs reset by themselves: the observation returned with a done is the next episode's first
            replay_buffer.initial_states.add(raw, index)

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> RolloutReturn:
        """SB3's, but a step that a callback stopped at, and that SB3 drops, ends its episode for us."""
        rollout = super().collect_rollouts(*args, **kwargs)
        if not rollout.continue_training:
            self._last_obs = None  # the next learn() resets, instead of joining two episodes
        return rollout

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """
        Make updates on fresh batches.

        :param gradient_steps: number of updates
        :param batch_size: replay rows per update, default 64 (as SAC's; ``learn`` passes the model's)
        """
        self.policy.set_training_mode(True)
        if self._step is None:
            self._step = accelerated(self._update, resolve(self.acceleration, self.device), self._optimizers())
        self._before_updates()
        self._update_learning_rates()
        for start in range(0, gradient_steps, SAMPLED_AT_ONCE):
            n_batches = min(SAMPLED_AT_ONCE, gradient_steps - start)
            batches = self._sample_batches(n_batches, batch_size)
            for index in range(n_batches):
                batch = tree_map(itemgetter(index), batches)
                self._statistics.add(self._step(batch))
                self._n_updates += 1
                if self._n_updates % self.target_update_interval == 0:
                    self._update_target()
                self._after_update()
            self._last_batch = batch
        if self._n_updates - self._first_unread_update >= READ_INTERVAL:
            self._read_statistics()

    def _optimizers(self) -> list[th.optim.Optimizer]:
        """Every optimiser that an update steps."""
        actor = None if self.actor is None else self.actor.optimizer
        own = [network.optimizer for network in self._trained_networks().values()]
        every = (self.critic.optimizer, actor, self.ent_coef_optimizer, *own)
        return [optimizer for optimizer in every if optimizer is not None]

    def _update_learning_rates(self) -> None:
        progress = self._current_progress_remaining
        rate = self.lr_schedule(progress)
        self.logger.record("train/learning_rate", rate)
        for optimizer in self._optimizers():
            set_learning_rate(optimizer, rate)
        if self.actor is not None:
            actor_rate = self.actor_lr_schedule(progress)
            set_learning_rate(self.actor.optimizer, actor_rate)
            self.logger.record("train/actor_learning_rate", actor_rate)
        for name, network in self._trained_networks().items():
            set_learning_rate(network.optimizer, self._network_rate(name, progress))

    def _update_target(self) -> None:
        """Polyak step of the target critic; running statistics of its layers are copied."""
        target, online = list(self.critic_target.parameters()), list(self.critic.parameters())
        with th.no_grad():
            th._foreach_lerp_(target, online, self.tau)
        polyak_update(self._norm_stats, self._norm_stats_target, 1.0)

    def _before_updates(self) -> None:
        """What a method does on the host before the updates of a training phase."""

    def _after_update(self) -> None:
        """What a method does on the host between two updates."""

    # ------------------------------------------------------------------------------------------------------------------
    # One update
    # ------------------------------------------------------------------------------------------------------------------

    def critic_loss(self, rows: Rows, weights: RowWeights) -> th.Tensor:
        """
        The method's objective, to be minimised over the critic.

        :param rows: values of the batch, absorbing rows included
        :param weights: expectations over these rows
        :return: scalar loss
        """
        raise NotImplementedError

    def extra_statistics(self, rows: Rows, weights: RowWeights) -> dict[str, th.Tensor]:
        """Further scalars of a method to log, computed without gradient."""
        return {}

    def _update(self, batch: Batch) -> dict[str, th.Tensor]:
        """
        One update: a function of the batch that changes parameters in place and never waits for the device.

        :return: scalars to log
        """
        return self._soft_actor_critic_step(batch, self.critic_loss, self._n_replay(batch))

    def _n_replay(self, batch: Batch) -> int:
        """Number of replay rows, which come first."""
        return len(batch.not_terminated) - self._demo_batch_size()

    @staticmethod
    def _replay_part(batch: Batch, n_replay: int) -> Batch:
        """The replay rows alone, with the absorbing rows that follow them."""
        n = len(batch.not_terminated)

        def first(tensor: th.Tensor) -> th.Tensor:
            return tensor[:n_replay]

        weights = batch.weights._replace(actor=batch.weights.replay)
        return batch._replace(
            obs=map_obs(first, batch.obs),
            actions=first(batch.actions),
            next_obs=map_obs(first, batch.next_obs),
            not_terminated=first(batch.not_terminated),
            weights=RowWeights(*(th.cat([w[:n_replay], w[n : n + n_replay]]) for w in weights)),
            noise=batch.noise._replace(
                obs=None if batch.noise.obs is None else batch.noise.obs[:, :n_replay],
                next_obs=None if batch.noise.next_obs is None else batch.noise.next_obs[:, :n_replay],
            ),
        )

    def _soft_actor_critic_step(
        self, batch: Batch, critic_loss: Callable[[Rows, RowWeights], th.Tensor], n_replay: int
    ) -> dict[str, th.Tensor]:
        """
        Critic step, actor step on the same states, temperature step.

        :param critic_loss: scalar to minimise over the critic, of the rows and the expectations over them
        :return: scalars to log
        """
        ent_coef = self._current_ent_coef()
        draw = self.policy.draw(batch.obs, batch.noise.obs)
        rows = self._rows(batch, draw, self._critic_ent_coef())
        loss = critic_loss(rows, batch.weights)
        self._descend(self.critic.optimizer, loss)
        self._after_critic_step(rows, batch.weights)

        statistics: dict[str, Any] = {"critic_loss": loss.detach()}
        if draw is not None:
            statistics["actor_loss"] = self._actor_step(batch, draw, ent_coef)
        if self.log_ent_coef is not None:
            statistics["ent_coef"] = ent_coef
            statistics["ent_coef_loss"] = self._ent_coef_step(batch, draw, ent_coef)
        with th.no_grad():
            statistics.update(self._row_statistics(rows, n_replay))
            statistics.update(self.extra_statistics(rows, batch.weights))
        return statistics

    def _rows(self, batch: Batch, draw: Draw | None, ent_coef: th.Tensor | float) -> Rows:
        """Evaluate the critics on a batch and append the absorbing rows."""
        q, v = self.policy.q_and_value(batch.obs, batch.actions, draw, ent_coef)
        with th.no_grad():
            next_draw = self._next_draw(batch)
            y_target = self._discounted_next_value(self.critic_target, batch, next_draw, ent_coef)
        is_paper = self.objective == "paper"
        y = self._discounted_next_value(self.critic, batch, next_draw, ent_coef) if is_paper else y_target
        initial_v = None
        if self.value_mode == "initial":
            initial_v = self._value(self.critic, batch.initial_obs, batch.noise.initial_obs, ent_coef)
        if self.terminal_value == "absorbing":
            # The absorbing state has one action and succeeds itself: Q = V = c, y = gamma c
            c, c_target = self._absorbing_value(self.critic), self._absorbing_value(self.critic_target).detach()
            v_absorbing, v_absorbing_target = c.amin(), c_target.amin()
            q = th.cat([q, c.unsqueeze(1).expand_as(q)], dim=1)
            y_absorbing = self.gamma * (v_absorbing if is_paper else v_absorbing_target)
            v = th.cat([v, v_absorbing.expand_as(v)])
            y = th.cat([y, y_absorbing.expand_as(y)])
            y_target = th.cat([y_target, (self.gamma * v_absorbing_target).expand_as(y_target)]) if is_paper else y
        return Rows(q, v, y, y_target, initial_v)

    def _after_critic_step(self, rows: Rows, weights: RowWeights) -> None:
        """What a method adapts to the values that the critic's step has seen; part of the update."""

    def _next_draw(self, batch: Batch) -> Draw | None:
        """Policy samples at the next states."""
        return self.policy.draw(batch.next_obs, batch.noise.next_obs)

    def _discounted_next_value(self, critic: Any, batch: Batch, draw: Draw | None, ent_coef: th.Tensor | float) -> th.Tensor:
        """``gamma V(s')``; after a termination V is the absorbing state's value or 0."""
        next_v = batch.not_terminated * self.policy.value(critic, batch.next_obs, draw, ent_coef)
        if self.terminal_value == "absorbing":
            next_v = next_v + (1 - batch.not_terminated) * self._absorbing_value(critic).amin()
        return self.gamma * next_v

    def _value(self, critic: Any, obs: Any, noise: th.Tensor | None, ent_coef: th.Tensor | float) -> th.Tensor:
        """Soft value of normalised observations."""
        with th.no_grad():
            draw = self.policy.draw(obs, noise)
        return self.policy.value(critic, obs, draw, ent_coef)

    def _absorbing_value(self, critic: Any) -> th.Tensor:
        """Value of the absorbing state, one per critic, shape ``(C,)``."""
        return critic.bounded(critic.absorbing / (1 - self.gamma))

    def _actor_step(self, batch: Batch, draw: Draw, ent_coef: th.Tensor | float) -> th.Tensor:
        q = self._actor_values(batch, draw)
        rows = slice(0, len(q))  # the absorbing state has no decision to learn
        weights = batch.weights if self.policy_rows == "all" else batch.weights._replace(actor=batch.weights.replay)
        loss = objectives.actor_loss(q, draw.log_prob[0], ent_coef, RowWeights(*(w[rows] for w in weights)))
        self._descend(self.actor.optimizer, loss)
        return loss.detach()

    def _actor_values(self, batch: Batch, draw: Draw) -> th.Tensor:
        """What the actor maximises beside its entropy, shape ``(n + m,)``."""
        return self.critic.q_values(batch.obs, draw.actions[0]).amin(dim=0)

    @staticmethod
    def _descend(optimizer: th.optim.Optimizer, loss: th.Tensor) -> None:
        """Step an optimiser's own parameters; no gradient is computed for others that the loss passes through."""
        ImitationAlgorithm._differentiate(optimizer, loss)
        optimizer.step()

    @staticmethod
    def _differentiate(optimizer: th.optim.Optimizer, loss: th.Tensor, retain_graph: bool = False) -> None:
        """Compute the gradient for an optimiser's own parameters, without a step."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        gradients = th.autograd.grad(loss, parameters, allow_unused=True, retain_graph=retain_graph)
        for parameter, gradient in zip(parameters, gradients):
            # fused optimisers read memory in order, whatever a gradient's strides are (torch 2.13, CPU)
            parameter.grad = None if gradient is None else gradient.contiguous()

    def _ent_coef_step(self, batch: Batch, draw: Draw | None, ent_coef: th.Tensor | float) -> th.Tensor:
        assert self.log_ent_coef is not None and self.ent_coef_optimizer is not None
        if draw is None:
            with th.no_grad():
                log_pi = th.log_softmax(self.critic(batch.obs).amin(dim=0) / ent_coef, dim=-1)
                log_prob = (log_pi.exp() * log_pi).sum(dim=-1)
        else:
            log_prob = draw.log_prob[0]
        if self.policy_rows == "replay":
            log_prob = log_prob[: self._n_replay(batch)]
        loss = objectives.ent_coef_loss(self.log_ent_coef, log_prob, self._target_entropy)
        self._descend(self.ent_coef_optimizer, loss)
        self._sync_temperature()
        return loss.detach()

    def _bc_warmup(self) -> None:
        """Maximum likelihood on the demonstrations, at ``learning_rate``, before the first environment step."""
        self.policy.set_training_mode(True)
        optimizer = (self.critic if self.actor is None else self.actor).optimizer
        set_learning_rate(optimizer, self.lr_schedule(1))
        for _ in range(self.bc_warmup_steps):
            rows = self._require_demonstrations().rows(self._demo_batch_size(), self._rng)
            obs, actions = self._obs_tensor(rows.obs), self._action_tensor(rows.actions)
            self._descend(optimizer, -self.policy.log_prob(obs, actions).mean())
        self.critic_target.load_state_dict(self.critic.state_dict())

    # ------------------------------------------------------------------------------------------------------------------
    # Batches
    # ------------------------------------------------------------------------------------------------------------------

    def _demo_batch_size(self) -> int:
        return self.batch_size if self.demo_batch_size is None else self.demo_batch_size

    def _sample_batch(self, batch_size: int) -> Batch:
        """One batch, as an update sees it."""
        return self._first_batch(self._sample_batches(1, batch_size))

    @staticmethod
    def _first_batch(batches: Batch) -> Batch:
        return tree_map(itemgetter(0), batches)

    def _sample_batches(self, n_batches: int, batch_size: int) -> Batch:
        """Several batches at once, stacked along a leading axis."""
        if self.offline and self.extra_transitions is None:
            return self._to_batches(self._require_demonstrations().rows((n_batches, self._demo_batch_size()), self._rng), 0)
        replay = self.replay_buffer.rows((n_batches, batch_size), self._rng)
        expert = self._require_demonstrations().rows((n_batches, self._demo_batch_size()), self._rng)
        return self._to_batches(concatenate(replay, expert, self._storage_device(self.device)), batch_size)

    def _to_batches(self, rows: RawRows, n_replay: int) -> Batch:
        """Normalise rows with the current VecNormalize statistics, move them to the device, and add what else is drawn."""
        n_batches, n_rows = rows.terminated.shape
        initial_obs = initial_noise = None
        if self.value_mode == "initial" and (n_replay > 0 or self.offline):
            initial_obs = self._obs_tensor(self._initial_states((n_batches, n_replay or n_rows), self._rng))
        noise = self._noise((n_batches, self.n_action_samples, n_rows))
        next_noise = self._noise((n_batches, self.n_action_samples, n_rows))
        if initial_obs is not None:
            initial_noise = self._noise((n_batches, self.n_action_samples, n_replay or n_rows))
        uniform = None
        if self.n_uniform > 0:
            uniform = th.as_tensor(self._rng.random((n_batches, n_rows, self.n_uniform), dtype=np.float32), device=self.device)
        return Batch(
            obs=self._obs_tensor(rows.obs),
            actions=self._action_tensor(rows.actions),
            next_obs=self._obs_tensor(rows.next_obs),
            not_terminated=(~rows.terminated).to(self.device, th.float32),
            weights=self._row_weights(rows, n_replay),
            initial_obs=initial_obs,
            noise=Noise(noise, next_noise, initial_noise, uniform),
        )

    def _action_tensor(self, actions: th.Tensor) -> th.Tensor:
        """Stored actions as the networks take them."""
        is_discrete = isinstance(self.action_space, spaces.Discrete)
        return actions.to(self.device).long().squeeze(-1) if is_discrete else actions.to(self.device, th.float32)

    def _obs_tensor(self, obs: Any) -> Any:
        """Observations, raw and of any leading shape, as the networks take them."""
        if self._vec_normalize_env is not None:
            on_host = map_obs(lambda array: array.cpu().numpy() if isinstance(array, th.Tensor) else array, obs)
            obs = self._vec_normalize_env.normalize_obs(on_host)

        def convert(array: Any) -> th.Tensor:
            tensor = as_tensor(array, self.device)
            return tensor.float() if tensor.dtype == th.float64 else tensor

        return map_obs(convert, obs)

    def _row_weights(self, rows: RawRows, n_replay: int) -> RowWeights:
        """
        The expectations as weights: replay rows first, expert rows second, then one absorbing row for each of them,
        which counts where the row terminated (as its row does) and is never shown to the actor.
        """
        terminated = rows.terminated.to(self.device).unsqueeze(-2)
        weights = self._equal_weights(terminated.shape[-1], n_replay).expand(len(terminated), 5, -1)
        is_paper = self.objective == "paper"
        if is_paper and n_replay > 0:
            weights = self._occupancy_weights(weights, rows.step.to(self.device), n_replay)
        if self.terminal_value == "absorbing":
            weights = th.cat([weights, weights * terminated], dim=-1)
            if is_paper:
                weights = self._absorbing_occupancy(weights, n_replay)
        return RowWeights(*weights.float().unbind(dim=-2))

    def _equal_weights(self, n: int, n_replay: int) -> th.Tensor:
        """Rows of :class:`RowWeights` where every row of a kind counts the same, shape ``(5, n)``; made once."""
        key = (n, n_replay)
        if self._weights is None or self._weights[0] != key:
            expert = th.zeros(n, dtype=th.float64, device=self.device)
            expert[n_replay:] = 1 / max(n - n_replay, 1)
            everywhere = th.full_like(expert, 1 / n)
            replay = th.zeros_like(expert)
            replay[:n_replay] = 1 / max(n_replay, 1)
            self._weights = key, th.stack([expert, everywhere, everywhere, everywhere, replay])
        return self._weights[1]

    def _occupancy_weights(self, weights: th.Tensor, step: th.Tensor, n_replay: int) -> th.Tensor:
        """
        Weights of the paper's objective: replay rows by gamma^t of their step t, constraints and actor on replay rows.

        Expert rows are drawn with probability proportional to gamma^t already, replay rows uniformly. Only relative weights
        matter, and gamma^t of a long episode is not representable.
        """
        expert, replay = weights[..., 0, :], weights[..., 4, :]
        step = step[..., :n_replay].double()
        occupancy = self.gamma ** (step - step.amin(dim=-1, keepdim=True))
        occupancy = F.pad(occupancy / occupancy.sum(dim=-1, keepdim=True), (0, expert.shape[-1] - n_replay))
        return th.stack([expert, (expert + occupancy) / 2, replay, replay, replay], dim=-2)

    def _absorbing_occupancy(self, weights: th.Tensor, n_replay: int) -> th.Tensor:
        """The absorbing state is occupied for ever: gamma + gamma^2 + ... times as much as the row that led to it."""
        n = weights.shape[-1] // 2
        scale = th.ones(2 * n, dtype=weights.dtype, device=weights.device)
        scale[n:] = self.gamma / (1 - self.gamma)
        is_expert = (th.arange(2 * n, device=weights.device) % n) >= n_replay

        def normalised(weight: th.Tensor) -> th.Tensor:
            return weight / weight.sum(dim=-1, keepdim=True)

        expert, value, *others = weights.unbind(dim=-2)
        sides = [is_expert] if n_replay == 0 else [is_expert, ~is_expert]
        value = th.stack([normalised(value * scale * side) for side in sides]).mean(dim=0)
        return th.stack([normalised(expert * scale), value, *others], dim=-2)

    def _initial_states(self, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
        """Raw initial states: online ones as soon as there are any, else the demonstrations' starts."""
        if not self.offline and len(self.replay_buffer.initial_states) > 0:
            return self.replay_buffer.initial_states.draw(shape, rng)
        return self._require_demonstrations().initial_states(shape, rng)

    def _noise(self, shape: tuple[int, ...], rng: np.random.Generator | None = None) -> th.Tensor | None:
        """Standard normal noise for policy samples of the given shape; None where the policy is exact."""
        if self.actor is None:
            return None
        size = math.prod(self.action_space.shape)  # type: ignore[arg-type]
        noise = (self._rng if rng is None else rng).standard_normal((*shape, size), dtype=np.float32)
        return th.as_tensor(noise, device=self.device)

    # ------------------------------------------------------------------------------------------------------------------
    # Logging and warnings
    # ------------------------------------------------------------------------------------------------------------------

    def _row_statistics(self, rows: Rows, n_replay: int) -> dict[str, th.Tensor]:
        n = len(rows.v) // 2 if self.terminal_value == "absorbing" else len(rows.v)
        q = rows.q[:, :n]
        r = q - rows.y[:n]
        statistics: dict[str, th.Tensor] = {}
        for name, part in (("expert", r[:, n_replay:]), ("replay", r[:, :n_replay])):
            if part.shape[1] == 0:
                continue
            std, mean = th.std_mean(part, dim=1, correction=0)
            statistics[f"implicit_reward_{name}"], statistics[f"implicit_reward_{name}_std"] = mean.mean(), std.mean()
        statistics["q_mean"], statistics["q_abs_mean"] = q.mean(), q.abs().mean()
        statistics["q_min"], statistics["q_max"] = q.aminmax()
        if self.terminal_value == "absorbing":
            statistics["absorbing_value"] = rows.v[-1]
        return statistics

    def _read_statistics(self) -> None:
        """Record the means since the last read; stop on NaN, warn once when the critic runs away."""
        means = self._statistics.read()
        first, self._first_unread_update = self._first_unread_update, self._n_updates
        if not means:
            return
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        if self.log_ent_coef is None and "critic_loss" in means:
            self.logger.record("train/ent_coef", float(self.ent_coef))
        for name, value in means.items():
            self.logger.record(f"train/{name}", value)
        if not all(math.isfinite(value) for value in means.values()):
            bad = ", ".join(name for name, value in means.items() if not math.isfinite(value))
            raise FloatingPointError(
                f"NaN or infinite values were found in {bad} between updates {first + 1} and {self._n_updates}: "
                f"check the observations for NaN, or {self.divergence_advice}."
            )
        if means.get("q_abs_mean", 0.0) > DIVERGENCE_FACTOR * self._largest_value():
            self._warn_once(
                "divergence",
                f"The critic is diverging (mean |Q| is {means['q_abs_mean']:.3g} after {self._n_updates} updates): "
                f"{self.divergence_advice}.",
            )
        self._record_evaluation()

    def _largest_value(self) -> float:
        """Largest |Q| that rewards of the method's size and the entropy allow."""
        space: Any = self.action_space
        discrete = isinstance(space, spaces.Discrete)
        entropy = math.log(int(space.n)) if discrete else float(np.prod(space.shape)) * math.log(2)
        per_step = self._largest_reward() + float(self._current_ent_coef()) * entropy
        return per_step / (1 - self.gamma) if self.gamma < 1 else 1000 * per_step

    def _largest_reward(self) -> float:
        """Size that the method keeps its implicit rewards to."""
        return 1.0

    def _record_evaluation(self) -> None:
        """Quantities that are too dear for every update: expert log-likelihood and the value of initial states."""
        if self._last_batch is None:
            return
        batch = self._last_batch
        is_expert = batch.weights.expert[: len(batch.actions)] > 0
        # Logging must move neither the stream that training draws from nor running statistics
        rng = np.random.default_rng(self._n_updates)
        self.policy.set_training_mode(False)
        with th.no_grad():
            obs = map_obs(lambda tensor: tensor[is_expert], batch.obs)
            self._warn_about_clipped(obs)
            log_likelihood = self.policy.log_prob(obs, batch.actions[is_expert]).mean()
            self.logger.record("train/expert_log_likelihood", log_likelihood.item())
            if not self.offline:
                initial = self._obs_tensor(self._initial_states((64,), rng))
                value = self._value(self.critic, initial, self._noise((1, 64), rng), self._critic_ent_coef()).mean()
                self.logger.record("train/initial_value", value.item())

    def _warn_about_clipped(self, obs: Any) -> None:
        """Normalised observations of demonstrations that VecNormalize clips have lost what they say."""
        venv = self._vec_normalize_env
        if venv is None or not venv.norm_obs or "clipped" in self._warned:
            return
        if venv.training and self.num_timesteps < READ_INTERVAL:
            return  # the first statistics fit nothing but the first states
        values = [obs[key] for key in venv.norm_obs_keys or ()] if isinstance(obs, dict) else [obs]
        n_clipped = sum(int((value.abs() >= venv.clip_obs).sum()) for value in values)
        share = n_clipped / max(sum(value.numel() for value in values), 1)
        if share > CLIPPED_SHARE:
            self._warn_once(
                "clipped",
                f"{share:.1%} of the demonstrations' observation values lie beyond VecNormalize's clip_obs={venv.clip_obs}, "
                "because its statistics come from other states: use normalize_by_demonstrations=True or a larger clip_obs.",
            )

    def _log_demonstrations(self) -> None:
        demos = self._require_demonstrations().demonstrations
        self.logger.record("demonstrations/episodes", demos.n_episodes)
        self.logger.record("demonstrations/transitions", len(demos))
        if demos.episode_returns is not None:
            self.logger.record("demonstrations/expert_return", float(np.mean(demos.episode_returns)))

    def dump_logs(self) -> None:
        """Write the log; called by SB3 at every log interval."""
        self._read_statistics()
        self._log_demonstrations()
        self._log_normalized_score()
        # SB3 renamed the method in 2.6
        getattr(super(), "dump_logs" if hasattr(OffPolicyAlgorithm, "dump_logs") else "_dump_logs")()

    def _dump_logs(self) -> None:
        self.dump_logs()

    def _log_normalized_score(self) -> None:
        """Between random actions (0) and the built-in expert (1), in the tasks that have one."""
        spec = self.env.get_attr("spec", 0)[0] if self.env is not None and self.ep_info_buffer else None
        if spec is not None and spec.id in builtin_ids():
            returns = [episode["r"] for episode in self.ep_info_buffer]  # type: ignore[union-attr]
            self.logger.record("rollout/normalized_score", float(normalized_score(spec.id, returns).mean()))

    def _warn_once(self, key: str, message: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            warnings.warn(message, UserWarning, stacklevel=3)

    def _warn_about_update_ratio(self) -> None:
        assert self.env is not None
        if self.env.num_envs > 1 and self.gradient_steps == 1:
            self._warn_once(
                "update ratio",
                f"{self.env.num_envs} environments with gradient_steps=1 make one update per {self.env.num_envs} steps: "
                "gradient_steps=-1 keeps one update per step.",
            )

    # ------------------------------------------------------------------------------------------------------------------
    # The learned reward
    # ------------------------------------------------------------------------------------------------------------------

    def implicit_reward(
        self,
        obs: Any,
        acts: np.ndarray,
        next_obs: Any,
        dones: np.ndarray,
        n_samples: int = 16,
        seed: int = 0,
    ) -> np.ndarray:
        """
        Reward that the critic implies, ``r_Q(s, a, s') = Q(s, a) - gamma V(s')`` (mean over critics).

        :param obs: raw observations, shape ``(N, ...)``, or a dict of them
        :param acts: actions in environment units, shape ``(N, ...)``
        :param next_obs: raw next observations
        :param dones: true terminations only, shape ``(N,)``
        :param n_samples: policy samples per V(s') on Box, default 16
        :param seed: seed of these samples, so that repeated calls agree
        :return: rewards, float32, shape ``(N,)``
        """
        self.policy.set_training_mode(False)
        rng = np.random.default_rng(seed)
        acts = np.asarray(acts)
        not_terminated = th.as_tensor(~np.asarray(dones, dtype=bool).reshape(-1), device=self.device).float()
        ent_coef = self._critic_ent_coef()
        with th.no_grad():
            obs_tensor, next_tensor = self._obs_tensor(obs), self._obs_tensor(next_obs)
            if self.actor is None:
                actions = th.as_tensor(acts.reshape(-1), device=self.device).long()
                q = self.policy.q_and_value(obs_tensor, actions, None, ent_coef)[0]
                next_v = self.policy.value(self.critic, next_tensor, None, ent_coef)
            else:
                scaled = self.policy.scale_action(acts).reshape(len(acts), -1).astype(np.float32)
                q = self.critic.q_values(obs_tensor, th.as_tensor(scaled, device=self.device))
                draws = []
                for _ in range(n_samples):
                    draws.append(self._value(self.critic, next_tensor, self._noise((1, len(scaled)), rng), ent_coef))
                next_v = th.stack(draws).mean(dim=0)
            next_v = not_terminated * next_v
            if self.terminal_value == "absorbing":
                next_v = next_v + (1 - not_terminated) * self._absorbing_value(self.critic).amin()
            return (q.mean(dim=0) - self.gamma * next_v).cpu().numpy()

    # ------------------------------------------------------------------------------------------------------------------
    # Saving
    # ------------------------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls: type[SelfImitation], path: Any, env: GymEnv | None = None, *args: Any, **kwargs: Any) -> SelfImitation:
        """
        Load a model; see SB3's ``load``. A stored demonstration path is read again when ``learn`` is called.

        :param path: zip file
        :param env: environment to continue learning in; prediction needs none
        :param kwargs: arguments to change, such as ``demonstrations=``
        """
        if "demonstrations" in kwargs:
            kwargs.update(demonstrations=_plain(kwargs["demonstrations"]), demonstrations_sha256=None)
        if "extra_transitions" in kwargs:
            kwargs.update(extra_transitions=_plain(kwargs["extra_transitions"]))
        # Without an environment nothing is continued: a model loaded to predict leaves the caller's generators alone
        with unchanged_global_generators() if env is None else nullcontext():
            model = super().load(path, env, *args, **kwargs)
        model._sync_temperature()
        if kwargs.get("demonstrations") is not None:
            model._load_demonstrations()
        return model

    @classmethod
    def resume(cls: type[SelfImitation], path: Any, env: GymEnv, **kwargs: Any) -> SelfImitation:
        """
        Go on from a checkpoint of :class:`sb3_dualqdm.callbacks.ResumableCheckpoint`, exactly where the killed run was.

        Follow it by ``learn(total_timesteps, callback, reset_num_timesteps=False)`` with the arguments of the interrupted
        call: the same ``total_timesteps`` completes that call, schedules included; any other number counts additional
        steps, as always. Generators of random numbers are put back when ``learn`` begins.

        :param path: file that the callback wrote
        :param env: environment like that of the run, with as many copies; statistics of VecNormalize are put into it
        :param kwargs: further arguments of :meth:`load`, such as ``device``, or ``demonstrations=`` where they were objects
        :raises ValueError: when the file is no checkpoint or the environment has other copies or wrappers
        """
        return load_checkpoint(cls, path, env, **kwargs)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save the model; see SB3's ``save``. How updates were accelerated leaves no trace."""
        with plain_optimizers(self._optimizers()):
            super().save(*args, **kwargs)

    def set_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Load parameters; see SB3's ``set_parameters``."""
        super().set_parameters(*args, **kwargs)
        self._step = None  # optimisers have new state tensors, which a captured update does not know

    def _excluded_save_params(self) -> list[str]:
        excluded = ["_replay_buffer", "demo_buffer", "actor_lr_schedule", "_rng", "_statistics", "_last_batch", "_warned"]
        excluded += ["log_ent_coef", "ent_coef_optimizer", "_norm_stats", "_norm_stats_target", "_step", "_weights"]
        excluded += ["_resumed", "networks"]
        if not isinstance(self.demonstrations, str):
            # Objects are data: a zip holds a path or a name, never demonstrations
            excluded += ["demonstrations", "demonstrations_sha256"]
        if not isinstance(self.extra_transitions, str):
            excluded.append("extra_transitions")
        return super()._excluded_save_params() + excluded

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        state_dicts = ["policy", "critic.optimizer"]
        if self.actor is not None:
            state_dicts.append("actor.optimizer")
        if len(self.networks) > 0:
            state_dicts += ["networks", *(f"networks.{name}.optimizer" for name in self._trained_networks())]
        if self.ent_coef_optimizer is not None:
            return [*state_dicts, "ent_coef_optimizer"], ["log_ent_coef"]
        return state_dicts, []
