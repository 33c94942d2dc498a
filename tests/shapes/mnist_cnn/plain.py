"""A convolutional network on 8 x 8 digits, with settings by argparse; prints a count and a percentage."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.dropout = nn.Dropout(0.25)
        self.out = nn.Linear(8 * 3 * 3, 10)

    def forward(self, x):
        return self.out(self.dropout(nn.functional.max_pool2d(self.conv(x).relu(), 2).flatten(1)))


def main():
    parser = argparse.ArgumentParser(description="digits")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save-model", default="mnist_cnn.pt")
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    x, y = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(x, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(y))
    train_loader = DataLoader(torch.utils.data.Subset(data, range(797)), args.batch_size, shuffle=True)
    test_loader = DataLoader(torch.utils.data.Subset(data, range(797, 1797)), 500)
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=args.gamma)
    for epoch in range(1, args.epochs + 1):
        model.train()
        for i, (inputs, labels) in enumerate(train_loader):
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            if i % 5 == 0:
                share = 100 * i / len(train_loader)
                print(f"Train Epoch: {epoch} [{i * len(inputs)}/797 ({share:.0f}%)]\tLoss: {loss.item():.6f}")
        model.eval()
        loss, correct = 0.0, 0
        with torch.no_grad():
            for inputs, labels in test_loader:
                loss += cross_entropy(model(inputs), labels, reduction="sum").item()
                correct += (model(inputs).argmax(1) == labels).sum().item()
        share = 100 * correct / 1000
        print(f"\nTest set: Average loss: {loss / 1000:.4f}, Accuracy: {correct}/1000 ({share:.0f}%)\n")
        scheduler.step()
    torch.save(model.state_dict(), args.save_model)


if __name__ == "__main__":
    main()
