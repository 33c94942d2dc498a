"""A part that is left out: outputs equal, bit for bit, to those of a network from which it was taken by hand."""

from __future__ import annotations

import copy
import io
import random
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from ablate.base.errors import TrialError
from ablate.functions.networks.replacing import replace_parts
from ablate.functions.networks.watching import check_parts
from support.part_networks import Bert, ClosureGPT, SimpleViT

IDS = torch.arange(10).reshape(2, 5)
X = torch.linspace(-1, 1, 2 * 4 * 6).reshape(2, 4, 6)


def made(kind: Callable[[], nn.Module], **what: Any) -> Any:
    torch.manual_seed(0)
    network = kind()
    record = replace_parts(network, {path.replace("__", "."): action for path, action in what.items()})
    network.check = lambda: check_parts([record])
    return network


def test_a_position_embedding_of_ids_is_zero() -> None:
    whole, part = made(ClosureGPT), made(ClosureGPT, transformer__wpe="zero")
    x = whole.transformer["wte"](IDS)
    for block in whole.transformer["h"]:
        x = block(x)
    assert torch.equal(part(IDS), whole.lm_head(x))
    part.check()


def test_the_mlp_of_a_closure_is_left_out_by_a_module_inside_it() -> None:
    whole, part = made(ClosureGPT), made(ClosureGPT, **{"transformer.h.*.mlp.c_proj": "zero"})
    x = whole.transformer["wte"](IDS) + whole.transformer["wpe"](torch.arange(5)[None])
    for block in whole.transformer["h"]:
        x = x + block.attn(block.ln_1(x))
    assert torch.equal(part(IDS), whole.lm_head(x))
    part.check()


@pytest.mark.parametrize("training", [True, False])
def test_parts_that_return_tuples_other_widths_and_dataclasses(training: bool) -> None:
    whole = made(Bert).train(training)
    without = made(Bert, **{"layers.*.attention": "zero"}).train(training)
    x = X
    for layer in whole.layers:
        x = x + layer.output(layer.intermediate(x))
    assert torch.equal(without(X), whole.head(x.mean(1)))
    without.check()
    narrow = made(Bert, **{"layers.*.intermediate": "zero", "layers.*.attention": "zero"}).train(training)
    x = X
    for layer in whole.layers:
        x = x + layer.output.bias
    torch.testing.assert_close(narrow(X), whole.head(x.mean(1)), rtol=0, atol=1e-7)
    last = made(Bert, **{"layers.1": "zero"}).train(training)
    assert torch.equal(last(X), whole.head.bias.expand(2, 2))
    first = made(Bert, **{"layers.*": "identity"}).train(training)
    assert torch.equal(first(X), whole.head(X.mean(1)))


def test_a_parameter_is_zero_and_not_trained() -> None:
    whole, part = made(SimpleViT), made(SimpleViT, pos_embed="zero", scale="zero")
    x = (whole.embed(X) * 0).add(0)
    assert torch.equal(part(X), whole.head((x + whole.mlp(x)).mean(1)))
    part(X).sum().backward()
    torch.optim.AdamW([p for p in part.parameters() if p.requires_grad], lr=1.0).step()
    assert not part.pos_embed.any()
    assert not part.pos_embed.requires_grad
    part.check()
    frozen = made(SimpleViT, pos_embed="freeze")
    assert torch.equal(frozen(X), whole(X))
    assert not frozen.pos_embed.requires_grad


