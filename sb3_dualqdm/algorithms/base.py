"""
The one training loop behind every method: an SB3 off-policy algorithm that learns from demonstrations instead of rewards.

A method is a subclass that says what one update is (:meth:`ImitationAlgorithm._update`). Most share the update of
:mod:`sb3_dualqdm.algorithms.soft_actor_critic` and say which objective it minimises. Collecting, sampling, target networks,
saving and logging are written here once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm, maybe_make_env
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, ProgressBarCallback
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, RolloutReturn, Schedule
from stable_baselines3.common.utils import get_parameters_by_name, polyak_update
from stable_baselines3.common.vec_env import VecEnv

from sb3_dualqdm.acceleration import MACHINE_ARGUMENTS, Update, accelerated, plain_optimizers, resolve, set_learning_rate
from sb3_dualqdm.algorithms import arguments, environments
from sb3_dualqdm.algorithms.batches import Batch, NetworkInputs
from sb3_dualqdm.algorithms.search import DISCOUNT, ENTROPY, Range, SearchSpace
from sb3_dualqdm.algorithms.statistics import (
    DeviceMeans,
    RunWarnings,
    check_finite,
    largest_value,
    record_demonstrations,
    record_normalized_score,
)
from sb3_dualqdm.algorithms.weights import row_weights
from sb3_dualqdm.buffers import (
    DemonstrationBuffer,
    ImitationDictReplayBuffer,
    ImitationReplayBuffer,
    RawRows,
    concatenate,
)
from sb3_dualqdm.callbacks import TimeStepProgressBar
from sb3_dualqdm.demonstrations import Demonstrations, load_demonstrations
from sb3_dualqdm.demonstrations.types import map_obs
from sb3_dualqdm.policies import POLICY_ALIASES, policy_for
from sb3_dualqdm.resume import RunState, load_checkpoint, restart_episodes, unchanged_global_generators

SelfImitation = TypeVar("SelfImitation", bound="ImitationAlgorithm")

# Statistics are read, and NaN is noticed, at every log interval and at least this often (in updates).
READ_INTERVAL = 1000
# Batches of a training phase that are sampled together
SAMPLED_AT_ONCE = 32


def own_defaults(args: tuple[Any, ...], kwargs: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    """Keyword arguments with a method's own defaults for what was given neither by position nor by name."""
    names = list(inspect.signature(ImitationAlgorithm.__init__).parameters)[1:]
    return {**{name: value for name, value in defaults.items() if name not in names[: len(args)]}, **kwargs}


