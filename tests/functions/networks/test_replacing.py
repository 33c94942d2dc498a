"""Parts of a network by module path: what each action does to the function that the network computes."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models import resnet18
from torchvision.models.vision_transformer import VisionTransformer

from ablate.base.errors import TrialError
from ablate.functions.networks.keyed import build_keyed, count_parameters
from ablate.functions.networks.replacing import replace_parts

IMAGES = torch.linspace(0, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2))


def replaced(module: nn.Module, **what: Any) -> nn.Module:
    replace_parts(module, {path.replace("__", "."): action for path, action in what.items()})
    return module.eval()


class Other(nn.Module):
    """Takes the place of a linear layer: its double."""

    def __init__(self, old: nn.Linear) -> None:
        super().__init__()
        self.old = old

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * self.old(x)


X = torch.tensor([[1.0, -2.0, 3.0, -4.0]])


def test_identity_leaves_the_input_and_zero_nothing() -> None:
    plain = layers()
    torch.testing.assert_close(replaced(layers(), **{"1": "identity"})(X), plain[2](plain[0](X)))
    torch.testing.assert_close(replaced(layers(), **{"1": "zero"})(X), plain[2](torch.zeros(1, 4)))


def test_remove_takes_a_step_out_of_a_sequence() -> None:
    plain, short = layers(), replaced(layers(), **{"1": "remove"})
    assert len(list(short.children())) == 2
    torch.testing.assert_close(short(X), plain[2](plain[0](X)))
    several = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    kept = [several[0], several[3]]
    replace_parts(several, {"[12]": "remove"})
    assert list(several) == kept
    listed = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    kept = [listed[2], listed[3]]
    replace_parts(listed, {"0": "remove", "1": "remove", "3": "freeze"})
    assert list(listed) == kept
    assert [p.requires_grad for part in kept for p in part.parameters()] == [True, True, False, False]


def test_a_frozen_part_is_not_trained() -> None:
    net = replaced(layers(), **{"1": "freeze"})
    assert count_parameters(net) == (4 * 4 + 4) + (4 * 2 + 2)
    torch.testing.assert_close(net(X), layers()(X))


def test_a_shared_part_is_the_same_module_and_counts_once() -> None:
    net = layers()
    replace_parts(net, {"1.0": {"share": "0"}})
    assert net[1][0] is net[0]
    assert count_parameters(net) == (4 * 4 + 4) + (4 * 2 + 2)


def test_a_part_of_your_own_is_made_from_the_one_before() -> None:
    plain = layers()
    doubled = replaced(layers(), **{"0": f"{__name__}:Other"})
    torch.testing.assert_close(doubled(X), plain[2](plain[1](2 * plain[0](X))))


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ({"7": "identity"}, r"no module, parameter or buffer has the path '7'\. Known: 0, 1, 1\.0, 1\.1, 2"),
        ({"*.*.*.*": "identity"}, r"no module, parameter or buffer has the path '\*\.\*\.\*\.\*'"),
        ({"0": "identiy"}, r"replace 0: 'identiy' is none of identity, zero, freeze"),
        ({"0": {"share": "9"}}, r"replace 0: share: no module has the path '9'"),
        ({"2": {"share": "0"}}, r"replace 2: share: 0 has weights of other shapes"),
        ({"0": "os.path:basename"}, r".*"),
    ],
)
def test_an_action_that_is_not_possible_is_named(what: dict[str, Any], says: str) -> None:
    with pytest.raises((TrialError, TypeError), match=says):
        replace_parts(layers(), what)


def test_a_part_that_is_called_by_name_cannot_be_removed() -> None:
    with pytest.raises(TrialError, match=r"replace conv1: remove: ResNet calls its parts by name"):
        replace_parts(resnet18(num_classes=2), {"conv1": "remove"})


@pytest.mark.parametrize(
    "what",
    [
        {"layer*.*.bn2": "identity"},
        {"layer3.1": "identity", "layer4.1": "remove"},
        {"layer2.1.conv2": {"share": "layer2.1.conv1"}},
        {"layer1": "freeze", "maxpool": "torch.nn:Identity"},
        {"layer4.*.relu": "zero"},
    ],
    ids=str,
)
def test_a_resnet_is_ablated_without_editing_it(what: dict[str, Any]) -> None:
    whole = build_keyed(lambda: resnet18(num_classes=5), lambda path: zlib.crc32(path.encode())).eval()
    part = build_keyed(lambda: resnet18(num_classes=5), lambda path: zlib.crc32(path.encode()))
    replace_parts(part, what)
    assert part.eval()(IMAGES).shape == (2, 5)
    assert not torch.equal(part(IMAGES), whole(IMAGES)) or "layer1" in what
    assert count_parameters(part) <= count_parameters(whole)


def vit(layers: int = 3) -> VisionTransformer:
    return VisionTransformer(32, 8, layers, 2, 24, 48, num_classes=5)


@pytest.mark.parametrize(
    "what",
    [
        {"encoder.layers.*.self_attention": "zero"},
        {"encoder.layers.*.mlp": "zero"},
        {"encoder.layers.encoder_layer_1": "remove"},
        {"encoder.layers.*.ln_*": "identity"},
        {"encoder.layers.encoder_layer_2": {"share": "encoder.layers.encoder_layer_0"}},
        {"encoder.layers.*.self_attention": "identity"},
    ],
    ids=str,
)
def test_a_vision_transformer_is_ablated_without_editing_it(what: dict[str, Any]) -> None:
    torch.manual_seed(0)
    part = vit()
    before = count_parameters(part)
    replace_parts(part, what)
    assert part.eval()(IMAGES).shape == (2, 5)
    assert count_parameters(part) < before


def test_a_transformer_without_attention_mixes_no_tokens() -> None:
    """Of a network whose attention returns zeros, the class token does not see the image."""
    torch.manual_seed(0)
    net = vit()
    nn.init.normal_(net.heads.head.weight)
    assert not torch.allclose(net.eval()(IMAGES)[0], net(IMAGES)[1])
    replace_parts(net, {"encoder.layers.*.self_attention": "zero"})
    torch.testing.assert_close(*net.double()(IMAGES.double())[:2], rtol=0, atol=1e-12)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize(
    "part", ["self_attn", "norm1", "linear1", "dropout1", "linear2"], ids=lambda part: f"without {part}"
)
def test_a_transformer_encoder_of_torch_is_ablated_in_training_and_evaluation(
    part: str, padded: bool, training: bool
) -> None:
    """The oracle is a layer without dropout, computed by hand from its parts."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
    net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True)
    x, padding = torch.randn(3, 5, 8), torch.tensor([[False] * 5, [False] * 4 + [True], [False] * 5])
    mask = padding if padded else None
    replace_parts(net, {f"layers.1.{part}": "zero"})
    first, last = net.layers
    with torch.no_grad():
        found = net.train(training)(x, src_key_padding_mask=mask)
        y = first.train()(x, src_key_padding_mask=mask)
        mixed = 0 if part in ("self_attn", "dropout1") else last.self_attn(y, y, y, key_padding_mask=mask)[0]
        y = 0 * y if part == "norm1" else last.norm1(y + mixed)
        inner = 0 * y if part == "linear1" else torch.relu(last.linear1(y))
        expected = last.norm2(y + (0 if part == "linear2" else last.linear2(inner)))
    torch.testing.assert_close(found[~padding], expected[~padding])
