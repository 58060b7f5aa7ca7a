"""Overlays of pod templates: how they merge, and what they refuse."""

from __future__ import annotations

import copy

import pytest

from events.errors import Invalid
from schedulers.kubernetes.overlay import Json, overlay

BASE: Json = {
    "metadata": {"labels": {"team": "data", "tier": "batch"}},
    "spec": {
        "containers": [
            {
                "name": "worker",
                "image": "a",
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                ],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                "ports": [{"name": "http", "containerPort": 80}, {"containerPort": 81}],
            },
            {"name": "proxy", "image": "p"},
        ],
        "volumes": [{"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "old", "operator": "Exists"}],
    },
}


def laid(patch: object) -> Json:
    """The patch over the base, which stays as it was."""
    before = copy.deepcopy(BASE)
    result = overlay(BASE, patch, "PodTemplateSpec", "$")
    assert before == BASE
    return result


def worker(patch: Json) -> Json:
    """The worker's container after its part was laid over."""
    result = laid({"spec": {"containers": [{"name": "worker", **patch}]}})
    containers: list[Json] = result["spec"]["containers"]
    assert [one["name"] for one in containers] == ["worker", "proxy"]
    return containers[0]


def test_nothing_changes_nothing() -> None:
    assert laid({}) == BASE


def test_maps_merge_and_null_deletes() -> None:
    result = laid({"metadata": {"labels": {"tier": None, "zone": "b"}}})
    assert result["metadata"]["labels"] == {"team": "data", "zone": "b"}
    assert "nodeSelector" not in laid({"spec": {"nodeSelector": None}})["spec"]
    assert laid({"spec": {"nodeSelector": None}})["spec"]["volumes"] == BASE["spec"]["volumes"]


def test_containers_merge_by_name_and_new_ones_come_last() -> None:
    assert worker({"image": "b"})["image"] == "b"
    result = laid({"spec": {"containers": [{"name": "log", "image": "l"}]}})
    assert [one["name"] for one in result["spec"]["containers"]] == ["worker", "proxy", "log"]


def test_mounts_merge_by_path() -> None:
    mounts = worker(
        {
            "volumeMounts": [
                {"mountPath": "/data", "readOnly": True},
                {"mountPath": "/other", "name": "data"},
            ]
        }
    )["volumeMounts"]
    assert mounts == [
        {"name": "data", "mountPath": "/data", "readOnly": True},
        {"name": "data", "mountPath": "/other"},
    ]


def test_ports_merge_by_name_or_by_number() -> None:
    ports = worker(
        {"ports": [{"name": "http", "containerPort": 8080}, {"containerPort": 81, "hostPort": 9}]}
    )["ports"]
    assert ports == [
        {"name": "http", "containerPort": 8080},
        {"containerPort": 81, "hostPort": 9},
    ]


def test_a_variable_is_a_value_or_comes_from_somewhere() -> None:
    env = worker({"env": [{"name": "S", "value": "plain"}]})["env"]
    assert env == [{"name": "A", "value": "1"}, {"name": "S", "value": "plain"}]


def test_a_volume_of_another_kind_replaces_the_old_one() -> None:
    volumes = laid({"spec": {"volumes": [{"name": "data", "hostPath": {"path": "/x"}}]}})["spec"]
    assert volumes["volumes"] == [{"name": "data", "hostPath": {"path": "/x"}}]
    same = laid({"spec": {"volumes": [{"name": "data", "emptyDir": {"medium": "Memory"}}]}})
    assert same["spec"]["volumes"][0]["emptyDir"] == {"sizeLimit": "1Gi", "medium": "Memory"}


def test_lists_without_names_are_replaced() -> None:
    result = laid({"spec": {"tolerations": [{"key": "new", "operator": "Exists"}]}})
    assert [one["key"] for one in result["spec"]["tolerations"]] == ["new"]
    assert worker({"command": ["a", "b"]})["command"] == ["a", "b"]


def test_numbers_are_taken_for_quantities_and_for_ports() -> None:
    result = worker(
        {
            "resources": {"limits": {"cpu": 2, "memory": "1Gi"}, "requests": {"cpu": 0.5}},
            "livenessProbe": {"httpGet": {"port": "http"}},
            "readinessProbe": {"tcpSocket": {"port": 8080}},
        }
    )
    assert result["resources"] == {
        "limits": {"cpu": "2", "memory": "1Gi"},
        "requests": {"cpu": "0.5"},
    }


@pytest.mark.parametrize(
    ("patch", "path", "words"),
    [
        ({"spc": {}}, "$.spc", "did you mean spec"),
        ({"spec": {"volume": []}}, "$.spec.volume", "did you mean volumes"),
        (
            {"spec": {"containers": [{"name": "worker", "env": [{"name": "A", "vlaue": "1"}]}]}},
            "$.spec.containers[0].env[0].vlaue",
            "did you mean value",
        ),
        ({"spec": {"ephemeralContainers": []}}, "$.spec.ephemeralContainers", "no field"),
        ({"spec": {"affinity": {"nodeAffinty": {}}}}, "$.spec.affinity.nodeAffinty", "nodeAff"),
        ({"spec": []}, "$.spec", "expected an object, got a list"),
        ({"spec": {"containers": {}}}, "$.spec.containers", "expected a list, got an object"),
        ({"spec": {"containers": [None]}}, "$.spec.containers[0]", "expected an object, got null"),
        ({"spec": {"containers": [{"image": "x"}]}}, "$.spec.containers[0].name", "needs a name"),
        (
            {"spec": {"containers": [{"name": "worker", "volumeMounts": [{"name": "data"}]}]}},
            "$.spec.containers[0].volumeMounts[0].mountPath",
            "needs a mountPath",
        ),
        (
            {"spec": {"containers": [{"name": "worker", "ports": [{"hostPort": 1}]}]}},
            "$.spec.containers[0].ports[0].containerPort",
            "needs a containerPort",
        ),
        (
            {"spec": {"volumes": [{"name": "a"}, {"name": "a"}]}},
            "$.spec.volumes[1]",
            "'a' comes twice",
        ),
        ({"spec": {"priority": "high"}}, "$.spec.priority", "expected a whole number"),
        ({"spec": {"priority": True}}, "$.spec.priority", "expected a whole number, got true"),
        ({"spec": {"priority": 2**70}}, "$.spec.priority", "out of range"),
        ({"spec": {"hostNetwork": "yes"}}, "$.spec.hostNetwork", "expected true or false"),
        ({"metadata": {"labels": {"a/b": 1}}}, "$.metadata.labels['a/b']", "expected a text"),
        ({"metadata": {1: {}}}, "$.metadata", "the key 1 is not a text"),
        ({"spec": {"overhead": {"cpu": "lots"}}}, "$.spec.overhead.cpu", "not a quantity"),
        ({"spec": {"overhead": {"cpu": True}}}, "$.spec.overhead.cpu", "expected a quantity"),
        ({"spec": {"overhead": {"cpu": 10**400}}}, "$.spec.overhead.cpu", "out of range"),
    ],
)
def test_refused_with_the_path(patch: object, path: str, words: str) -> None:
    with pytest.raises(Invalid) as caught:
        laid(patch)
    assert caught.value.path == path
    assert words in caught.value.message
