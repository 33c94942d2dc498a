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
    "--code-changed", "--cpus-per-trial", "--seeds-at-once", "--pack", "--tracker", "--extend", "--relocate",
    "--keep-going", "--json",
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
    "image-in-capitals": ({"image": "registry/Ablate:1"}, "must be an image"),
    "image-with-a-space": ({"image": "ablate :1"}, "must be an image"),
    "namespace": ({"namespace": "Ablate"}, r"--namespace = 'Ablate'.*Did you mean 'ablate'"),
    "namespace-with-a-dot": ({"namespace": "a.b"}, "--namespace = 'a.b'"),
    "secret": ({"secret": "my_secret"}, "Did you mean 'my-secret'"),
    "data-claim": ({"data_claim": "Data"}, "--data-claim"),
    "runs-claim": ({"runs_claim": "-"}, "--runs-claim"),
    "queue": ({"queue": "q q"}, "--queue"),
    "spot-without-a-value": ({"spot": "gke-spot"}, "KEY=VALUE"),
    "spot-with-a-long-key": ({"spot": f"{'a' * 64}=true"}, "KEY=VALUE"),
    "gpus-below-0": ({"gpus": -1}, "--gpus = -1: must be between 0"),
    "gpus-not-a-multiple": ({"gpus": 6, "gpus_per_node": 4}, "multiple of --gpus-per-node 4"),
    "gpus-per-node-0": ({"gpus": 4, "gpus_per_node": 0}, "--gpus-per-node = 0"),
    "share-of-one-and-a-half": ({"gpus": 4, "gpus_per_trial": 1.5}, "a share from 0.01 to 1, or a whole number"),
    "share-nan": ({"gpus": 4, "gpus_per_trial": float("nan")}, "a share from 0.01 to 1"),
    "share-infinite": ({"gpus": 4, "gpus_per_trial": float("inf")}, "a share from 0.01 to 1"),
    "trial-over-two-nodes": ({"gpus": 4, "gpus_per_trial": 2.0}, "a trial has its GPUs on one node, which has 1"),
    "nodes-beside-gpus": ({"gpus": 4, "nodes": 2}, "--nodes = 2"),
    "nodes-0": ({"nodes": -1}, "--nodes = -1: must be between 1"),
    "cpus": ({"cpus": "many"}, "--cpus = 'many'"),
    "no-cpus": ({"cpus": "0"}, "--cpus = '0'"),
    "cpus-fewer-than-a-trial-s": ({"cpus": "1.5", "arguments": ("--cpus-per-trial", "4")}, "one node, which has 2"),
    "cpus-of-gpu-workers": ({"gpus": 4, "arguments": ("--cpus-per-trial=16",)}, "on one node, which has 8"),
    "memory-without-a-unit": ({"memory": "32"}, "--memory = '32': must be an amount"),
    "memory-too-small": ({"memory": "512Mi"}, "at least 4Gi"),
    "retries": ({"retries": -1}, "--retries = -1"),
    "study-too-large": ({"study_text": "#" * 250_001}, "at most 250,000 bytes"),
    "study-of-short-lines": (
        {"study_text": "#\n" * 84_000},
        "takes 252,002 bytes as JSON.*at most 250,000 bytes",
    ),
    "study-of-signs-that-json-escapes": ({"study_text": "#" + "<" * 45_000}, "takes 270,003 bytes"),
    "workers-one-number": ({"worker_range": "4"}, "--workers = '4': must be MIN:MAX"),
    "workers-a-fraction": ({"worker_range": "1:2.5"}, "--workers = '1:2.5': must be MIN:MAX"),
    "workers-negative": ({"worker_range": "-1:2"}, "--workers = '-1:2': must be MIN:MAX"),
    "workers-empty": ({"worker_range": ""}, "--workers = '': must be MIN:MAX"),
    "workers-no-worker": ({"worker_range": "0:2"}, "--workers = '0:2': MIN must be at least 1"),
    "workers-reversed": ({"worker_range": "3:2"}, "--workers = '3:2': .* MAX at least MIN"),
    "workers-too-many": ({"worker_range": "1:10001"}, "at most 10,000"),
    "workers-other-gpus": ({"gpus": 8, "worker_range": "1:4"}, "--gpus 8 are on 8 nodes of 1: MAX must be that number"),
    "workers-nodes": ({"nodes": 2, "worker_range": "1:4"}, "--nodes = 2: .*not both"),
    "workers-queue": ({"queue": "ablate", "worker_range": "1:4"}, "--queue = 'ablate': Kueue .*not both"),
    "workers-by-hand": ({"arguments": ("--autoscale", "3")}, "'--autoscale': .*give --workers MIN:MAX"),
    "priority-without-a-queue": ({"priority_class": "urgent"}, "--priority-class = 'urgent': .* needs --queue"),
    "priority-no-name": ({"priority_class": "Urgent", "queue": "a"}, "--priority-class = 'Urgent'"),
    "selector-without-a-value": ({"node_selector": ("pool",)}, "--node-selector = 'pool': must be .*KEY=VALUE"),
    "selector-twice": (
        {"node_selector": ("pool=a", "pool=b")},
        "--node-selector = 'pool=b': .*pool.* has two values, a and b",
    ),
    "selector-and-arch": (
        {"node_selector": ("kubernetes.io/arch=arm64",), "arch": "amd64"},
        "has two values, amd64 and arm64",
    ),
    "selector-with-a-newline": ({"node_selector": ("pool=a\n",)}, "KEY=VALUE"),
    "arch": ({"arch": "x86"}, "--arch = 'x86': must be amd64 or arm64"),
    "toleration-effect": ({"tolerations": ("a=b:Never",)}, "NoSchedule, PreferNoSchedule or NoExecute"),
    "toleration-empty": ({"tolerations": ("",)}, r"--toleration = '': must be KEY\[=VALUE\]\[:EFFECT\]"),
    "toleration-without-a-value": ({"tolerations": ("a=",)}, "--toleration = 'a='"),
    "toleration-with-a-long-prefix": ({"tolerations": (f"{'a' * 254}/b",)}, "at most 253"),
    "selector-with-a-long-prefix": ({"node_selector": (f"{'a' * 254}/b=c",)}, "at most 253"),
    "spot-with-a-long-prefix": ({"spot": f"{'a' * 254}/b=true"}, "--spot = .*at most 253"),
}


