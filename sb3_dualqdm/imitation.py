"""
Trainers for pipelines written for the package imitation: two lines of a script that uses GAIL, AIRL or SQIL change.

.. code-block:: python

    learner = DualQDM("MlpPolicy", venv)                                        # was PPO(...)
    trainer = DualQDMTrainer(demonstrations=rollouts, venv=venv, gen_algo=learner)  # was GAIL(..., reward_net=...)
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_normalize

from sb3_dualqdm.algorithms import DualQDM, ImitationAlgorithm, IQLearn, RegIQLearn
from sb3_dualqdm.algorithms.arguments import whole_number
from sb3_dualqdm.algorithms.environments import channels_first
from sb3_dualqdm.demonstrations.types import map_obs

try:
    from imitation.algorithms.base import AnyTransitions, DemonstrationAlgorithm
    from imitation.data.types import AnyPath, Transitions
    from imitation.rewards.reward_nets import RewardNet
    from imitation.util import logger as imitation_logger
except ImportError as error:
    raise ImportError(
        f"sb3_dualqdm.imitation needs the package imitation ({error}): run `pip install 'sb3-dualqdm[imitation]'`, or "
        "`pip install --no-deps imitation` beside a Stable-Baselines3 that is newer than 2.2."
    ) from error

__all__ = ["DualQDMTrainer", "IQLearnTrainer", "ImplicitRewardNet", "RegIQLearnTrainer"]

# Environment steps between two calls of a callback
GEN_TRAIN_TIMESTEPS = 2048
# What a pickled trainer has of its model beside the zip, which holds no objects
LEARNED_FROM = ("demonstrations", "extra_transitions")


class _Frozen:
    """
    A model as its zip file, which holds neither environment, replay nor demonstration arrays, with what normalises its
    observations beside it.
    """

    def __init__(self, model: ImitationAlgorithm):
        self.model_class = type(model)
        file = io.BytesIO()
        model.save(file)
        self.zip = file.getvalue()
        self.vec_normalize: VecNormalize | None = model.get_vec_normalize_env()  # pickled without its environment

    def model(self) -> ImitationAlgorithm:
        model = self.model_class.load(io.BytesIO(self.zip))
        model._vec_normalize_env = self.vec_normalize
        return model


def _thaw_reward(frozen: _Frozen, absorbing_tail: bool) -> ImplicitRewardNet:
    return ImplicitRewardNet(frozen.model(), absorbing_tail)


class ImplicitRewardNet(RewardNet):
    """
    The reward that a model's critic implies, as one of imitation's reward networks.

    It follows the model while that learns; ``th.save`` stores its present state, without environment and demonstrations,
    and ``th.load(path, weights_only=False)`` brings it back. Values are those of
    :meth:`~sb3_dualqdm.algorithms.ImitationAlgorithm.implicit_reward`, so no gradient flows through ``forward``.

    :param model: one of this package's models
    :param absorbing_tail: add the discounted value of the absorbing state where an episode is done, default True. An
        environment pays nothing after its last step, so that without it the reward of failing early would leave out all
        that the model expects to be paid from then on. Without effect for ``terminal_value="zero"``, except for ReCOIL, which
        has a value of its own there
    """

    def __init__(self, model: ImitationAlgorithm, absorbing_tail: bool = True):
        super().__init__(model.observation_space, model.action_space)
        self.model = model
        self.absorbing_tail = absorbing_tail
        self.policy = model.policy  # a submodule, so that parameters() and device are the model's

    def __reduce__(self) -> tuple[Any, ...]:
        return _thaw_reward, (_Frozen(self.model), self.absorbing_tail)

    def preprocess(self, state: Any, action: Any, next_state: Any, done: Any) -> tuple[Any, Any, Any, th.Tensor]:
        """
        Raw transitions as tensors on the model's device.

        :param state: raw observations, shape ``(N, ...)``, or a dict of them; images with channels first or last
        :param action: actions in environment units, shape ``(N, ...)``
        :param next_state: raw next observations
        :param done: terminations, shape ``(N,)``
        """
        action, done = (th.as_tensor(np.array(value), device=self.device) for value in (action, done))
        return self._tensors(state), action, self._tensors(next_state), done

    def _tensors(self, obs: Any) -> Any:
        if callable(getattr(obs, "unwrap", None)):  # imitation's DictObs
            obs = obs.unwrap()
        obs = channels_first(obs, self.observation_space)
        return map_obs(lambda array: th.as_tensor(np.array(array), device=self.device), obs)

    def forward(self, state: Any, action: th.Tensor, next_state: Any, done: th.Tensor) -> th.Tensor:
        """
        Rewards of a batch, shape ``(N,)``.

        :param state: what :meth:`preprocess` returns
        :param action: likewise
        :param next_state: likewise
        :param done: likewise
        """

        def array(tensor: th.Tensor) -> np.ndarray:
            return tensor.cpu().numpy()

        rewards = self.model.implicit_reward(
            map_obs(array, state), array(action), map_obs(array, next_state), array(done).astype(bool)
        )
        if self.absorbing_tail:
            with th.no_grad():
                nothing = th.zeros((), device=self.device)
                tail = self.model._discounted(self.model.critic, nothing, nothing)
            rewards = rewards + self.model.critic_sign * tail.item() * array(done).astype(np.float32)
        return th.as_tensor(rewards, device=self.device)

    def predict_th(self, state: Any, action: Any, next_state: Any, done: Any) -> th.Tensor:
        """Like imitation's, for dict observations too; see :meth:`preprocess`."""
        return self(*self.preprocess(state, action, next_state, done))


