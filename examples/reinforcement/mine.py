"""REINFORCE on Gymnasium's CartPole: 10 episodes are an epoch, and a killed trial continues to the same bits."""

import gymnasium
import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, states):
        return self.layers(states).log_softmax(-1)


@torch.no_grad()
def episode(policy, seed, explore=False):
    """Return states, actions and rewards of an episode that starts from this seed of the environment."""
    env = gymnasium.make("CartPole-v1", max_episode_steps=100)
    (state, _), states, actions, rewards, over = env.reset(seed=seed), [], [], [], False
    while not over:
        states.append(torch.as_tensor(state))
        chances = policy(states[-1]).exp()
        actions.append(int(chances.multinomial(1) if explore else chances.argmax()))
        state, reward, ended, cut, _ = env.step(actions[-1])
        rewards.append(reward)
        over = ended or cut
    return torch.stack(states), torch.tensor(actions), rewards


def train(config, run):
    policy = run.build(Policy, config["width"])
    optimizer = torch.optim.Adam(policy.parameters(), config["lr"])
    run.keep(model=policy, optimizer=optimizer)
    for epoch in run.epochs():
        for number in range(10):
            start = 10_000 * (run.seed + 1) + 10 * epoch + number  # no two seeds have the same episodes
            states, actions, rewards = episode(policy, start, explore=True)
            returns = [sum(r * config["gamma"] ** k for k, r in enumerate(rewards[t:])) for t in range(len(rewards))]
            weight = torch.tensor(returns) - sum(returns) / len(returns)
            optimizer.zero_grad()
            chosen = policy(states)[torch.arange(len(actions)), actions]
            (-(chosen * weight).mean()).backward()
            optimizer.step()
        yield {"val_return": sum(sum(episode(policy, seed)[2]) for seed in range(5)) / 5}


def test(model, config):
    return {"test_return": [sum(episode(model, seed)[2]) for seed in range(1000, 1020)]}  # other starts: one value each