class ImitationAlgorithm(OffPolicyAlgorithm):
    """
    Base of the methods. The first arguments are SAC's, in SAC's order; what follows ``_init_setup_model`` is new.

    :param policy: ``"MlpPolicy"``, ``"CnnPolicy"``, ``"MultiInputPolicy"``, or a policy class of :mod:`sb3_dualqdm.policies`
    :param env: environment (id, gymnasium env or VecEnv) with Box or Discrete actions; None for loading, or offline with the
        spaces given
    :param learning_rate: critic's learning rate, float, schedule of the remaining progress or ``"lin_3e-4"`` (linear decay
        to 0), default 3e-4
    :param buffer_size: replay capacity in transitions, default 1e6; allocated when first used
    :param learning_starts: environment steps before the first update, default 1280
    :param batch_size: replay rows per update, default 256
    :param tau: Polyak coefficient of the target critic, default 0.005
    :param gamma: discount, default 0.99
    :param train_freq: steps of the vectorised environment, each of all copies, (or ``(n, "episode")``) between training
        phases, default 1
    :param gradient_steps: updates per training phase, -1: as many as transitions were collected; default 1
    :param action_noise: noise added while collecting, default None; Box only
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
    :param subsample: keep every k-th transition (with its true successor), default 1; with ``terminal_value="absorbing"``
        terminated ones too, which are drawn 1 / k as often (:class:`BC` has no use for them)
    :param demonstrations_kwargs: ``max_episode_steps``, ``clip_actions`` and ``drop_last`` of
        :func:`sb3_dualqdm.load_demonstrations`
    :param demo_batch_size: expert rows per update, default None: ``batch_size``
    :param actor_learning_rate: actor's learning rate, as ``learning_rate``; None (default): the same; Box only
    :param value_mode: which form of ``(1 - gamma) E_rho[V]`` pushes values down, see :func:`objectives.value_term`;
        default ``"value"``
    :param objective: ``"reference"`` (default): every V(s') comes from the target network, constraints on all rows, the
        actor sees all states; ``"paper"``: gradient through V(s') in the objective, target network only in the constraint
        terms, those on replay rows, the actor on replay states, and rows weighted by gamma^t of their episode step; for
        Dual Q-DM, IQ-Learn and Reg IQ-Learn
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
        With VecNormalize rows are always drawn in host memory. Not saved
    :raises ValueError: for an argument outside its domain, unsuitable spaces or demonstrations
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = POLICY_ALIASES
    policy: Any  # SoftActorCriticPolicy or SoftQPolicy
    _replay_buffer: Any
    # What a user can do about a diverging critic
    divergence_advice: ClassVar[str] = "lower learning_rate or gamma"
    # Q is this many times the critic's output: -1 where the critic is a cost
    critic_sign: ClassVar[int] = 1
    # What the method learns from without an environment: demonstrations alone, replay rows as well, or it does not
    offline_support: ClassVar[str] = "demonstrations"
    # Whether Discrete actions are defined for the method
    supports_discrete: ClassVar[bool] = True
    # Whether the method has the form of objective="paper"
    has_paper_objective: ClassVar[bool] = False
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
        learning_rate: float | str | Schedule = 3e-4,
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
        if env is not None and (observation_space is not None or action_space is not None):
            raise ValueError(
                "observation_space or action_space was given beside env, which has its own: leave them out, or env=None with "
                "offline=True."
            )
        if env is None and observation_space is not None and action_space is not None:
            env = environments.SpacesOnly(observation_space, action_space)
        super().__init__(
            policy,
            env,  # type: ignore[arg-type]
            learning_rate,  # type: ignore[arg-type]
            buffer_size=buffer_size,
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
        if n_steps != 1:
            raise ValueError(
                f"n_steps={n_steps} was given but the implicit reward is defined over one step: leave n_steps at 1."
            )
        self.use_sde = use_sde
        self.ent_coef = ent_coef
        self.target_update_interval = target_update_interval
        self.target_entropy = target_entropy
        vars(self)["demonstrations"] = arguments.rereadable(demonstrations)
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
        self.extra_transitions = arguments.rereadable(extra_transitions)
        self._has_extra_transitions = extra_transitions is not None  # also in a zip, which does not hold objects
        self.normalize_by_demonstrations = normalize_by_demonstrations
        self.acceleration = acceleration
        self.replay_device = replay_device
        self.offline = offline

        self.demo_buffer: DemonstrationBuffer | None = None
        self.log_ent_coef: th.Tensor | None = None
        self.ent_coef_optimizer: th.optim.Optimizer | None = None
        self._warnings = RunWarnings()
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
                self._check_offline_data()
                self._load_demonstrations()
            self._add_extra_transitions()

    # --- construction -----------------------------------------------------------------------------------------------

    @staticmethod
    def _wrap_env(env: GymEnv | str, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        env = maybe_make_env(env, verbose)  # SB3 makes one from an id at construction only
        environments.check_action_space(env.action_space)
        environments.check_observation_space(env.observation_space)
        venv = BaseAlgorithm._wrap_env(env, verbose, monitor_wrapper)
        environments.check_wrapper_order(venv)
        return venv

    def _check_arguments(self) -> None:
        """One sentence for each argument outside its domain."""
        arguments.check_arguments(self)

    def _check_offline_data(self) -> None:
        """One sentence when there are no rows to learn from; not before they are needed, since a zip may hold none."""
        arguments.check_offline_data(self)

    def _setup_model(self) -> None:
        if self.replay_buffer_class is None:
            is_dict = isinstance(self.observation_space, spaces.Dict)
            self.replay_buffer_class = ImitationDictReplayBuffer if is_dict else ImitationReplayBuffer
        self._convert_train_freq()
        self._check_arguments()
        self._setup_lr_schedule()
        self.actor_lr_schedule = self._rate_schedule("actor_learning_rate")
        self.set_random_seed(self.seed)
        self.policy_class = policy_for(self.policy_class, self.action_space)
        self.policy = self.policy_class(  # type: ignore[assignment]
            self.observation_space, self.action_space, self.lr_schedule, **self._policy_arguments()
        ).to(self.device)
        self._setup_ent_coef()
        self.networks: Any = th.nn.ModuleDict(self._make_networks()).to(self.device)
        for network in self.networks.values():
            network.train(hasattr(network, "optimizer"))  # a target network never learns
        self._step: Update | None = None
        self._statistics = DeviceMeans()
        self._last_batch: Batch | None = None
        self._norm_stats, self._norm_stats_target = [], []
        for online, target, _ in self._target_networks():
            self._norm_stats += get_parameters_by_name(online, ["running_"])
            self._norm_stats_target += get_parameters_by_name(target, ["running_"])

    def set_random_seed(self, seed: int | None = None) -> None:
        """
        Seed every generator; see SB3's ``set_random_seed``.

        :param seed: None (default): rows and noise are drawn from a new, unpredictable stream, all else goes on as it was
        """
        super().set_random_seed(seed)
        # Every draw of rows and noise comes from here; a loaded model continues with another stream than it began with
        self._rng = np.random.default_rng(None if seed is None else [seed, self.num_timesteps])

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

    def _target_networks(self) -> list[tuple[Any, Any, float]]:
        """Pairs of a network and the one that follows it, with the Polyak coefficient."""
        return [(self.critic, self.critic_target, self.tau)]

    def _set_training_mode(self, mode: bool) -> None:
        """Of the policy and the method's networks, target networks excepted."""
        self.policy.set_training_mode(mode)
        for network in self._trained_networks().values():
            network.train(mode)

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
            self._replay_buffer = self._new_replay_buffer(self.buffer_size)
        return self._replay_buffer

    @replay_buffer.setter
    def replay_buffer(self, replay_buffer: ReplayBuffer | None) -> None:
        self._replay_buffer = replay_buffer

    def _new_replay_buffer(self, buffer_size: int) -> Any:
        return self.replay_buffer_class(  # type: ignore[misc]
            buffer_size,
            self.observation_space,
            self.action_space,
            device=self.device,
            n_envs=self.n_envs,
            **{"storage_device": self._storage_device(self.replay_device), **self.replay_buffer_kwargs},
        )

    def _storage_device(self, device: th.device | str) -> th.device | str:
        """VecNormalize works on arrays in host memory."""
        return "cpu" if self._vec_normalize_env is not None else device

    def _rate_schedule(self, name: str) -> Callable[[float], float]:
        """Schedule of the remaining progress that an argument gives; None: ``learning_rate``'s."""
        rate = getattr(self, name)
        return self.lr_schedule if rate is None else arguments.rate_schedule(name, rate)

    def _setup_ent_coef(self) -> None:
        self._target_entropy = arguments.target_entropy(self.target_entropy, self.action_space, self.entropy_factor)
        initial = arguments.initial_temperature(self.ent_coef)
        if isinstance(self.ent_coef, str):
            self.log_ent_coef = th.full((1,), initial, device=self.device).log().requires_grad_(True)
            self.ent_coef_optimizer = th.optim.Adam([self.log_ent_coef], lr=self.lr_schedule(1), fused=True)
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

    # --- demonstrations ---------------------------------------------------------------------------------------------

    @property
    def demonstrations(self) -> Any:
        """What the model learns from; see the constructor. To assign others is to call :meth:`set_demonstrations`."""
        return vars(self).get("demonstrations")  # under the property's own name, by which zips hold it

    @demonstrations.setter
    def demonstrations(self, demonstrations: Any) -> None:
        self.set_demonstrations(demonstrations)

    def set_demonstrations(self, demonstrations: Any) -> None:
        """
        Replace the demonstrations.

        :param demonstrations: see the constructor
        :raises ValueError: when they do not fit the spaces
        """
        previous = {"demonstrations": self.demonstrations, "demonstrations_sha256": self.demonstrations_sha256}
        vars(self).update(demonstrations=arguments.rereadable(demonstrations), demonstrations_sha256=None)
        try:
            self._load_demonstrations()
        except Exception:
            vars(self).update(previous)
            raise

    def set_env(self, env: GymEnv | str, force_reset: bool = True) -> None:
        """
        Change the environment; see SB3's ``set_env``. Demonstrations are read again if its time limit is another one.

        :param env: environment, or its id, with the same spaces and number of copies
        :param force_reset: reset it before learning continues
        """
        super().set_env(env, force_reset)  # type: ignore[arg-type]
        if self.demo_buffer is not None and environments.time_limit(self.env) != self._demonstrations_time_limit:
            self.demo_buffer = None

    def load_replay_buffer(self, path: Any, truncate_last_traj: bool = True) -> None:
        """
        Load a replay buffer that a model of this package saved.

        :param path: file to read
        :param truncate_last_traj: unused
        :raises ValueError: for a buffer without initial states, or of other environments or another number of them
        """
        super().load_replay_buffer(path, truncate_last_traj)
        buffer, self._replay_buffer = self._replay_buffer, None
        arguments.check_replay_buffer(buffer, self, path)
        buffer.storage_device = th.device(self._storage_device(self.replay_device))
        self._replay_buffer = buffer
        self._last_obs = None  # the stored episodes end here

    def _load_demonstrations(self) -> None:
        """Read, validate and scale the demonstrations; a path that changed since it was saved in a zip is reported."""
        self._demonstrations_time_limit = environments.time_limit(self.env)
        demos = self._read_transitions(
            self.demonstrations,
            n_demonstrations=self.n_demonstrations,
            subsample=self.subsample,
            keep_terminal=self._keeps_terminated(),
        )
        if self.demonstrations_sha256 not in (None, demos.sha256):
            self._warnings.changed_demonstrations(self.demonstrations)
        self.demonstrations_sha256 = demos.sha256
        row_discount = self.gamma if self.objective == "paper" else 1.0
        device = self._storage_device(self.device)
        self.demo_buffer = DemonstrationBuffer(demos, self.policy, self.observation_space, row_discount, device)
        if self.verbose >= 1:
            print(demos.summary())

    def _keeps_terminated(self) -> bool:
        """Whether ``subsample`` keeps every terminated step beside each k-th one, for the absorbing state that it leads to."""
        return self.terminal_value == "absorbing"

    def _add_extra_transitions(self) -> None:
        """Store older experience in a replay buffer that has none yet."""
        if self.extra_transitions is None or self.env is None or self.replay_buffer.prefilled:
            return
        transitions = self._read_transitions(self.extra_transitions)
        self.replay_buffer.prefill(DemonstrationBuffer(transitions, self.policy, self.observation_space).stored)

    def _read_transitions(self, source: Any, **options: Any) -> Demonstrations:
        """What ``demonstrations`` and ``extra_transitions`` accept, validated for the spaces."""
        given: dict[str, Any] = {"max_episode_steps": environments.time_limit(self.env), **self.demonstrations_kwargs}
        return load_demonstrations(
            source, observation_space=self.observation_space, action_space=self.action_space, **options, **given
        )

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

    # --- learning ---------------------------------------------------------------------------------------------------

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
        :param log_interval: episodes between two logs (an offline method: thousands of updates, and its end); None: no log
        :param tb_log_name: name of the TensorBoard run, default the class's name
        :param reset_num_timesteps: start counting steps at 0
        :param progress_bar: show a progress bar
        :raises ValueError: without demonstrations, or for a ``log_interval`` below 1
        :raises FloatingPointError: when NaN or infinite losses were found
        """
        if log_interval is not None:
            log_interval = arguments.whole_number("log_interval", log_interval)
        self._require_demonstrations()
        self._check_offline_data()
        if self.env is None and self.offline:
            self.env = self._wrap_env(environments.SpacesOnly(self.observation_space, self.action_space))
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
        n_logged = self._n_updates
        while self.num_timesteps < total_timesteps and not self._finished():
            self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
            self.train(gradient_steps=1, batch_size=self.batch_size)
            self.num_timesteps += 1
            callback.update_locals(locals())
            if not callback.on_step():
                break
            if log_interval is not None and self.num_timesteps % (1000 * log_interval) == 0:
                self.dump_logs()
                n_logged = self._n_updates
        if log_interval is not None and self._n_updates > n_logged:
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
            self._warnings.update_ratio(self.n_envs, self.gradient_steps)
        self._add_extra_transitions()
        record_demonstrations(self.logger, self._require_demonstrations().demonstrations)
        warm_up = self.bc_warmup_steps > 0 and not self._warmed_up
        if self._n_updates == 0 and (self.offline or warm_up or self.normalize_by_demonstrations):
            self._normalise_by_demonstrations()
        if warm_up:
            self._bc_warmup()
            self._warmed_up = True
        return total_timesteps, callback

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        initialised = super()._init_callback(callback, progress_bar)
        callbacks = getattr(initialised, "callbacks", [])
        for index, each in enumerate(callbacks):
            if self.offline and isinstance(each, ProgressBarCallback):
                callbacks[index] = TimeStepProgressBar()
                callbacks[index].init_callback(self)
        return initialised

    def _normalise_by_demonstrations(self) -> None:
        """VecNormalize has seen next to nothing before the first environment step: let it see the demonstrations."""
        venv, demos = self._vec_normalize_env, self._require_demonstrations()
        if self.normalize_by_demonstrations:
            self._warnings.no_statistics(venv)
        if venv is None or not venv.training or not venv.norm_obs or self._saw_demonstrations:
            return
        self._saw_demonstrations = True
        environments.show(venv, map_obs(np.asarray, demos.stored.obs))
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
        self._set_training_mode(True)
        if self._step is None:
            self._step = accelerated(self._update, resolve(self.acceleration, self.device), self._optimizers())
        self._before_updates()
        self._update_learning_rates()
        for start in range(0, gradient_steps, SAMPLED_AT_ONCE):
            n_batches = min(SAMPLED_AT_ONCE, gradient_steps - start)
            batches = self._sample_batches(n_batches, batch_size)
            for index in range(n_batches):
                batch = batches.at(index)
                self._statistics.add(self._step(batch))
                self._n_updates += 1
                if self._n_updates % self.target_update_interval == 0:
                    self._update_target()
                self._after_update()
            self._last_batch = batch
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        if self._statistics.count >= READ_INTERVAL:
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
        """Polyak step of the target networks; running statistics of their layers are copied."""
        with th.no_grad():
            for online, target, tau in self._target_networks():
                th._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)
        polyak_update(self._norm_stats, self._norm_stats_target, 1.0)

    def _before_updates(self) -> None:
        """What a method does on the host before the updates of a training phase."""

    def _after_update(self) -> None:
        """What a method does on the host between two updates."""

    # --- one update -------------------------------------------------------------------------------------------------

    def _update(self, batch: Batch) -> dict[str, th.Tensor]:
        """
        One update: a function of the batch that changes parameters in place and never waits for the device.

        :return: scalars to log
        """
        raise NotImplementedError

    def _n_replay(self, batch: Batch) -> int:
        """Number of replay rows, which come first."""
        return len(batch.not_terminated) - self._demo_batch_size()

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

    @property
    def _policy_optimizer(self) -> th.optim.Optimizer:
        """Of the network that the policy is made of: the actor, or the critic of Discrete actions."""
        return (self.critic if self.actor is None else self.actor).optimizer

    def _bc_loss(self, obs: Any, actions: th.Tensor) -> th.Tensor:
        """What cloning minimises: the negative log-likelihood of recorded actions."""
        return -self.policy.log_prob(obs, actions).mean()

    def _bc_step(self, obs: Any, actions: th.Tensor) -> th.Tensor:
        """One step of cloning; returns its loss."""
        loss = self._bc_loss(obs, actions)
        self._descend(self._policy_optimizer, loss)
        return loss.detach()

    def _bc_warmup(self) -> None:
        """
        Maximum likelihood on the demonstrations, at ``learning_rate``, before the first environment step.

        Target networks begin where this leaves the networks that it trains; they have no other reason to change.
        """
        self.policy.set_training_mode(True)
        set_learning_rate(self._policy_optimizer, self.lr_schedule(1))
        for _ in range(self.bc_warmup_steps):
            rows = self._require_demonstrations().rows(self._demo_batch_size(), self._rng)
            self._bc_step(self._inputs.obs(rows.obs), self._inputs.actions(rows.actions))
        # parameters, not networks: the critic may share the actor's feature extractor
        trained = {id(parameter) for group in self._policy_optimizer.param_groups for parameter in group["params"]}
        with th.no_grad():
            for online, target, _ in self._target_networks():
                for parameter, copy in zip(online.parameters(), target.parameters()):
                    if id(parameter) in trained:
                        copy.copy_(parameter)
        polyak_update(self._norm_stats, self._norm_stats_target, 1.0)

    # --- batches ----------------------------------------------------------------------------------------------------

    def _demo_batch_size(self) -> int:
        return self.batch_size if self.demo_batch_size is None else self.demo_batch_size

    def _sample_batch(self, batch_size: int) -> Batch:
        """One batch, as an update sees it."""
        return self._sample_batches(1, batch_size).at(0)

    def _sample_batches(self, n_batches: int, batch_size: int) -> Batch:
        """Several batches at once, stacked along a leading axis."""
        if self.offline and self.extra_transitions is None:
            return self._to_batches(self._require_demonstrations().rows((n_batches, self._demo_batch_size()), self._rng), 0)
        replay = self.replay_buffer.rows((n_batches, batch_size), self._rng)
        expert = self._require_demonstrations().rows((n_batches, self._demo_batch_size()), self._rng)
        return self._to_batches(concatenate(replay, expert, self._storage_device(self.device)), batch_size)

    def _to_batches(self, rows: RawRows, n_replay: int) -> Batch:
        """Batches of stored rows, with the weights, initial states and noise that updates need beside them."""
        n_batches, n_rows = rows.terminated.shape
        demos, shares = self._require_demonstrations(), (0.0, 0.0)
        if self.objective == "paper" and self.terminal_value == "absorbing":
            shares = demos.absorbing_share, self.replay_buffer.absorbing_share(self.gamma) if n_replay > 0 else 0.0
        settings = self.gamma, self.objective, self.terminal_value, demos.demonstrations.subsampling
        weights = row_weights(rows, n_replay, self.device, *settings, shares)
        initial_states = None
        if self.value_mode == "initial" and (n_replay > 0 or self.offline):
            initial_states = self._initial_states((n_batches, n_replay or n_rows), self._rng)
        return self._inputs.batches(rows, weights, initial_states, self._rng, self.n_action_samples, self.n_uniform)

    @property
    def _inputs(self) -> NetworkInputs:
        """How stored data become inputs of the networks, with the present environment's statistics."""
        return NetworkInputs(self.device, self.action_space, self._vec_normalize_env)

    def _initial_states(self, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
        """Raw initial states: online ones as soon as there are any, else the demonstrations' starts."""
        if not self.offline and len(self.replay_buffer.initial_states) > 0:
            return self.replay_buffer.initial_states.draw(shape, rng)
        return self._require_demonstrations().initial_states(shape, rng)

    # --- logging and warnings ---------------------------------------------------------------------------------------

    def _read_statistics(self) -> None:
        """Record the means since the last read; stop on NaN, warn once when the critic runs away."""
        n_updates = self._statistics.count
        means = self._statistics.read()
        if not means:
            return
        if self.log_ent_coef is None and "critic_loss" in means:
            self.logger.record("train/ent_coef", float(self.ent_coef))
        for name, value in means.items():
            self.logger.record(f"train/{name}", value)
        check_finite(means, self._n_updates - n_updates + 1, self._n_updates, self.divergence_advice)
        ent_coef = float(self._current_ent_coef())
        largest = largest_value(self._largest_reward(), ent_coef, self.action_space, self.gamma)
        self._warnings.divergence(means, largest, self._n_updates, self.divergence_advice)
        self._record_evaluation()

    def _largest_reward(self) -> float:
        """Size that the method keeps its implicit rewards to."""
        return 1.0

    def _record_evaluation(self) -> None:
        """Quantities that are too dear for every update: expert log-likelihood and the value of initial states."""
        if self._last_batch is None:
            return
        obs, actions = self._last_batch.expert_rows()
        # Logging must move neither the stream that training draws from nor running statistics
        rng = np.random.default_rng(self._n_updates)
        self._set_training_mode(False)
        with th.no_grad():
            self._warnings.clipping(self._vec_normalize_env, obs, self.num_timesteps)
            self.logger.record("train/expert_log_likelihood", self.policy.log_prob(obs, actions).mean().item())
            if not self.offline:
                initial, noise = self._inputs.obs(self._initial_states((64,), rng)), self._inputs.noise((1, 64), rng)
                value = self._value(self.critic, initial, noise, self._critic_ent_coef()).mean()
                self.logger.record("train/initial_value", self.critic_sign * value.item())

    def dump_logs(self) -> None:
        """Write the log; called by SB3 at every log interval."""
        self._read_statistics()
        record_demonstrations(self.logger, self._require_demonstrations().demonstrations)
        record_normalized_score(self.logger, self.env, self.ep_info_buffer)
        # SB3 renamed the method in 2.6
        getattr(super(), "dump_logs" if hasattr(OffPolicyAlgorithm, "dump_logs") else "_dump_logs")()

    def _dump_logs(self) -> None:
        self.dump_logs()

    # --- values and the learned reward ------------------------------------------------------------------------------

    def _value(self, critic: Any, obs: Any, noise: th.Tensor | None, ent_coef: th.Tensor | float) -> th.Tensor:
        """Soft value of normalised observations."""
        with th.no_grad():
            draw = self.policy.draw(obs, noise)
        return self.policy.value(critic, obs, draw, ent_coef)

    def _absorbing_value(self, critic: Any) -> th.Tensor:
        """Value of the absorbing state, one per critic, shape ``(C,)``."""
        return critic.bounded(critic.absorbing / (1 - self.gamma))

    def _discounted(self, critic: Any, next_v: th.Tensor, not_terminated: th.Tensor) -> th.Tensor:
        """``gamma V(s')``; after a termination V is the absorbing state's value or 0."""
        next_v = not_terminated * next_v
        if self.terminal_value == "absorbing":
            next_v = next_v + (1 - not_terminated) * self._absorbing_value(critic).amin()
        return self.gamma * next_v

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

        :param obs: raw observations, shape ``(N, ...)``, or a dict of them; images with channels first or last
        :param acts: actions in environment units, shape ``(N, ...)``
        :param next_obs: raw next observations
        :param dones: true terminations only, shape ``(N,)``
        :param n_samples: policy samples per V(s') on Box, default 16
        :param seed: seed of these samples, so that repeated calls agree
        :return: rewards, float32, shape ``(N,)``
        """
        self._set_training_mode(False)
        rng = np.random.default_rng(seed)
        acts = np.asarray(acts)
        not_terminated = th.as_tensor(~np.asarray(dones, dtype=bool).reshape(-1), device=self.device).float()
        ent_coef = self._critic_ent_coef()
        with th.no_grad():
            space = self.observation_space
            obs_tensor, next_tensor = (
                self._inputs.obs(environments.channels_first(given, space)) for given in (obs, next_obs)
            )
            if self.actor is None:
                actions = th.as_tensor(acts.reshape(-1), device=self.device).long()
                q = self.policy.q_and_value(obs_tensor, actions, None, ent_coef)[0]
                next_v = self.policy.value(self.critic, next_tensor, None, ent_coef)
            else:
                scaled = self.policy.scale_action(acts).reshape(len(acts), -1).astype(np.float32)
                q = self.critic.q_values(obs_tensor, th.as_tensor(scaled, device=self.device))
                draws = []
                for _ in range(n_samples):
                    noise = self._inputs.noise((1, len(scaled)), rng)
                    draws.append(self._value(self.critic, next_tensor, noise, ent_coef))
                next_v = th.stack(draws).mean(dim=0)
            reward = q.mean(dim=0) - self._discounted(self.critic, next_v, not_terminated)
            return (self.critic_sign * reward).cpu().numpy()

    # --- saving -----------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls: type[SelfImitation], path: Any, env: GymEnv | str | None = None, *args: Any, **kwargs: Any) -> SelfImitation:
        """
        Load a model; see SB3's ``load``. A stored demonstration path is read again when ``learn`` is called; ``acceleration``
        and ``replay_device`` are the defaults unless given.

        :param path: zip file
        :param env: environment to continue learning in, or its id; prediction needs none
        :param kwargs: arguments to change, such as ``demonstrations=``
        :raises ValueError: when parameters or spaces do not fit
        """
        if "demonstrations" in kwargs:
            kwargs.update(demonstrations=arguments.rereadable(kwargs["demonstrations"]), demonstrations_sha256=None)
        if "extra_transitions" in kwargs:
            extra = arguments.rereadable(kwargs["extra_transitions"])
            kwargs.update(extra_transitions=extra, _has_extra_transitions=extra is not None)
        kwargs = {**MACHINE_ARGUMENTS, **kwargs}  # zips of earlier versions hold them
        # Without an environment nothing is continued: a model loaded to predict leaves the caller's generators alone
        try:
            with unchanged_global_generators() if env is None else nullcontext():
                model = super().load(path, env, *args, **kwargs)  # type: ignore[arg-type]
        except KeyError as error:
            if isinstance(error.__context__, ValueError):  # SB3 takes it for that of an old DQN, whose optimiser it looks for
                raise error.__context__ from None
            raise
        model._sync_temperature()
        if kwargs.get("demonstrations") is not None:
            model._load_demonstrations()
        return model

    @classmethod
    def resume(cls: type[SelfImitation], path: Any, env: GymEnv | str, **kwargs: Any) -> SelfImitation:
        """
        Go on from a checkpoint of :class:`sb3_dualqdm.callbacks.ResumableCheckpoint`, exactly where the killed run was.

        Follow it by ``learn(total_timesteps, callback, reset_num_timesteps=False)`` with the arguments of the interrupted
        call: the same ``total_timesteps`` completes that call, schedules included; any other number counts additional
        steps, as always. Generators of random numbers are put back when ``learn`` begins. On a device of the same type the
        run's ``acceleration`` and ``replay_device`` are kept, on another one they are the defaults.

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

    def set_parameters(self, load_path_or_dict: Any, exact_match: bool = True, device: th.device | str = "auto") -> None:
        """
        Load parameters; see SB3's ``set_parameters``.

        :raises ValueError: with ``exact_match``, when they are those of other networks or optimisers
        """
        if not isinstance(load_path_or_dict, dict):
            load_path_or_dict = load_from_zip_file(load_path_or_dict, device=device, load_data=False)[1]
        found, needed = sorted(load_path_or_dict), sorted(self._get_torch_save_params()[0])
        if exact_match and found != needed:
            raise ValueError(
                f"The parameters are those of {found} but this model has {needed}: use the same class with the same networks, "
                "and a temperature (ent_coef) that is learned in both or in neither."
            )
        super().set_parameters(load_path_or_dict, exact_match, device)
        self._sync_temperature()
        self._step = None  # optimisers have new state tensors, which a captured update does not know

    def _excluded_save_params(self) -> list[str]:
        excluded = ["_replay_buffer", "demo_buffer", "actor_lr_schedule", "_rng", "_statistics", "_last_batch"]
        excluded += ["log_ent_coef", "ent_coef_optimizer", "_norm_stats", "_norm_stats_target", "_step", "_warnings"]
        excluded += ["_resumed", "networks", *MACHINE_ARGUMENTS]
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
