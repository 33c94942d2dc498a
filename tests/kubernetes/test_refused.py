"""A bad request is one clear line, and one that is not refused renders what every reader passes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.main import get_command

from ablate.base.errors import RequestError
from ablate.base.redaction import has_password
from ablate.cli import app as cli
from ablate.kubernetes.request import TAKEN, ClusterRequest, proposal
from ablate.kubernetes.template import manifest, rendered
from support.cluster_schemas import refusals
from support.manifests import HARMLESS, PASSWORDS, SEARCH, request


@pytest.mark.parametrize("word", PASSWORDS)
def test_a_password_among_further_options_is_refused_and_not_repeated(word: str) -> None:
    with pytest.raises(RequestError, match="holds a password") as refused:
        request(arguments=("--storage", word))
    assert "tr0ub4dor" not in str(refused.value)
    with pytest.raises(RequestError, match="FILE: holds a password") as refused:
        request(study_text=f"{SEARCH}\n# {word}\n")
    assert "tr0ub4dor" not in str(refused.value)


@pytest.mark.parametrize("word", HARMLESS)
def test_an_address_without_a_password_is_none(word: str) -> None:
    assert not has_password(word)
    assert request(study_text=f"{SEARCH}\n# {word}\n")


@pytest.mark.parametrize("option", TAKEN)
def test_an_option_that_the_manifest_gives_itself_is_refused(option: str) -> None:
    for words in ((option,), (option, "4"), (f"{option}=4",)):
        with pytest.raises(RequestError, match=f"{option}'.*is not for this place"):
            request(arguments=words)


FREE = {
    "--autoscale", "--code-changed", "--cpus-per-trial", "--seeds-at-once", "--pack", "--tracker", "--extend",
    "--relocate", "--keep-going", "--set", "--json",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "free"),
    [("search", FREE | {"--deterministic", "--from", "--time", "--trials"}), ("compare", FREE | {"--variant"})],
    ids=["search", "compare"],
)
def test_every_option_is_known_to_be_free_or_taken(name: str, free: set[str]) -> None:
    command = get_command(cli.app).commands[name]  # type: ignore[attr-defined]
    options = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    assert (options | {"--scale", "--dataset"}) - free == set(TAKEN), "those two are of compare only"
    assert free <= options


@pytest.mark.parametrize("word", ["a b", "a;b", "$HOME", "s3://b?x=1&y=2", "it's", "a\nb", "", "`id`", "*"])
def test_a_word_that_two_shells_would_change_is_refused(word: str) -> None:
    with pytest.raises(RequestError, match="two shells"):
        request(arguments=("--tracker", word))


FAULTY = {
    "name-not-a-label": ({"name": "My_Study"}, r"--name = 'My_Study'.*Try --name my-study\."),
    "name-of-48": ({"name": "a" * 48}, rf"at most 47.*Try --name {'a' * 47}\."),
    "name-with-a-digit-first": ({"name": "2nd"}, r"Try --name study-2nd\."),
    "name-without-a-letter": ({"name": "___"}, r"Try --name study\."),
    "image-without-version": ({"image": "registry/ablate"}, "must name a version or a digest"),
    "image-latest": ({"image": "registry/ablate:latest"}, "must name a version or a digest"),
    "image-with-a-port-only": ({"image": "registry:5000/ablate"}, "must name a version or a digest"),
    "image-in-capitals": ({"image": "registry/Ablate:1"}, "must name a version"),
    "image-with-a-space": ({"image": "ablate :1"}, "must name a version"),
    "namespace": ({"namespace": "Ablate"}, "--namespace = 'Ablate': must be lower-case"),
    "namespace-with-a-dot": ({"namespace": "a.b"}, "--namespace = 'a.b'"),
    "gpus-not-a-multiple": ({"gpus": 6, "gpus_per_node": 4}, "multiple of --gpus-per-node 4"),
    "share-of-one-and-a-half": ({"gpus": 4, "gpus_per_trial": 1.5}, "a share from 0.01 to 1, or a whole number"),
    "share-nan": ({"gpus": 4, "gpus_per_trial": float("nan")}, "a share from 0.01 to 1"),
    "share-infinite": ({"gpus": 4, "gpus_per_trial": float("inf")}, "a share from 0.01 to 1"),
    "trial-over-two-nodes": ({"gpus": 4, "gpus_per_trial": 2.0}, "a whole number up to the 1 of one node"),
    "nodes-beside-gpus": ({"gpus": 4, "nodes": 2}, "--nodes = 2"),
    "cpus-fewer-than-a-trial-s": (
        {"cpus": 2, "arguments": ("--cpus-per-trial", "4")},
        "-trial = 4.0: a node has 2",
    ),
    "cpus-of-gpu-workers": (
        {"gpus": 4, "arguments": ("--cpus-per-trial=16",)},
        "-trial = 16.0: a node has 8",
    ),
    "memory-without-a-unit": ({"memory": "32"}, "--memory = '32': must be at least 4Gi, in whole Gi"),
    "memory-too-small": ({"memory": "3Gi"}, "at least 4Gi"),
    "memory-of-another-unit": ({"memory": "8000Mi"}, "in whole Gi"),
}


@pytest.mark.parametrize(("changes", "line"), FAULTY.values(), ids=FAULTY.keys())
def test_a_bad_request_is_one_clear_line(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(RequestError, match=line) as refused:
        request(**changes)
    assert len(str(refused.value).splitlines()) == 1


def test_a_trial_may_hold_a_whole_node_and_the_last_option_counts() -> None:
    for words in (("--cpus-per-trial=2",), ("--cpus-per-trial", "4", "--cpus-per-trial", "2"), ("--cpus-per-trial",)):
        assert request(cpus=2, arguments=words).arguments == words


def test_all_faults_of_a_request_are_said_at_once() -> None:
    with pytest.raises(RequestError, match="--name") as refused:
        request(name="N", image="x y", memory="-", gpus=3, gpus_per_node=2, arguments=("--gpus",))
    assert len(str(refused.value).splitlines()) == 5


NAMES = st.one_of(st.from_regex(r"[a-z][a-z0-9-]{0,50}", fullmatch=True), st.text(max_size=12))
GOOD_WORDS = st.sampled_from(["--tracker=none", "--deterministic", "--extend", "--cpus-per-trial=2"])
FIELDS = {
    "name": NAMES,
    "study_text": st.one_of(
        st.sampled_from([SEARCH, "{{ r.name }}{% if %}", "a: &b\n---\n*b"]),
        st.text(st.characters(codec="utf-8", exclude_categories=["Cc"])),
    ),
    "image": st.sampled_from(["r/ablate:1", "ablate", "r:5/a:latest", "A:1", "r/a@sha256:" + "a" * 64, "a:1 ", ""]),
    "gpus": st.integers(0, 40),
    "gpus_per_node": st.integers(1, 9),
    "gpus_per_trial": st.one_of(st.sampled_from([0.25, 0.5, 1.0, 2.0]), st.floats()),
    "nodes": st.none() | st.integers(1, 5),
    "cpus": st.integers(1, 64),
    "memory": st.sampled_from(["32Gi", "16G", "64", "1Mi", "", "0Gi", "1.5Ti"]),
    "namespace": NAMES,
    "arguments": st.lists(GOOD_WORDS | st.text(max_size=5), max_size=2).map(tuple),
}
PLAIN: dict[str, Any] = {"name": "a", "study_text": SEARCH, "image": "r/ablate:1", "gpus": 0}


@pytest.mark.services
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_request_is_refused_line_by_line_or_renders_what_every_reader_passes(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(sorted(FIELDS)), unique=True, max_size=8))
    fields = PLAIN | {name: data.draw(FIELDS[name], label=name) for name in chosen}
    try:
        found = ClusterRequest(**fields)
    except RequestError as error:
        lines = str(error).splitlines()
        assert lines
        assert all(re.match("ablate k8s: .+: .+", line) for line in lines)
        assert len(set(lines)) <= sum(map(len, (chosen, fields.get("arguments", ())))) + 1
        return
    assert refusals(manifest(found)) == []
    assert list(yaml.safe_load_all(rendered(found))) == manifest(found)
    assert manifest(found)[0]["data"] == {"study.yaml": found.study_text}, "no text changes the template"


@given(st.text())
def test_a_proposed_name_is_one(name: str) -> None:
    assert request(name=proposal(name)).name == proposal(name)
