"""What is kept comes back equal to the last bit and of the same type; what cannot be kept is named."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ablate.base.errors import TrialError
from ablate.functions.keeping import (
    check_keepable,
    decode,
    encode,
    get_state,
    seed_globals,
    set_state,
    unchanged_modules,
    unchanged_randomness,
)
from ablate.functions.run import Kept, Run
from support.paths import REPOSITORY

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


class Frozen(dict[str, Any]):
    """A dictionary that refuses changes, as some libraries keep settings in."""

    def update(self, *_: Any, **__: Any) -> None:
        raise TypeError("frozen")

    def clear(self) -> None:
        raise TypeError("frozen")


class Pair(NamedTuple):
    left: list[int]
    right: int


def again(value: Any) -> Any:
    tensors: dict[str, torch.Tensor] = {}
    return decode(json.loads(json.dumps(encode(value, "v", tensors), allow_nan=False)), tensors)


@given(VALUES)
def test_a_state_comes_back_with_its_types(value: Any) -> None:
    found = again(value)
    assert found == value
    assert repr(found) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        OrderedDict(a=1, b=(2, [3.5, float("inf")])),
        Counter({3: 2, 7: 1}),
        {1, 2, 3},
        deque([1.0, 2.0]),
        deque([1.0, 2.0], maxlen=2),
        {("a", 1): {0: None}},
    ],
)
def test_the_types_of_state_dictionaries_are_kept(value: Any) -> None:
    assert again(value) == value
    assert repr(again(value)) == repr(value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int8, torch.bool, torch.complex64])
def test_a_tensor_keeps_its_bits_and_its_type(dtype: torch.dtype) -> None:
    value = (torch.arange(6).reshape(2, 3) % 2).to(dtype).T
    assert torch.equal(again(value), value)
    assert again(value).dtype == dtype


@pytest.mark.parametrize("value", [np.arange(6.0).reshape(2, 3), np.zeros((0, 3)), np.array(3, dtype=np.uint8)])
def test_an_array_keeps_its_bits_and_its_shape(value: np.ndarray) -> None:
    found = again(value)
    np.testing.assert_array_equal(found, value)
    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    assert type(again(np.float32(0.1))) is np.float32


def test_values_that_are_no_number_come_back() -> None:
    assert again({"a": float("nan")})["a"] != again({"a": float("nan")})["a"]
    assert again([float("-inf")]) == [float("-inf")]


@pytest.mark.parametrize(
    "value", [object(), lambda: 1, {"a": [1, object()]}, np.array([object()]), np.ma.array([1, 2]), 1j]
)
def test_a_type_that_no_checkpoint_can_hold_is_named_with_its_place(value: Any) -> None:
    with pytest.raises(TrialError, match=r"run\.keep: mine\S* is an? \S+.*which no checkpoint can hold"):
        encode(value, "mine", {})


def test_an_object_without_a_state_is_refused_with_its_type() -> None:
    with pytest.raises(TrialError, match=r"run\.keep\(best=\.\.\.\): a object cannot be kept"):
        check_keepable("best", object())


def run(found: Kept | None = None) -> Run:
    return Run(study_seed=0, dataset="d", seed=1, length=3, found=found)


def restarted(before: Run) -> Run:
    """Return a run that finds the checkpoint of another one."""
    state = before.state()
    states = json.loads(json.dumps(dict(state.states), allow_nan=False))
    return run(Kept(epoch=2, states=states, tensors=state.tensors, streams={}))


def test_values_are_kept_and_given_back() -> None:
    first = run()
    history: list[float] = []
    state = first.keep(best=9.0, name="a", history=history, table={}, array=np.zeros(3), none=None)
    assert (state.best, state["name"], state.none) == (9.0, "a", None)
    state.best, state["name"], state.none = 0.25, "b", {"x": (1, 2)}
    history.append(1.5)
    state.table[3] = [True, b"x", np.float32(0.1)]
    state.array += 2
    again, own, array = restarted(first), [7.0], np.ones(3)
    found = again.keep(best=9.0, name="a", history=own, table={}, array=array, none=None)
    assert (found.best, found.name, found.none) == (0.25, "b", {"x": (1, 2)})
    assert found.table == {3: [True, b"x", np.float32(0.1)]}
    assert own == [1.5], "a list that the code goes on to use itself is changed in place"
    assert found.history is own
    assert array.tolist() == [2.0] * 3
    assert (again.epoch, again.restored) == (2, 2)
    assert again.state().states == first.state().states


def test_what_is_inside_of_a_kept_value_is_a_new_object() -> None:
    def made() -> dict[str, Any]:
        counts: defaultdict[str, list[int]] = defaultdict(list)
        return {"table": {"rows": [0]}, "counts": counts, "pair": Pair([], 0), "fixed": np.frombuffer(bytes(8))}

    first = run()
    state = first.keep(**made())
    state.table["rows"].append(1)
    state.counts["a"].append(7)
    state.pair.left.append(5)
    state.fixed = np.ones(1)
    own = made()
    table, rows, counts = own["table"], own["table"]["rows"], own["counts"]
    found = restarted(first).keep(**own)
    assert (found.table is table, found.table, rows) == (True, {"rows": [0, 1]}, [0])
    assert (found.counts is counts, found.counts, counts.default_factory) == (True, {"a": [7]}, list)
    assert (type(found.pair), found.pair.left, found.fixed.tolist()) == (Pair, [5], [1.0])


def test_what_is_restored_inside_of_a_value_is_written_over_nothing_else() -> None:
    def begun(found: Run) -> tuple[nn.Linear, Any]:
        model, row = nn.Linear(2, 1), np.zeros(2)
        kept = found.keep(
            model=model,
            best=model.state_dict(),  # its tensors are the model's
            views=[each.detach().numpy() for each in model.parameters()],
            row=row,
            rows=[row],
            fixed=[np.frombuffer(bytes(8)), torch.zeros(1).expand(3)],
            tables=defaultdict(lambda: 1 / 0),
        )
        return model, kept

    first = run()
    model, state = begun(first)
    nn.init.constant_(model.weight, 1.0)
    state.best = {name: each.clone() for name, each in model.state_dict().items()}
    state.views = [np.ones((1, 2)), np.ones(1)]
    nn.init.constant_(model.weight, 7.0)
    state.row += 2
    state.rows = [np.ones(2)]
    state.tables["a"] = 1
    again, found = begun(restarted(first))
    assert again.weight.tolist() == [[7.0, 7.0]]
    assert found.best["weight"].tolist() == [[1.0, 1.0]]
    assert (found.row.tolist(), found.rows[0].tolist(), found.tables) == ([2.0, 2.0], [1.0, 1.0], {"a": 1})


def test_an_object_at_two_places_gets_no_content_of_the_other() -> None:
    first, row = run(), [0]
    state = first.keep(rows=[row, row])
    state.rows[:] = [[1], [2]]
    row = [0]
    assert restarted(first).keep(rows=[row, row]).rows == [[1], [2]]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_a_module_that_test_is_tried_on_is_what_it_was() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.0), torch.jit.script(nn.Dropout(0.0)))
    vars(model)["settings"] = Frozen(width=2)
    model.register_buffer("mask", torch.zeros(1, 2).expand(3, 2), persistent=False)
    model.register_buffer("seen", torch.zeros(1), persistent=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = {name: (id(each), each.clone(), each.requires_grad) for name, each in model.named_parameters()}
    parts = list(model)
    with unchanged_modules(model):
        model.seen += 1
        model.half().eval().requires_grad_(False)
        model[0] = nn.Linear(2, 5)
        model[1].weight.data.zero_()
        del model[2]
        model[-1].eval()
    assert list(model) == parts
    assert all(part.training for part in model.modules())
    assert model.seen.item() == 0
    for name, each in model.named_parameters():
        identity, values, trained = before[name]
        assert (id(each), each.dtype, each.requires_grad) == (identity, torch.float32, trained)
        assert torch.equal(each, values)
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    assert not torch.equal(model[1].bias, before["1.bias"][1]), "the optimizer still trains it"


def test_a_lazy_module_is_no_fault() -> None:
    with unchanged_modules(nn.Sequential(nn.LazyLinear(2))):
        pass


def test_a_value_that_is_not_kept_cannot_be_set() -> None:
    state = run().keep(best=0.0, model=nn.Linear(1, 1))
    with pytest.raises(AttributeError, match=r"'bets' is not kept: name it in run\.keep\. Kept: best"):
        state.bets = 1.0
    with pytest.raises(AttributeError, match="'model' is not kept"):
        state.model  # noqa: B018
    assert repr(state) == "State(best=0.0)"


def test_a_tensor_is_kept_in_place_and_a_parameter_too() -> None:
    first, value = run(), torch.ones(2)
    weight = nn.Parameter(torch.ones(2))
    first.keep(value=value, weight=weight)
    with torch.no_grad():
        weight.mul_(5), value.mul_(3)
    other, fresh = torch.zeros(2), nn.Parameter(torch.zeros(2))
    restarted(first).keep(value=other, weight=fresh)
    assert (other.tolist(), fresh.tolist()) == ([3.0, 3.0], [5.0, 5.0])


@pytest.mark.parametrize("value", [[object()], {"a": lambda: 1}, 1j])
def test_a_value_that_cannot_be_kept_is_refused_at_once(value: Any) -> None:
    with pytest.raises(TrialError, match=r"run\.keep.*mine"):
        run().keep(mine=value)


def test_a_value_that_became_something_else_is_refused_with_its_place() -> None:
    kept = run()
    state = kept.keep(best={})
    state.best["net"] = object()
    with pytest.raises(TrialError, match=r"run\.keep: best\S*net is a object, which no checkpoint can hold"):
        kept.state()


@pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
def test_trees_of_jax_come_back_with_their_structure_types_and_bits() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "support.jax_trees"], cwd=REPOSITORY / "tests", capture_output=True, text=True
    )
    assert done.stdout == "equal\n", done.stderr


SCHEDULES = {
    "steps": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 4], 0.1),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 9),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20, cycle_momentum=False),
    "plateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o),
    "chain": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o, [torch.optim.lr_scheduler.LinearLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
}
OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
    "lbfgs": lambda p: torch.optim.LBFGS(p, max_iter=2),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_that_is_kept_and_continued_equals_training_that_is_not(optimizer: str, schedule: str) -> None:
    def made() -> dict[str, Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        steps = OPTIMIZERS[optimizer](model.parameters())
        return {"model": model, "optimizer": steps, "schedule": SCHEDULES[schedule](steps)}

    def trained(kept: dict[str, Any], first: int, last: int) -> None:
        for step in range(first, last):
            x = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))

            def closure(x: torch.Tensor = x) -> torch.Tensor:
                kept["optimizer"].zero_grad()
                loss = kept["model"](x).square().mean()
                loss.backward()
                return loss

            loss = kept["optimizer"].step(closure)
            kept["schedule"].step(*([loss.item()] if schedule == "plateau" else []))

    whole, half, rest = made(), made(), made()
    trained(whole, 0, 8)
    trained(half, 0, 4)
    for name, thing in half.items():
        state, tensors = get_state(name, thing)
        set_state(name, rest[name], json.loads(json.dumps(state)), tensors)
    trained(rest, 4, 8)
    for one, other in zip(whole["model"].state_dict().values(), rest["model"].state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert whole["optimizer"].param_groups[0]["lr"] == rest["optimizer"].param_groups[0]["lr"]


class Booster:
    """Saves itself into a folder, as XGBoost and LightGBM models do."""

    def __init__(self, trees: int) -> None:
        self.trees = trees

    def save(self, folder: Path) -> None:
        (folder / "deep").mkdir()
        (folder / "deep" / "model.txt").write_text(str(self.trees))

    def load(self, folder: Path) -> None:
        self.trees = int((folder / "deep" / "model.txt").read_text())


def test_an_object_that_saves_itself_into_a_folder_is_kept() -> None:
    state, tensors = get_state("model", Booster(7))
    other = Booster(0)
    set_state("model", other, json.loads(json.dumps(state)), tensors)
    assert other.trees == 7


@pytest.mark.parametrize("path", ["../x", "/tmp/ablate-evil", "deep/../../x", "a/../../../x", "", "."])
def test_a_checkpoint_writes_no_file_outside_of_its_folder(path: str, tmp_path: Path) -> None:
    state, tensors = get_state("model", Booster(7))
    name = path.replace("/tmp/ablate-evil", str(tmp_path / "evil"))
    state = json.loads(json.dumps(state).replace("deep/model.txt", name))
    with pytest.raises(TrialError, match=r"run\.keep\(model=\.\.\.\): the checkpoint does not fit this object: "):
        set_state("model", Booster(0), state, tensors)
    assert not list(tmp_path.iterdir())


def test_a_state_of_another_network_is_refused() -> None:
    state, tensors = get_state("model", nn.Linear(2, 3))
    with pytest.raises(TrialError, match=r"run\.keep\(model=\.\.\.\): the checkpoint does not fit this object"):
        set_state("model", nn.Linear(2, 4), state, tensors)


def test_global_generators_are_put_back() -> None:
    def draws() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), torch.rand(()).item()

    seed_globals(5)
    with unchanged_randomness():
        first = draws()
        seed_globals(6)
        assert draws() != first
    assert draws() == first
