"""Laws of overlays, for any fragments that fit the table of fields."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from events.errors import Invalid
from schedulers.kubernetes.overlay import Json, overlay

WORDS = st.text("abc", min_size=1, max_size=2)
MAPS = st.dictionaries(WORDS, WORDS, max_size=3)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    """An object with any of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


def named(key: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Json]]:
    """A list of objects that are told apart by ``key``."""
    one = st.fixed_dictionaries({key: WORDS}, optional=fields)
    return st.lists(one, max_size=3, unique_by=lambda element: element[key])


ENV = named("name", value=WORDS)
MOUNTS = named("mountPath", name=WORDS, readOnly=st.booleans())
CONTAINERS = named("name", image=WORDS, env=ENV, volumeMounts=MOUNTS)
TEMPLATES = some(
    metadata=some(labels=MAPS, annotations=MAPS),
    spec=some(
        containers=CONTAINERS,
        nodeSelector=MAPS,
        hostNetwork=st.booleans(),
        tolerations=st.lists(some(key=WORDS, value=WORDS), max_size=2),
    ),
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["metadata", "labels", "spec", "containers", "name", "env", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=20,
)


def laid(base: Json, patch: object) -> Json:
    return overlay(base, patch, "PodTemplateSpec", "$")


@given(TEMPLATES)
def test_over_nothing_it_is_itself(template: Json) -> None:
    assert laid({}, template) == template


@given(TEMPLATES, TEMPLATES)
def test_laid_twice_is_laid_once_and_nothing_else_changes(base: Json, patch: Json) -> None:
    base, before = laid({}, base), copy.deepcopy((base, patch))
    once = laid(base, patch)
    assert laid(once, patch) == once
    assert (base, patch) == before


@given(TEMPLATES, TEMPLATES)
def test_all_that_the_overlay_says_holds(base: Json, patch: Json) -> None:
    result = laid(laid({}, base), patch)
    assert holds(patch, result)
    base_labels = base.get("metadata", {}).get("labels", {})
    labels = result.get("metadata", {}).get("labels", {})
    assert base_labels.keys() <= labels.keys()


@given(TEMPLATES, TEMPLATES)
def test_elements_stay_in_order_and_are_told_apart(base: Json, patch: Json) -> None:
    result = laid(laid({}, base), patch)
    first = [one["name"] for one in base.get("spec", {}).get("containers", [])]
    names = [one["name"] for one in result.get("spec", {}).get("containers", [])]
    assert names[: len(first)] == first
    assert len(names) == len(set(names))


@given(TEMPLATES, st.sampled_from(["metadata", "spec"]))
def test_null_deletes(base: Json, name: str) -> None:
    assert laid(laid({}, base), {name: None}) == {k: v for k, v in base.items() if k != name}


@given(TEMPLATES, ANYTHING)
def test_anything_else_is_refused_with_a_path(base: Json, patch: object) -> None:
    paths = []
    try:
        laid(laid({}, base), patch)
    except Invalid as error:
        paths.append(error.path)
    assert all(path.startswith("$") for path in paths)


def holds(patch: Any, result: Any) -> bool:
    """Whether everything in the patch is found in the result, elements by their key."""
    if isinstance(patch, dict):
        return all(name in result and holds(value, result[name]) for name, value in patch.items())
    if isinstance(patch, list) and patch and ("name" in patch[0] or "mountPath" in patch[0]):
        key = "mountPath" if "mountPath" in patch[0] else "name"
        found = {one[key]: one for one in result}
        return all(one[key] in found and holds(one, found[one[key]]) for one in patch)
    return bool(patch == result) or patch == []
