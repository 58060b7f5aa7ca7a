"""The table of a pod template's fields is that of the Kubernetes client."""

from __future__ import annotations

import re

import pytest
from kubernetes_asyncio.client import models

from schedulers.kubernetes.podmodel import Shape, fields_of, kinds

SCALARS = {"str", "int", "bool", "port", "quantity"}
LEFT_OUT = {("PodSpec", "ephemeralContainers"), ("ObjectMeta", "managedFields")}


def client_fields(kind: str) -> dict[str, str]:
    """Name and type of each field, as the client's model of this kind has them."""
    model = getattr(models, f"V1{kind}", None) or getattr(models, f"CoreV1{kind}")
    return {model.attribute_map[name]: kind for name, kind in model.openapi_types.items()}


@pytest.mark.parametrize("kind", kinds())
def test_every_field_of_the_client_is_known(kind: str) -> None:
    ours, theirs = fields_of(kind), client_fields(kind)
    assert {name for name in theirs if (kind, name) not in LEFT_OUT} <= ours.keys()
    for name, field in ours.items():
        if name not in theirs:  # an older client
            continue
        text = theirs[name]
        shape = {"list[": Shape.LIST, "dict(": Shape.MAP}.get(text[:5])
        assert field.shape is (shape or Shape.ONE), name
        inner = re.sub(r"^(list\[|dict\(str, )|[\])]$", "", text)
        if field.nested:
            assert inner in (f"V1{field.kind}", f"CoreV1{field.kind}"), name
        else:
            expected = {
                "port": {"object"},
                "quantity": {"str"},
                "str": {"str", "datetime"},
            }.get(field.kind, {field.kind})
            assert inner in expected, name


def test_every_kind_that_is_named_is_described() -> None:
    named = {field.kind for kind in kinds() for field in fields_of(kind).values()}
    assert named - SCALARS <= set(kinds())
    assert "PodTemplateSpec" in kinds()