class Noisy(nn.Module):
    """Draws, counts its calls, changes a buffer and its input; its output is a dictionary of other shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.calls = nn.BatchNorm1d(6), 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor, *, width: int = 3) -> dict[str, Any]:
        self.calls += 1
        self.seen += 1
        random.random(), np.random.rand()
        x.mul_(2)
        y = self.norm(x) + torch.rand(x.shape)
        return {"y": y[:, :width], "even": [y > 0, (y.double(), None)], "name": "noisy"}


class Returning(nn.Module):
    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> Any:
        return self.make(x)


def test_structures_keep_their_types_and_a_packed_sequence_is_refused() -> None:
    own_dict, own_list = type("OwnDict", (dict,), {}), type("OwnList", (list,), {})
    found = made(partial(nn.Sequential, Returning(lambda x: own_dict(y=own_list([x])))), **{"0": "zero"})(X)
    assert (type(found), type(found["y"])) == (own_dict, own_list)
    assert torch.equal(found["y"][0], torch.zeros_like(X))
    with pytest.raises(TrialError, match="replace 0: zero: it returns a PackedSequence, which is no tensor"):
        made(partial(nn.Sequential, Returning(lambda x: pack_sequence(list(x)))), **{"0": "zero"})(X)


def test_learning_the_output_changes_nothing() -> None:
    net = nn.Sequential(Noisy())
    old = net[0]
    replace_parts(net, {"0": "zero"})
    x = torch.ones(4, 6)
    before = copy.deepcopy(old.state_dict())
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    found = net[0](x, width=2)
    assert found["y"].shape == (4, 2)
    assert [found["even"][0].dtype, found["even"][1][0].dtype] == [torch.bool, torch.float64]
    assert found["name"] == "noisy"
    assert not found["y"].any()
    assert net[0](torch.ones(3, 6))["even"][0].shape == (3, 6)
    assert states[0] == random.getstate()
    assert states[1] == np.random.get_state()[1].tolist()
    assert torch.equal(states[2], torch.get_rng_state())
    assert old.calls == 0
    assert torch.equal(x, torch.ones(4, 6))
    assert all(torch.equal(before[name], value) for name, value in old.state_dict().items())


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv2d(3, 5, 3, stride=2),
        lambda: nn.ConvTranspose2d(3, 2, 2),
        lambda: nn.MaxPool2d(2),
        lambda: nn.Flatten(),
        lambda: nn.Linear(8, 3),
        lambda: nn.PReLU(),
        lambda: nn.BatchNorm2d(3),
        lambda: nn.GLU(),
        lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
        lambda: nn.LSTM(8, 4),
        lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 5, 3)),
        lambda: nn.utils.spectral_norm(nn.Linear(8, 8)),
    ],
    ids=lambda make: type(make()).__name__,
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_zeros_have_the_form_of_the_output(make: Callable[[], nn.Module], device: str) -> None:
    part = make()
    x = torch.rand(2, 3, 8) if isinstance(part, nn.LSTM) else torch.rand(2, 3, 8, 8)
    expected = part(x)  # after a call, the weights of spectral_norm are such as torch cannot copy
    net = nn.Sequential(part)
    replace_parts(net, {"0": "zero"})
    found = net.to(device)(x.to(device))
    pairs = zip([found], [expected], strict=True)
    if isinstance(part, nn.LSTM):
        pairs = zip([found[0], *found[1]], [expected[0], *expected[1]], strict=True)
    for one, other in pairs:
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert device == "meta" or not one.any()


@pytest.mark.parametrize("change", [nn.Module.half, nn.Module.double], ids=["half", "double"])
def test_zeros_follow_the_type_of_the_network(change: Any) -> None:
    net = nn.ModuleDict({"ids": nn.Embedding(4, 3), "pair": nn.LSTM(3, 2)})
    replace_parts(net, {"*": "zero"})
    change(net)
    x = net["ids"](torch.tensor([[1, 2]]))
    assert x.dtype == net["pair"](x)[0].dtype == net["ids"]._like[0].dtype != torch.float32


@pytest.mark.parametrize("part", [nn.Linear(6, 6), nn.LayerNorm(6), nn.Sequential(nn.Linear(6, 6))], ids=str)
def test_zeros_have_the_type_of_the_output_under_autocast(part: nn.Module) -> None:
    net = nn.Sequential(part)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = part(X).dtype
        replace_parts(net, {"0": "zero"})
        assert net(X).dtype == expected


def test_attention_of_torch_returns_what_it_is_asked_for() -> None:
    net = nn.ModuleList([nn.MultiheadAttention(6, 2, batch_first=True)])
    replace_parts(net, {"0": "zero"})
    x = X.requires_grad_(False)
    assert net[0](x, x, x, need_weights=False)[1] is None
    assert net[0](x, x[:, :2], x[:, :2])[1].shape == (2, 4, 2)
    assert net[0](x, x, x, average_attn_weights=False)[1].shape == (2, 2, 4, 4)


def test_under_vmap_every_network_gets_its_own_zeros() -> None:
    torch.manual_seed(0)
    part = nn.Sequential(nn.Conv1d(4, 5, 1), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Flatten())
    nets = [nn.Sequential(nn.Linear(6, 6), copy.deepcopy(part), nn.Linear(30, 2)) for _ in range(3)]
    records = [replace_parts(net, {"1": "zero"}) for net in nets]
    weights, buffers = torch.func.stack_module_state(nets)
    base = copy.deepcopy(nets[0])
    rows = torch.func.vmap(lambda w, b, x: torch.func.functional_call(base, (w, b), (x,)))(
        weights, buffers, torch.stack([X, 2 * X, 3 * X])
    )
    assert torch.equal(rows, torch.stack([net[2].bias.expand(2, 2) for net in nets]))
    check_parts(records)  # only a copy of the first one was called


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (nn.ModuleDict({"a": nn.ReLU()}), r"a ModuleDict is never called, so nothing would change; .*: part\.a"),
        (nn.ModuleList([]), r"a ModuleList is never called, so nothing would change; it has no parts"),
        (nn.ParameterList([torch.zeros(1)]), r"a ParameterList is never called"),
    ],
    ids=str,
)
def test_what_is_never_called_is_not_left_out(part: nn.Module, says: str) -> None:
    with pytest.raises(TrialError, match=says):
        replace_parts(nn.ModuleDict({"part": part}), {"part": "identity"})


@pytest.mark.parametrize("part", [nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 5, padding="same"), nn.LSTM(8, 8)])
def test_identity_of_the_same_shape_is_allowed(part: nn.Module) -> None:
    net = nn.ModuleDict({"part": part})
    replace_parts(net, {"part": "identity"})
    x = torch.rand(2, 3, 8) if isinstance(part, nn.LSTM) else torch.rand(2, 3, 8, 8)
    found = net["part"](x)
    assert torch.equal(found[0] if isinstance(part, nn.LSTM) else found, x)


@pytest.mark.parametrize(
    ("part", "x"),
    [
        (nn.Sequential(nn.Linear(6, 3), nn.ReLU()), X),
        (nn.Linear(6, 4), X),
        (nn.Embedding(20, 4), IDS),
        (nn.Conv2d(3, 5, 3, padding=1), torch.ones(2, 3, 4, 4)),
        (nn.Conv1d(3, 3, 3, padding=1, stride=2), torch.ones(2, 3, 8)),
        (nn.GRU(6, 4, bidirectional=True), X),
    ],
    ids=lambda given: type(given).__name__,
)
def test_identity_of_another_shape_is_refused_in_the_first_call_with_both(part: nn.Module, x: Tensor) -> None:
    output = part(x)
    after = list((output[0] if isinstance(output, tuple) else output).shape)
    net = nn.Sequential(part)
    replace_parts(net, {"0": "identity"})
    says = f"replace 0: identity: its input is {list(x.shape)}, the output is {after}: use zero, or a part of your own"
    with pytest.raises(TrialError, match=re.escape(says)):
        net(x)


class ReadsWeights(nn.Module):
    """Reads the weights of a layer, and other attributes of it, instead of calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        assert self.layer.in_features == 6
        assert getattr(self.layer, "scale", 1) == 1
        return F.linear(x, self.layer.weight)


def test_a_part_that_is_read_instead_of_called_is_named() -> None:
    net = made(ReadsWeights, layer="zero")
    with pytest.raises(TrialError, match=r"replace layer: zero: the network reads layer\.weight instead of calling"):
        net(X)
    assert torch.equal(made(ReadsWeights, layer__weight="zero")(X), torch.zeros_like(X))


def test_what_an_output_cannot_be_made_of_is_named() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> object:
            return object()

    net = nn.Sequential(Odd())
    replace_parts(net, {"0": "zero"})
    with pytest.raises(TrialError, match=r"replace 0: zero: it returns a object, which is no tensor"):
        net(X)


def test_a_network_with_parts_left_out_is_copied_saved_and_compiled_as_before() -> None:
    net = made(Bert, **{"layers.*.attention": "zero"})
    del net.check
    expected = net(X)
    assert torch.equal(copy.deepcopy(net)(X), expected)
    held = io.BytesIO()
    torch.save(net, held)
    held.seek(0)
    assert torch.equal(torch.load(held, weights_only=False)(X), expected)
    assert sorted(net.state_dict()) == sorted(name for name in Bert().state_dict() if ".attention." not in name)
    wrapped = nn.DataParallel(net)
    assert torch.equal(wrapped(X), expected)