@pytest.mark.parametrize(("changes", "line"), FAULTY.values(), ids=FAULTY.keys())
def test_a_bad_request_is_one_clear_line(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(RequestError, match=line) as refused:
        request(**changes)
    assert len(str(refused.value).splitlines()) == 1


def test_a_trial_may_hold_a_whole_node_and_the_last_option_counts() -> None:
    for words in (("--cpus-per-trial=2",), ("--cpus-per-trial", "4", "--cpus-per-trial", "2"), ("--cpus-per-trial",)):
        assert request(cpus="1500m", arguments=words).arguments == words


def test_all_faults_of_a_request_are_said_at_once() -> None:
    with pytest.raises(RequestError, match="--name") as refused:
        request(name="N", image="x y", cpus="-", gpus=-2, arguments=("--gpus",))
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
    "gpus": st.integers(-2, 40),
    "gpus_per_node": st.integers(-1, 9),
    "gpus_per_trial": st.one_of(st.sampled_from([0.25, 0.5, 1.0, 2.0]), st.floats()),
    "nodes": st.none() | st.integers(-1, 5),
    "cpus": st.sampled_from(["8", "500m", "1.5", "0", "", "8Gi", "1e3", "-1"]),
    "memory": st.sampled_from(["32Gi", "16G", "64", "1Mi", "", "0Gi", "1.5Ti"]),
    "namespace": NAMES,
    "secret": NAMES,
    "data_claim": st.none() | NAMES,
    "runs_claim": st.none() | NAMES,
    "queue": st.none() | NAMES,
    "spot": st.none() | st.sampled_from(["a/b=c", "a=", "=b", "a.b/c-d=true", "A/b=c", "k=v=w"]),
    "retries": st.integers(-1, 1001),
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
