"""A part that is out and still computes, or a replacement that is never called, is found by its path."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablate.base.errors import TrialError
from ablate.functions.networks.replacing import replace_parts
from ablate.functions.networks.watching import Replacements, check_parts
from support.part_networks import ClosureGPT, ClosureNet, SimpleViT

X = torch.linspace(-1, 1, 16).reshape(2, 8)


class Held(nn.Module):
    """Holds its layers by path and in another way too, by which it calls them."""

    def __init__(self, hold: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
        self.held = hold(self.layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.held:
            x = layer(x)
        return x


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "a list": list,
    "a closure": lambda layers: [lambda x, own=layer: own(x) for layer in layers],
    "forward itself": lambda layers: [layer.forward for layer in layers],
    "the layers inside": lambda layers: [layers[0], *layers[1]],
}


class Doubled(nn.Module):
    """A part of the user's own that calls the one before, which it holds or which it hides."""

    def __init__(self, old: nn.Module, *, hidden: bool = False) -> None:
        super().__init__()
        self.old = [old] if hidden else old

    def forward(self, x: Tensor) -> Any:
        return 2 * (self.old[0] if isinstance(self.old, list) else self.old)(x)


def hiding(old: nn.Module) -> nn.Module:
    return Doubled(old, hidden=True)


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("action", ["zero", "identity", "remove", f"{__name__}:Doubled"])
def test_a_part_that_is_called_by_another_way_than_its_path(holder: str, action: Any) -> None:
    net = Held(HOLDERS[holder])
    record = replace_parts(net, {"layers.1": action})
    with suppress(TrialError):  # code of a user's may catch what its call raises
        net(X)
    with pytest.raises(TrialError, match=r"replace layers\.1"):
        check_parts([record])


def test_a_shared_part_whose_place_is_called_by_another_way() -> None:
    net = Held(HOLDERS["the layers inside"])
    replace_parts(net, {"layers.1.0": {"share": "layers.0"}})
    with pytest.raises(TrialError, match=r"replace layers\.1\.0: the network still calls this part \(Linear\)"):
        net(X)
    fine = Held(HOLDERS["a list"])
    record = replace_parts(fine, {"layers.1.0": {"share": "layers.0"}})
    assert torch.equal(fine(X), fine.layers[0](fine.layers[0](X)).tanh())
    check_parts([record])


def test_a_module_that_is_never_called_is_refused_and_its_parts_are_watched() -> None:
    net = ClosureNet()
    with pytest.raises(
        TrialError, match=r"replace parts: zero: a ModuleDict is never called.*: parts\.up, parts\.down"
    ):
        replace_parts(net, {"parts": "zero"})
    record = replace_parts(net, {"parts": f"{__name__}:another_dict"})
    with pytest.raises(TrialError, match=r"replace parts\.(up|down): the network still calls this part \(Linear\)"):
        net(X)
    with pytest.raises(TrialError, match=r"replace parts\.(up|down): the network still calls this part"):
        check_parts([record])


def another_dict(old: nn.ModuleDict) -> nn.ModuleDict:
    return nn.ModuleDict({"up": nn.Linear(8, 4), "down": nn.Linear(4, 8)})


def test_a_path_below_a_module_that_a_closure_holds_is_replaced() -> None:
    net = ClosureNet()
    record = replace_parts(net, {"parts.down": "zero"})
    assert torch.equal(net(X), net.head.bias.expand(2, 3))
    check_parts([record])


def test_a_part_that_no_forward_calls() -> None:
    net = nn.Sequential(nn.Linear(8, 8))
    net.spare = nn.Linear(8, 8)  # type: ignore[assignment]
    net.forward = lambda x: net[0](x)  # type: ignore[method-assign]
    record = replace_parts(net, {"1": "zero"} if "1" in dict(net.named_children()) else {"spare": "zero"})
    net(X)
    with pytest.raises(TrialError, match="replace spare: zero: nothing has called what takes its place"):
        check_parts([record])


class TwoPhases(nn.Module):
    """Calls one layer in training only, another one in evaluation only."""

    def __init__(self) -> None:
        super().__init__()
        self.trains, self.evaluates = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        return self.trains(x) if self.training else self.evaluates(x)


def test_a_part_of_training_or_of_evaluation_alone_is_called_by_the_first_report() -> None:
    net = TwoPhases()
    record = replace_parts(net, {"trains": "zero", "evaluates": "identity"})
    net(X)
    with pytest.raises(TrialError, match="replace evaluates: identity: nothing has called"):
        check_parts([record])
    net.eval()(X)
    check_parts([record])


