"""Weights keyed by path: equal where two networks share a module, and drawn by the module's own rules."""

from __future__ import annotations

import zlib

import pytest
import torch
from torch import nn
from torchvision.models import resnet18

from ablate.functions.networks.keyed import build_keyed, count_parameters


def key(path: str) -> int:
    return zlib.crc32(path.encode())


class Net(nn.Module):
    def __init__(self, *, mlp: bool = True, first: bool = False) -> None:
        super().__init__()
        if first:
            self.extra = nn.Linear(3, 3)
        self.inner = nn.Linear(5, 6)
        if mlp:
            self.mlp = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 6))
        self.head = nn.Linear(6, 3)
        nn.init.trunc_normal_(self.head.weight, std=0.02)
        self.cls = nn.Parameter(torch.randn(4))
        self.tied = self.inner.weight
        self.register_buffer("noise", torch.rand(7))


@pytest.mark.parametrize("options", [{"mlp": False}, {"first": True}, {"mlp": False, "first": True}])
def test_a_removed_or_added_part_changes_no_other_weight(options: dict[str, bool]) -> None:
    whole, other = build_keyed(Net, key), build_keyed(lambda: Net(**options), key)
    shared = whole.state_dict().keys() & other.state_dict().keys()
    assert len(shared) >= 6
    assert all(torch.equal(whole.state_dict()[name], other.state_dict()[name]) for name in shared)


def test_a_weight_has_the_distribution_that_its_module_gives_it() -> None:
    """A constructor that replaces a layer's own rule keeps its rule: ResNet's convolutions, ViT's zero head."""
    model = build_keyed(lambda: resnet18(num_classes=10), key)
    assert model.conv1.weight.std().item() == pytest.approx((2 / (64 * 49)) ** 0.5, rel=0.02)  # He, fan out
    assert torch.equal(model.bn1.weight, torch.ones(64))
    head = build_keyed(Net, key).head.weight
    assert head.abs().max().item() < 0.1
    assert head.std().item() == pytest.approx(0.02, rel=0.5)


def test_equal_keys_give_equal_networks_and_other_keys_others() -> None:
    one, two, three = (build_keyed(Net, k) for k in (key, key, lambda path: key(path) + 1))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one.parameters(), three.parameters(), strict=True))


def test_the_global_generator_is_left_as_it_was() -> None:
    before = torch.get_rng_state()
    build_keyed(Net, key)
    assert torch.equal(before, torch.get_rng_state())


def test_a_temporary_draw_takes_nothing_from_a_weight() -> None:
    """A tensor that is drawn and thrown away may leave its memory to a weight."""

    class Wasteful(nn.Module):
        def __init__(self, drawn: int) -> None:
            super().__init__()
            for _ in range(drawn):
                torch.randn(4, 3)
            self.layer = nn.Linear(3, 4)

    few, many = (build_keyed(lambda n=n: Wasteful(n), key) for n in (0, 5))
    assert torch.equal(few.layer.weight, many.layer.weight)


@pytest.mark.slow
def test_a_vision_transformer_without_a_block_keeps_its_other_weights() -> None:
    def vit(layers: int) -> nn.Module:
        return build_keyed(lambda: torchvision_vit(layers), key)

    def torchvision_vit(layers: int) -> nn.Module:
        from torchvision.models.vision_transformer import VisionTransformer

        return VisionTransformer(32, 8, layers, 2, 24, 48, num_classes=10)

    two, three = vit(2).state_dict(), vit(3).state_dict()
    assert all(torch.equal(value, three[name]) for name, value in two.items())


def test_a_tied_weight_counts_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    model.append(nn.Linear(2, 1))
    model[2].weight.requires_grad_(False)
    assert count_parameters(model) == 16 + 1
