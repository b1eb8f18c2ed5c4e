"""Ways to run an update: all of them change parameters alike, and leave no trace in what is saved."""

import inspect
import json
import zipfile

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from algorithm_helpers import SMALL, CountingEnv, demonstrations_for
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import create_mlp

from sb3_dualqdm import DAC, DualQDM, RegIQLearn, collect_demonstrations
from sb3_dualqdm.acceleration import (
    MACHINE_ARGUMENTS,
    CapturedUpdate,
    accelerated,
    leaves,
    make_capturable,
    plain_optimizers,
    resolve,
    set_learning_rate,
    tree_map,
)
from sb3_dualqdm.algorithms import ImitationAlgorithm
from sb3_dualqdm.buffers import ImitationReplayBuffer, RawRows
from sb3_dualqdm.policies import batched
from sb3_dualqdm.program import OutsideTensors, trace

pytestmark = pytest.mark.both
# Adam turns a gradient of rounding errors into a full step
PLAIN_STEPS = {"net_arch": [16], "optimizer_class": th.optim.SGD, "optimizer_kwargs": {"fused": True}}


def trained(env_id, cls=DualQDM, steps=40, **kwargs):
    arguments = {**SMALL, "seed": 0, "demonstrations": demonstrations_for(env_id), **kwargs}
    return cls("MlpPolicy", env_id, **arguments).learn(steps)


def parameters(model):
    return th.cat([parameter.detach().flatten().cpu() for parameter in model.policy.parameters()])


def train_alike(models, env_id, n_updates=5, **kwargs):
    """The same updates for models of equal weights."""
    batches = trained(env_id, steps=30, **kwargs)._sample_batches(n_updates, 8)
    for model in models:
        model._sample_batches = lambda n, size: batches
        model.train(n_updates, 8)


def test_trees():
    batch = RawRows({"a": th.zeros(2)}, th.ones(3), None, th.ones(1), th.ones(2))
    assert [len(tensor) for tensor in leaves(batch)] == [2, 3, 1, 2]
    doubled = tree_map(lambda tensor: 2 * tensor, batch)
    assert isinstance(doubled, RawRows) and doubled.next_obs is None and doubled.actions.tolist() == [2, 2, 2]


def test_auto_is_plain_on_cpu_and_captured_on_cuda():
    assert resolve("auto", th.device("cpu")) == "none"
    assert resolve("auto", th.device("cuda")) == "cudagraph"
    with pytest.raises(ValueError, match="must be one of"):
        trained("CartPole-v1", acceleration="fast")
    with pytest.raises(ValueError, match="device is cpu"):
        trained("CartPole-v1", acceleration="cudagraph", device="cpu")


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_batches_sampled_together_train_like_a_loop(env_id):
    """Several updates in one training phase are the updates that their batches make one after the other."""
    together, one_by_one = (trained(env_id, steps=30) for _ in range(2))
    batches = together._sample_batches(3, 8)
    assert batches.obs.shape[:2] == batches.actions.shape[:2] == batches.weights.expert.shape[:1] + (16,)
    assert not th.equal(batches.obs[0], batches.obs[1])
    together._sample_batches = lambda n, size: batches
    together.train(3, 8)
    for index in range(3):
        one_by_one._sample_batches = lambda n, size, i=index: tree_map(lambda tensor: tensor[i : i + 1], batches)
        one_by_one.train(1, 8)
    th.testing.assert_close(parameters(together), parameters(one_by_one))
    assert together._n_updates == one_by_one._n_updates


def test_long_phases_are_sampled_in_parts(monkeypatch):
    monkeypatch.setattr("sb3_dualqdm.algorithms.base.SAMPLED_AT_ONCE", 4)
    model = trained("CartPole-v1", steps=30)
    sizes = []
    sample = model._sample_batches
    model._sample_batches = lambda n, size: (sizes.append(n), sample(n, size))[1]
    before = model._n_updates
    model.train(10, 8)
    assert sizes == [4, 4, 2] and model._n_updates == before + 10


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_compiled_update_equals_the_plain_one(env_id):
    plain, compiled = (trained(env_id, steps=1, acceleration=how, policy_kwargs=PLAIN_STEPS) for how in ("none", "compile"))
    train_alike([plain, compiled], env_id)
    th.testing.assert_close(parameters(plain), parameters(compiled), rtol=1e-5, atol=1e-7)
    if compiled._step._failed:
        pytest.skip("no C++ compiler here")
    assert compiled._step.compile_seconds > 0 and len(compiled._step._programs) == 1


