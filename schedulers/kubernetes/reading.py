"""Reading the Kubernetes backend's configuration, with the path of what is wrong.

What lives here: parsed values to ``KubernetesConfig``, and all checks of one. What may
not: files and the environment (``controller.config``).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from events import codec
from events.errors import Invalid
from events.ids import ID_RE
from events.paths import mistake
from schedulers.kubernetes.config import KubernetesConfig, Owner
from schedulers.kubernetes.names import is_dns_label, is_subdomain
from schedulers.kubernetes.template import CONFIGURED_AT, configured_template


def read_config(tree: Mapping[str, object], at: str = CONFIGURED_AT) -> KubernetesConfig:
    """A configuration from parsed TOML, YAML or JSON. Raises Invalid; ``at`` is where in
    its file the tree stands."""
    unknown = codec.unknown_fields(tree, KubernetesConfig, at)
    unknown += codec.unknown_fields(tree.get("owner"), Owner, f"{at}.owner")
    for path, near in unknown:
        hint = f", did you mean {near}?" if near else ""
        raise Invalid(f"there is no such setting{hint}", path=path)
    try:
        config = msgspec.convert(tree, KubernetesConfig)
    except msgspec.ValidationError as error:
        text, path = mistake(error, tree, KubernetesConfig)
        raise Invalid(text, path=at + path.removeprefix("$")) from error
    check_config(config, at)
    return config


def check_config(config: KubernetesConfig, at: str = CONFIGURED_AT) -> None:
    """Everything that can be known to be wrong without a cluster. Raises Invalid."""
    _check_types(config, at)
    if not is_dns_label(config.namespace):
        raise Invalid(f"{config.namespace!r} is no namespace", path=f"{at}.namespace")
    if len(config.image.split()) != 1 or config.image != config.image.strip():
        raise Invalid(f"{config.image!r} is no image", path=f"{at}.image")
    names = {"service_account": config.service_account, "priority_class": config.priority_class}
    names |= {f"image_pull_secrets[{i}]": s for i, s in enumerate(config.image_pull_secrets)}
    for name, value in names.items():
        if (value or "[" in name) and not is_subdomain(value):
            raise Invalid(f"{value!r} is no name of an object", path=f"{at}.{name}")
    if config.view_age_s <= config.watch_timeout_s:
        raise Invalid(
            f"a quiet watch is heard of every {config.watch_timeout_s:g} s at the least "
            "(watch_timeout_s): allow for more",
            path=f"{at}.view_age_s",
        )
    if isinstance(config.owner, Owner):
        _check_owner(config.owner, config.namespace, f"{at}.owner")
    configured_template(config, at)


def _check_types(config: KubernetesConfig, at: str) -> None:
    """A configuration made in Python is not checked when it is made."""
    try:
        tree = msgspec.to_builtins(config)
        try:
            msgspec.convert(tree, KubernetesConfig)
        except msgspec.ValidationError as error:
            text, path = mistake(error, tree, KubernetesConfig)
            raise Invalid(text, path=at + path.removeprefix("$")) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"can't be written as JSON: {error}", path=at) from error
    if not ID_RE.match(config.cluster):
        raise Invalid(f"{config.cluster!r} is no id", path=f"{at}.cluster")


def _check_owner(owner: Owner, namespace: str, at: str) -> None:
    for name in ("api_version", "kind", "name", "uid"):
        if not getattr(owner, name):
            raise Invalid("is needed", path=f"{at}.{name}")
    if owner.namespace not in ("", namespace):
        raise Invalid(
            f"an owner in {owner.namespace} can't own pods in {namespace}: "
            "Kubernetes would delete them at once",
            path=f"{at}.namespace",
        )
