"""The words that fields of a pod template may have, held against a real server's own."""

from __future__ import annotations

from schedulers.kubernetes.podmodel import Shape, fields_of, kinds
from tests.support.kube.rest import JsonObject, Rest

GROWING = {
    ("EmptyDirVolumeSource", "medium"),
    ("HostPathVolumeSource", "type"),
    ("Lifecycle", "stopSignal"),
    ("AzureDiskVolumeSource", "cachingMode"),
    ("AzureDiskVolumeSource", "kind"),
}
"""Left to the server: they grow, or only some volumes know them."""


def _words(schemas: JsonObject, kind: str, name: str) -> set[str]:
    schema = next(
        schemas[key]
        for key in (f"io.k8s.api.core.v1.{kind}", f"io.k8s.apimachinery.pkg.apis.meta.v1.{kind}")
        if key in schemas
    )
    field = schema["properties"].get(name, {})  # type: ignore[index]
    return set(field.get("enum", field.get("items", {}).get("enum", [])))


async def test_they_are_those_of_the_server(kube: Rest) -> None:
    spec = await kube.get("/openapi/v3/api/v1")
    schemas = spec["components"]["schemas"]  # type: ignore[index]
    compared = 0
    for kind in kinds():
        for name, field in fields_of(kind).items():
            if field.nested or field.shape is Shape.MAP or (kind, name) in GROWING:
                continue
            theirs = _words(schemas, kind, name) - {""}
            if theirs:
                assert field.words >= theirs, (kind, name)
                compared += 1
    assert compared >= 20