@pytest.mark.parametrize(
    "options",
    [{"terminal_value": "zero", "ent_coef": "auto"}, {"objective": "paper", "value_mode": "initial", "n_action_samples": 2}],
)
def test_programs_follow_learning_rates_and_learned_temperatures(options):
    """What changes between updates is read by the program, not kept from when it was traced."""
    policy_kwargs = {**PLAIN_STEPS, "n_critics": 2}
    options = {**options, "policy_kwargs": policy_kwargs, "learning_rate": lambda left: 1e-2 * left}
    plain, compiled = (trained("Pendulum-v1", steps=1, acceleration=how, **options) for how in ("none", "compile"))
    for left in (1.0, 0.3):
        for model in (plain, compiled):
            model._current_progress_remaining = left
        train_alike([plain, compiled], "Pendulum-v1", 6, **options)
    th.testing.assert_close(parameters(plain), parameters(compiled), rtol=1e-4, atol=1e-6)
    if plain.log_ent_coef is not None:
        th.testing.assert_close(plain.log_ent_coef, compiled.log_ent_coef)
    if not compiled._step._failed:
        rates = {float(group["lr"]) for optimizer in compiled._optimizers() for group in optimizer.param_groups}
        assert all(rate == pytest.approx(3e-3) for rate in rates)


def test_networks_beside_the_critic_are_compiled_with_it():
    """The discriminator of DAC, on actions that are one-hot vectors to it."""
    plain, compiled = (
        trained("CartPole-v1", cls=DAC, steps=1, acceleration=how, policy_kwargs=PLAIN_STEPS) for how in ("none", "compile")
    )
    train_alike([plain, compiled], "CartPole-v1", cls=DAC)
    th.testing.assert_close(parameters(plain), parameters(compiled), rtol=1e-4, atol=1e-6)
    discriminators = [next(iter(model._trained_networks().values())) for model in (plain, compiled)]
    for ours, theirs in zip(*(discriminator.parameters() for discriminator in discriminators)):
        th.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_an_update_of_another_layout_is_compiled_anew():
    model = trained("CartPole-v1", steps=1, acceleration="compile")
    for n_rows in (8, 16, 8):
        model.train(5, n_rows)
    assert model._step._failed or len(model._step._programs) == 2


def test_tensors_that_a_function_uses_are_found_once():
    """Parameters and what their views share with them count once; what the function makes, or is given, does not."""
    weight, bias, given = th.randn(3, 2), th.randn(3), th.randn(4, 2)
    with OutsideTensors([given]) as outside:
        made = given @ weight.t() + bias
        made.add_(weight[0].sum() + th.tensor(1.0))
        bias.mul_(2)
    assert [id(tensor) for tensor in outside.found] == [id(weight), id(bias)]


def test_tracing_refuses_what_it_would_freeze():
    storage = th.randn(4)
    first, second = storage[:2], storage[2:]
    with pytest.raises(RuntimeError, match="share memory"):
        trace(lambda: [first + second], [first])
    unrelated = th.randn(2)
    with pytest.raises(RuntimeError, match="new in every update"):
        trace(lambda: [first + unrelated], [first])
    graph = trace(lambda: [first + th.tensor(1.0)], [first])  # a literal is no such tensor
    th.testing.assert_close(graph(first)[0], first + 1)


def test_a_compiler_that_fails_is_reported_once_and_training_goes_on(monkeypatch):
    def broken(graph, example_inputs):
        raise RuntimeError("no compiler\nat all")

    monkeypatch.setattr("torch._inductor.compile", broken)
    with pytest.warns(UserWarning, match="could not be compiled .no compiler. and runs as it is") as caught:
        model = trained("CartPole-v1", acceleration="compile")
    assert sum("compiled" in str(warning.message) for warning in caught) == 1
    th.testing.assert_close(parameters(model), parameters(trained("CartPole-v1")))


class Categories(CountingEnv):
    """The step is a category."""

    def __init__(self):
        super().__init__()
        self.observation_space = gym.spaces.Discrete(6)

    def _obs(self):
        return self.t


def test_observations_that_cannot_be_compiled_are_named():
    expert = collect_demonstrations(lambda obs: 0, Categories(), 2, seed=0)
    model = DualQDM("MlpPolicy", Categories(), demonstrations=expert, acceleration="compile", **SMALL)
    with pytest.warns(UserWarning, match="reads a tensor's value, as .* to encode Discrete and MultiDiscrete observations"):
        model.learn(20)


def test_zips_do_not_depend_on_the_acceleration(tmp_path):
    model = trained("Pendulum-v1", steps=12)
    make_capturable(model._optimizers())  # what a captured update does to them
    model.save(tmp_path / "model")
    assert isinstance(model.critic.optimizer.param_groups[0]["lr"], th.Tensor)  # still captured
    loaded = DualQDM.load(tmp_path / "model")
    group = loaded.critic.optimizer.param_groups[0]
    assert isinstance(group["lr"], float) and not group["capturable"]
    th.testing.assert_close(parameters(model), parameters(loaded))