class _Rounds(BaseCallback):
    """
    Calls ``callback(round)`` every ``every`` time steps, once the updates that belong to these steps are made.

    :param callback: receives the number of the round, from 0
    :param every: time steps in a round: environment steps, or updates of an offline model
    :param on_termination: called at every step after which an episode has terminated (not been truncated)
    """

    def __init__(self, callback: Callable[[int], Any] | None, every: int, on_termination: Callable[[], None]):
        super().__init__()
        self.callback, self.every, self.on_termination = callback, every, on_termination

    def _on_training_start(self) -> None:
        self.start, self.round = self.model.num_timesteps, 0

    def _on_rollout_start(self) -> None:
        self._count()

    def _count(self) -> None:
        while self.callback is not None and self.model.num_timesteps - self.start >= (self.round + 1) * self.every:
            self.round += 1
            self.callback(self.round - 1)

    def _on_step(self) -> bool:
        if "dones" not in self.locals:  # offline: all updates are one rollout, each of them ends in this call
            self._count()
            return True
        for index in np.flatnonzero(self.locals["dones"]):
            if not self.locals["infos"][index].get("TimeLimit.truncated", False):
                self.on_termination()
        return True

    def _on_training_end(self) -> None:
        self._count()


class ModelTrainer(DemonstrationAlgorithm[Transitions]):
    """
    One of this package's models behind the interface of imitation's trainers. All arguments are keywords.

    :param demonstrations: trajectories, ``Transitions``, a data loader or another iterable of batches that ends, or
        whatever else :func:`sb3_dualqdm.load_demonstrations` reads; None: those of ``gen_algo``
    :param venv: environment to learn in
    :param gen_algo: the model to train, in place; None (default): one is made with its class's defaults
    :param demo_batch_size: rows of demonstrations and rows of replay per update; None (default): the model's own
    :param policy: policy of the model that is made, default None: chosen by the observation space
    :param rl_kwargs: further keyword arguments of the model that is made, default None
    :param gen_train_timesteps: environment steps (updates of an offline model) between two calls of the callback given to
        :meth:`train`, default 2048
    :param custom_logger: an imitation logger, default None: a new one
    :param log_dir: folder of the new logger, default None: a temporary one
    :param init_tensorboard: let the new logger write TensorBoard events too, default False
    :param allow_variable_horizon: accepted; episodes of different lengths are always allowed
    :param reward_net: unused, as are all further arguments: there is no discriminator
    :param demo_minibatch_size: unused
    :param n_disc_updates_per_round: unused
    :param disc_opt_cls: unused
    :param disc_opt_kwargs: unused
    :param gen_replay_buffer_capacity: unused
    :param init_tensorboard_graph: unused
    :param debug_use_ground_truth: unused
    :param rl_algo_class: unused
    :raises TypeError: when ``gen_algo`` is another algorithm
    :raises ValueError: for arguments that contradict each other or demonstrations that do not fit
    """

    algorithm_class: ClassVar[type[ImitationAlgorithm]]

    def __init__(
        self,
        *,
        demonstrations: AnyTransitions | str | None,
        venv: VecEnv,
        gen_algo: ImitationAlgorithm | None = None,
        demo_batch_size: int | None = None,
        policy: str | type[BasePolicy] | None = None,
        rl_kwargs: Mapping[str, Any] | None = None,
        gen_train_timesteps: int | None = None,
        custom_logger: imitation_logger.HierarchicalLogger | None = None,
        log_dir: AnyPath | None = None,
        init_tensorboard: bool = False,
        allow_variable_horizon: bool = False,
        reward_net: Any = None,
        demo_minibatch_size: int | None = None,
        n_disc_updates_per_round: int | None = None,
        disc_opt_cls: Any = None,
        disc_opt_kwargs: Mapping[str, Any] | None = None,
        gen_replay_buffer_capacity: int | None = None,
        init_tensorboard_graph: bool = False,
        debug_use_ground_truth: bool = False,
        rl_algo_class: Any = None,
    ):
        unused = {
            "reward_net": reward_net,
            "demo_minibatch_size": demo_minibatch_size,
            "n_disc_updates_per_round": n_disc_updates_per_round,
            "disc_opt_cls": disc_opt_cls,
            "disc_opt_kwargs": disc_opt_kwargs,
            "gen_replay_buffer_capacity": gen_replay_buffer_capacity,
            "init_tensorboard_graph": init_tensorboard_graph or None,
            "debug_use_ground_truth": debug_use_ground_truth or None,
            "rl_algo_class": rl_algo_class,
        }
        if demo_batch_size is not None:
            demo_batch_size = whole_number("demo_batch_size", demo_batch_size)
        round_length = GEN_TRAIN_TIMESTEPS if gen_train_timesteps is None else gen_train_timesteps
        round_length = whole_number("gen_train_timesteps", round_length)
        if custom_logger is None and (log_dir is not None or init_tensorboard):
            formats = ["stdout", "log", "csv"] + (["tensorboard"] if init_tensorboard else [])
            custom_logger = imitation_logger.configure(log_dir, formats)
        # Of variable horizons imitation says what holds for its own algorithms; _warn_about_leak says what holds for ours
        super().__init__(demonstrations=None, custom_logger=custom_logger, allow_variable_horizon=False)
        self.allow_variable_horizon = allow_variable_horizon
        self.gen_train_timesteps = round_length
        self._leak_reported = False

        self.venv = venv if isinstance(venv, VecEnv) else self.algorithm_class._wrap_env(venv)
        self.gen_algo = self._make_model(policy, rl_kwargs) if gen_algo is None else gen_algo
        if gen_algo is not None:
            self._check_model(policy, rl_kwargs)
            self.gen_algo.set_env(self.venv)
        if demo_batch_size is not None:
            # Both, as in GAIL: the objectives are defined over batches that are half replay and half demonstrations
            self.gen_algo.batch_size = self.gen_algo.demo_batch_size = demo_batch_size
        self._set_up()
        given = [name for name, value in unused.items() if value is not None]
        if given:
            self.logger.info(f"{type(self).__name__} has no discriminator and does not use {', '.join(given)}.")
        if demonstrations is not None:
            self.set_demonstrations(demonstrations)

    def _set_up(self) -> None:
        """What follows from the model."""
        self.gen_algo.set_logger(self._logger)
        self._reward = ImplicitRewardNet(self.gen_algo)

    def _make_model(self, policy: str | type[BasePolicy] | None, rl_kwargs: Mapping[str, Any] | None) -> ImitationAlgorithm:
        if policy is None:
            space = self.venv.observation_space
            policy = "CnnPolicy" if is_image_space(space) else "MlpPolicy"
            policy = "MultiInputPolicy" if isinstance(space, spaces.Dict) else policy
        return self.algorithm_class(policy, self.venv, **(rl_kwargs or {}))

    def _check_model(self, policy: Any, rl_kwargs: Any) -> None:
        trainer, algorithm = type(self).__name__, self.algorithm_class.__name__
        if not isinstance(self.gen_algo, self.algorithm_class):
            found = self.gen_algo if isinstance(self.gen_algo, type) else type(self.gen_algo)
            raise TypeError(
                f"gen_algo is {found.__name__} but {trainer} trains {algorithm}: change two lines, "
                f'`learner = {algorithm}("MlpPolicy", venv)` and '
                f"`trainer = {trainer}(demonstrations=..., venv=venv, gen_algo=learner)`."
            )
        if policy is not None or rl_kwargs is not None:
            raise ValueError(
                f"policy or rl_kwargs was given beside gen_algo, but they describe a model yet to be made: pass them to "
                f"{algorithm}(...), or leave out gen_algo."
            )

    def set_demonstrations(self, demonstrations: AnyTransitions | str) -> None:
        """
        Replace the demonstrations.

        :param demonstrations: see the constructor
        :raises ValueError: when they do not fit the spaces
        """
        self.gen_algo.set_demonstrations(demonstrations)
        if self.gen_algo._require_demonstrations().demonstrations.terminated.any():
            self._warn_about_leak()

    def _warn_about_leak(self) -> None:
        if self.gen_algo.terminal_value == "zero" and not self._leak_reported:
            self._leak_reported = True
            warnings.warn(
                'Episodes end by termination and terminal_value="zero" makes what follows worth 0, so that the length of '
                'episodes leaks into the learned policy: use terminal_value="absorbing" unless this is meant.',
                stacklevel=3,
            )

    def train(
        self,
        total_timesteps: float,
        callback: Callable[[int], Any] | BaseCallback | list[BaseCallback] | None = None,
        **learn_kwargs: Any,
    ) -> None:
        """
        Train the model by one call of ``learn``; a further call goes on where the last one ended.

        :param total_timesteps: environment steps, or updates of an offline model
        :param callback: a function called with the number of the round (from 0) every ``gen_train_timesteps`` of them, or
            callbacks of Stable-Baselines3
        :param learn_kwargs: further keyword arguments of ``learn``, such as ``progress_bar``
        :raises ValueError: without demonstrations or environment
        """
        if self.venv is None:
            raise ValueError(
                f"{type(self).__name__} has no environment since it was unpickled (its own could not be pickled): set "
                "trainer.venv to one."
            )
        is_round = callback is not None and not isinstance(callback, (BaseCallback, list))
        rounds = _Rounds(callback if is_round else None, self.gen_train_timesteps, self._warn_about_leak)  # type: ignore[arg-type]
        others: Any = [] if is_round or callback is None else callback
        callbacks = [rounds, *(others if isinstance(others, list) else [others])]
        # Also resets: what was done with the environment since the last call (an evaluation, say) is no part of an episode
        self.gen_algo.set_env(self.venv)
        self.gen_algo.learn(total_timesteps, callback=callbacks, **{"reset_num_timesteps": False, **learn_kwargs})
        self.gen_algo.dump_logs()

    @property
    def policy(self) -> BasePolicy:
        """The model's policy."""
        return self.gen_algo.policy

    @property
    def rl_algo(self) -> ImitationAlgorithm:
        """The model, by the name that SQIL has for it."""
        return self.gen_algo

    @property
    def demo_batch_size(self) -> int:
        """Rows of demonstrations per update."""
        return self.gen_algo._demo_batch_size()

    @property
    def venv_train(self) -> VecEnv:
        """The environment: nothing here replaces its rewards, which are never read."""
        return self.venv

    venv_wrapped = venv_train

    @property
    def reward_train(self) -> ImplicitRewardNet:
        """The learned reward, which follows the model."""
        return self._reward

    @property
    def reward_test(self) -> ImplicitRewardNet:
        """The same as :attr:`reward_train`."""
        return self._reward

    @property
    def logger(self) -> imitation_logger.HierarchicalLogger:
        """Where trainer and model log to."""
        return self._logger

    @logger.setter
    def logger(self, value: imitation_logger.HierarchicalLogger) -> None:
        self._logger = value
        self.gen_algo.set_logger(value)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["_reward"]
        state["gen_algo"] = _Frozen(self.gen_algo)
        state.update({name: getattr(self.gen_algo, name) for name in LEARNED_FROM})
        state["venv"] = _pickled(self.venv)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        learned_from, venv = {name: state.pop(name) for name in LEARNED_FROM}, state["venv"]
        state["venv"] = None if venv is None else cloudpickle.loads(venv)
        state["gen_algo"] = state["gen_algo"].model()
        super().__setstate__(state)
        if self.venv is not None:
            self.gen_algo.set_env(self.venv)
        vars(self.gen_algo).update(learned_from)  # read when training goes on, not here
        self._set_up()


def _pickled(venv: VecEnv | None) -> bytes | None:
    """An environment as bytes; None where that is impossible: workers, open windows, VecNormalize, ..."""
    if venv is None or unwrap_vec_normalize(venv) is not None:
        return None
    try:
        return cloudpickle.dumps(venv)
    except Exception:  # what an environment holds, and how it fails to be pickled, is open
        return None


class DualQDMTrainer(ModelTrainer):
    """Trains :class:`~sb3_dualqdm.DualQDM`; see :class:`ModelTrainer`."""

    algorithm_class = DualQDM


class IQLearnTrainer(ModelTrainer):
    """Trains :class:`~sb3_dualqdm.IQLearn`; see :class:`ModelTrainer`."""

    algorithm_class = IQLearn


class RegIQLearnTrainer(ModelTrainer):
    """Trains :class:`~sb3_dualqdm.RegIQLearn`; see :class:`ModelTrainer`."""

    algorithm_class = RegIQLearn