@pytest.mark.parametrize("action", [f"{__name__}:Doubled", {"share": "0"}, "freeze", "remove", "zero"], ids=str)
def test_a_network_in_order_passes_and_keeps_no_hook(action: Any) -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    record = replace_parts(net, {"1": action})
    expected = net(X)
    check_parts([record])
    assert not any(part._forward_pre_hooks or part._forward_hooks for part in net.modules())
    assert torch.equal(net(X), expected)
    check_parts([record])


def test_a_part_of_your_own_that_hides_the_old_one_is_found() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    replace_parts(net, {"1": f"{__name__}:hiding"})
    with pytest.raises(TrialError, match=r"replace 1: the network still calls this part \(Linear\)"):
        net(X)


def test_calls_of_a_copy_count() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    record = replace_parts(net, {"0": "zero", "1": f"{__name__}:Doubled"})
    copy.deepcopy(net)(X)
    check_parts([record])
    held = Held(list)
    record = replace_parts(held, {"layers.0": "zero"})
    with pytest.raises(TrialError, match=r"replace layers\.0: the network still calls"):
        copy.deepcopy(held)(X)


def test_a_module_that_is_there_twice_may_be_called_at_its_other_path() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    net.append(net[0])
    expected = net[:2](X)
    record = replace_parts(net, {"2": "identity"})
    assert torch.equal(net(X), expected)
    check_parts([record])


def test_parts_inside_parts_that_are_out_are_not_expected() -> None:
    """Two parts of a comparison may be left out together, one inside the other."""
    net = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 8))
    record = replace_parts(net, {"0.0": "zero", "0": "remove", "0.*": "zero"})
    net(X)
    check_parts([record])


def test_two_replacements_of_one_part() -> None:
    net = nn.Sequential(nn.Linear(8, 8))
    with pytest.raises(TrialError, match="replace 0: 'zero' and 'identity' are both to take its place"):
        replace_parts(net, {"0": "zero", "*": "identity"})
    assert not list(replace_parts(net, {"0": "zero", "*": "remove"}).awaited)
    assert len(net) == 0


def broken(change: Callable[[SimpleViT], object]) -> Replacements:
    net = SimpleViT()
    record = replace_parts(net, {"pos_embed": "zero", "mlp": "freeze"})
    net(torch.rand(2, 4, 6))
    check_parts([record])
    with torch.no_grad():
        change(net)
    return record


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda net: net.pos_embed.fill_(1), r"replace pos_embed: it is not zero any more"),
        (lambda net: net.requires_grad_(True), r"replace (pos_embed|mlp\.0\.weight): it is trained"),
    ],
)
def test_code_that_undoes_a_replacement_of_weights_is_found(change: Any, says: str) -> None:
    with pytest.raises(TrialError, match=says):
        check_parts([broken(change)])


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (
            {"pos_embed": "identity"},
            r"replace pos_embed: 'identity': this is a parameter, whose action is zero or freeze",
        ),
        ({"scale": "freeze"}, r"replace scale: 'freeze': this is a buffer, whose action is zero"),
        ({"plain": "zero"}, r"'plain' is a plain tensor, .*register_buffer\('plain', \.\.\.\)\. Known: pos_embed"),
        ({"pos_embd": "zero"}, r"no module, parameter or buffer has the path 'pos_embd'.*pos_embed"),
        ({"mlp.1": "freeze"}, r"replace mlp\.1: freeze: there are no parameters in it"),
    ],
    ids=str,
)
def test_what_a_parameter_or_buffer_cannot_be(what: dict[str, Any], says: str) -> None:
    with pytest.raises(TrialError, match=says):
        replace_parts(SimpleViT(), what)


def test_a_tied_parameter_is_not_zeroed_at_one_path_alone() -> None:
    net = ClosureGPT()
    net.lm_head.weight = net.transformer["wte"].weight  # type: ignore[assignment]
    with pytest.raises(TrialError, match=r"replace lm_head\.weight: zero: transformer\.wte\.weight is the same tensor"):
        replace_parts(net, {"lm_head.weight": "zero"})
    replace_parts(net, {"lm_head.weight": "zero", "transformer.wte.weight": "zero"})
    assert not net.lm_head.weight.any()