def test_zips_do_not_say_how_a_machine_ran_them(tmp_path):
    """A model that was trained with these arguments on a GPU loads where there is none."""
    model = trained("Pendulum-v1", steps=12)
    model.acceleration, model.replay_device = "cudagraph", "cuda"
    model.save(tmp_path / "model")
    model.save(tmp_path / "old", include=list(MACHINE_ARGUMENTS))  # as earlier versions did
    stored = {}
    for name in ("model", "old"):
        with zipfile.ZipFile(tmp_path / f"{name}.zip") as archive:
            stored[name] = json.loads(archive.read("data"))
        again = {"env": make_vec_env("Pendulum-v1"), "demonstrations": demonstrations_for("Pendulum-v1")}
        loaded = DualQDM.load(tmp_path / name, device="cpu", **again)
        assert {argument: getattr(loaded, argument) for argument in MACHINE_ARGUMENTS} == MACHINE_ARGUMENTS
        loaded.learn(10)
    assert not set(MACHINE_ARGUMENTS) & set(stored["model"]) and stored["old"]["acceleration"] == "cudagraph"
    given = DualQDM.load(tmp_path / "old", acceleration="compile", replay_device="cpu:0", device="cpu")
    assert (given.acceleration, given.replay_device) == ("compile", "cpu:0")
    parameters_of = inspect.signature(ImitationAlgorithm.__init__).parameters
    assert {name: parameters_of[name].default for name in MACHINE_ARGUMENTS} == MACHINE_ARGUMENTS


def test_learning_rates_in_tensors_are_set_in_place():
    weight = th.nn.Parameter(th.ones(2))
    optimizer = th.optim.Adam([weight], lr=0.1)
    weight.grad = th.ones(2)
    optimizer.step()
    make_capturable([optimizer])
    rate = optimizer.param_groups[0]["lr"]
    set_learning_rate(optimizer, 0.5)
    assert optimizer.param_groups[0]["lr"] is rate and rate.item() == 0.5
    with plain_optimizers([optimizer]):
        assert optimizer.param_groups[0]["lr"] == 0.5 and not optimizer.param_groups[0]["capturable"]
    assert optimizer.param_groups[0]["lr"] is rate and optimizer.param_groups[0]["capturable"]


def test_replay_kept_on_another_device_follows_the_buffer():
    """A copy on a device that is not host memory (here the CPU by another name) always holds what the buffer holds."""
    host, copied = (
        trained("CartPole-v1", cls=RegIQLearn, steps=60, buffer_size=25, replay_device=device) for device in ("cpu", "cpu:0")
    )
    assert isinstance(copied.replay_buffer, ImitationReplayBuffer) and copied.replay_buffer._copy is not None
    th.testing.assert_close(parameters(host), parameters(copied))  # the ring has been round twice
    for copy, stored in zip(copied.replay_buffer._copy.tensors(), copied.replay_buffer._host().tensors()):
        assert copy.data_ptr() != stored.data_ptr() and th.equal(copy, stored)


def test_ensemble_as_one_product_is_its_networks_one_after_the_other():
    networks = [th.nn.Sequential(*create_mlp(5, 3, [7, 6], th.nn.Tanh)) for _ in range(3)]
    x = th.randn(11, 5, requires_grad=True)
    wanted = th.stack([network(x) for network in networks])
    th.testing.assert_close(batched(networks, x), wanted)
    inputs = [x, *(parameter for network in networks for parameter in network.parameters())]
    weight = th.randn(3, 11, 3)
    gradients = (th.autograd.grad((weight * out).sum(), inputs) for out in (batched(networks, x), wanted))
    for got, right in zip(*gradients):
        th.testing.assert_close(got, right)


@pytest.mark.skipif(not th.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_captured_update_equals_the_plain_one(env_id):
    kwargs = {"steps": 1, "device": "cuda", "policy_kwargs": PLAIN_STEPS}
    plain, captured = (trained(env_id, acceleration=how, **kwargs) for how in ("none", "auto"))
    train_alike([plain, captured], env_id, n_updates=10)
    assert isinstance(captured._step, CapturedUpdate) and captured._step._graphs and not captured._step._failed
    th.testing.assert_close(parameters(plain), parameters(captured), rtol=1e-5, atol=1e-7)


def test_plain_updates_are_run_as_they_are():
    def update(batch):
        return {"loss": th.as_tensor(np.pi)}

    assert accelerated(update, "none", []) is update
