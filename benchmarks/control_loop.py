"""
A control for the package: Dual Q-DM on Box actions as one plain loop with the authors' settings, which shares no code with it.

    python benchmarks/control_loop.py --env HalfCheetah-v4 --demonstrations demos/HalfCheetah-v4 --out control.csv

Demonstrations are a folder of imitation's. Evaluations are those of ``evidence.py``: 10 episodes, seeds from 10000.
"""

import argparse
import copy
import csv
import math
import shlex
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pyarrow as pa
import torch as th
from gymnasium.wrappers import TransformObservation
from torch import nn
from torch.nn.functional import relu, softplus


def mlp(n_in: int, n_out: int) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(n_in, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, n_out))
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return net


def sample(actor: nn.Module, obs: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    """Squashed-Gaussian action in [-1, 1] and its log-density."""
    mean, log_std = actor(obs).chunk(2, dim=-1)
    log_std = -5 + 3.5 * (th.tanh(log_std) + 1)
    noise = th.randn_like(mean)
    u = mean + log_std.exp() * noise
    log_prob = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - u - softplus(-2 * u))
    return th.tanh(u), log_prob.sum(dim=-1)


def read(folder: str, indices: list[int], subsample: int, limit_ends: bool, env: gym.Env) -> tuple[list[th.Tensor], float]:
    """Rows obs, action, next_obs, mask of the chosen episodes, and their return; what is not terminal was cut by a limit."""
    data = pa.concat_tables(pa.ipc.open_stream(path).read_all() for path in sorted(Path(folder).glob("*.arrow"))).to_pylist()
    rows = []
    for index in indices:
        episode = data[index]
        obs, acts = np.array(episode["obs"], dtype=np.float32), np.array(episode["acts"], dtype=np.float32)
        for t in range(0, len(acts), subsample):
            ended = t == len(acts) - 1 and (episode["terminal"] or limit_ends)
            rows.append((obs[t], acts[t] / env.action_space.high, obs[t + 1], 1.0 - float(ended)))
    expert_return = float(np.mean([sum(data[index]["rews"]) for index in indices]))
    return [th.as_tensor(np.array(column, dtype=np.float32)) for column in zip(*rows)], expert_return


def evaluate(actor: nn.Module, env: gym.Env) -> list[float]:
    returns = []
    for seed in range(10_000, 10_010):
        obs, done, total = env.reset(seed=seed)[0], False, 0.0
        while not done:
            with th.no_grad():
                mean = actor(th.as_tensor(obs, dtype=th.float32)).chunk(2, dim=-1)[0]
            obs, reward, terminated, truncated, _ = env.step(th.tanh(mean).numpy() * env.action_space.high)
            total, done = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="HalfCheetah-v4")
    parser.add_argument("--demonstrations", required=True)
    parser.add_argument("--indices", type=int, nargs="*", default=[0])
    for name, default in {"subsample": 1, "steps": 100_000, "eval-every": 10_000, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, rate in {"alpha": 0.001, "actor-lr": 3e-4, "bound": 1.0, "beta": 0.5}.items():
        parser.add_argument(f"--{name}", type=float, default=rate)
    parser.add_argument("--mode", choices=["value", "v0"], default="value")
    parser.add_argument("--limit-terminates", action="store_true", help="time limits are terminations, as for the authors")
    parser.add_argument("--normalize", action="store_true", help="observations in standard deviations of the demonstrations'")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    th.set_num_threads(1)
    th.manual_seed(args.seed)
    rng, gamma, tau, n = np.random.default_rng(args.seed), 0.99, 0.005, 256
    env, test_env = gym.make(args.env), gym.make(args.env)
    n_obs, n_act = env.observation_space.shape[0], env.action_space.shape[0]
    expert, expert_return = read(args.demonstrations, args.indices, args.subsample, args.limit_terminates, env)
    if args.normalize:
        std, mean = (part.numpy() for part in th.std_mean(expert[0], dim=0))
        expert[0], expert[2] = ((column - mean) / (std + 1e-3) for column in (expert[0], expert[2]))
        env, test_env = (TransformObservation(each, lambda obs: (obs - mean) / (std + 1e-3), None) for each in (env, test_env))
    replay = [th.zeros(args.steps, *column.shape[1:]) for column in expert]
    actor, critic = mlp(n_obs, 2 * n_act), mlp(n_obs + n_act, 1)
    target = copy.deepcopy(critic)
    actor_adam = th.optim.Adam(actor.parameters(), lr=args.actor_lr)
    critic_adam = th.optim.Adam(critic.parameters(), lr=3e-4)

    def q(net: nn.Module, obs: th.Tensor, act: th.Tensor) -> th.Tensor:
        return net(th.cat([obs, act], dim=1)).squeeze(1)

    file = args.out.open("w", newline="")
    file.write(f"# python {shlex.join(sys.argv)}\n")
    table, started = csv.writer(file), time.time()
    table.writerow("algo,env,seed,step,mean,std,min,max,episodes,expert_return,demo_indices,seconds".split(","))
    obs, _ = env.reset(seed=args.seed)
    for step in range(args.steps):
        with th.no_grad():
            action = sample(actor, th.as_tensor(obs, dtype=th.float32))[0].numpy()
        next_obs, _, terminated, truncated, _ = env.step(action * env.action_space.high)
        mask = 1.0 - float(terminated or (truncated and args.limit_terminates))
        for column, value in zip(replay, (obs, action, next_obs, mask)):
            column[step] = th.as_tensor(value)
        obs = env.reset()[0] if terminated or truncated else next_obs
        if step > 1280:
            at = rng.choice(step + 1, n, replace=False), rng.choice(len(expert[0]), min(n, len(expert[0])), replace=False)
            s, a, s2, m = (th.cat([new[at[0]], old[at[1]]]) for new, old in zip(replay, expert))
            with th.no_grad():
                a2, log_prob2 = sample(actor, s2)
                y = gamma * m * (q(target, s2, a2) - args.alpha * log_prob2)
            pi, log_prob = sample(actor, s)
            v = q(critic, s, pi.detach()) - args.alpha * log_prob.detach()
            r = q(critic, s, a) - y
            push = (v - y).mean() if args.mode == "value" else (1 - gamma) * v.mean()
            hinge = relu(-args.bound - r) ** 2 + relu(r - args.bound) ** 2
            critic_adam.zero_grad()
            (-r[n:].mean() + push + args.beta * hinge.mean()).backward()
            critic_adam.step()
            actor_adam.zero_grad()
            (args.alpha * log_prob - q(critic, s, pi)).mean().backward()
            actor_adam.step()
            with th.no_grad():
                for slow, fast in zip(target.parameters(), critic.parameters()):
                    slow.lerp_(fast, tau)
        if (step + 1) % args.eval_every == 0:
            returns = evaluate(actor, test_env)
            numbers = [step + 1, np.mean(returns), np.std(returns), min(returns), max(returns), len(returns)]
            indices = " ".join(map(str, args.indices))
            table.writerow(["control", args.env, args.seed, *numbers, expert_return, indices, round(time.time() - started)])
            file.flush()
            print(numbers, flush=True)


if __name__ == "__main__":
    main()
