"""The recipe of the Kubernetes programs that the tests run.

What lives here: their versions and how they are built from the Go module proxy. What may not:
looking for them and building (``tests.support.binaries``), and anything outside the standard
library, since `.ci/go-binaries` runs before there is an environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from tests.support.binaries.building import GO_OLDEST
from tests.support.binaries.finding import Recipe, Target, ensure

KUBERNETES: Final = "v1.37.2"
STAGING: Final = "v0.37.2"
ETCD: Final = "v3.7.3"

MODULES: Final = """
    api apiextensions-apiserver apimachinery apiserver cli-runtime client-go cloud-provider
    cluster-bootstrap code-generator component-base component-helpers controller-manager cri-api
    cri-client cri-streaming csi-translation-lib dynamic-resource-allocation endpointslice
    externaljwt kms kube-aggregator kube-controller-manager kube-proxy kube-scheduler kubectl
    kubelet metrics mount-utils pod-security-admission sample-apiserver streaming
"""
"""The modules that k8s.io/kubernetes takes from its own tree, which a module proxy lacks."""


@dataclass(frozen=True)
class Binaries:
    """Where they are."""

    kube_apiserver: Path
    etcd: Path
    kube_scheduler: Path
    kubectl: Path


def _go_mod() -> str:
    replaced = "".join(f"\tk8s.io/{name} => k8s.io/{name} {STAGING}\n" for name in MODULES.split())
    return (
        f"module build\n\ngo {GO_OLDEST[0]}.{GO_OLDEST[1]}.0\n\n"
        f"require (\n\tgo.etcd.io/etcd/server/v3 {ETCD}\n\tk8s.io/kubernetes {KUBERNETES}\n)\n\n"
        f"replace (\n{replaced})\n"
    )


def _ldflags() -> tuple[str, ...]:
    # A server that does not know its version refuses to start properly.
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    values = {"gitVersion": KUBERNETES, "gitMajor": major, "gitMinor": minor}
    where = "k8s.io/component-base/version"
    return ("-s", "-w", *(f"-X={where}.{name}={value}" for name, value in values.items()))


def _kubernetes(name: str, *asked: str) -> Target:
    variable = f"TEST_ASSET_{name.upper().replace('-', '_')}"
    package = f"k8s.io/kubernetes/cmd/{name}"
    return Target(name, package, variable, (1, 31), asked or ("--version",))


RECIPE: Final = Recipe(
    title="kubernetes",
    kept_as=f"kubernetes-{KUBERNETES}-etcd-{ETCD}",
    go_mod=_go_mod(),
    ldflags=_ldflags(),
    targets=(
        _kubernetes("kube-apiserver"),
        Target("etcd", "go.etcd.io/etcd/server/v3", "TEST_ASSET_ETCD", (3, 5)),
        _kubernetes("kube-scheduler"),
        _kubernetes("kubectl", "version", "--client"),
    ),
)


def ensure_kubernetes(out: TextIO | None = None) -> Binaries:
    """The programs, built first where they are missing; ``out`` gets the progress.

    Raises Unavailable where the machine can't, BuildFailed for everything else.
    """
    found = ensure(RECIPE, out)
    return Binaries(**{name.replace("-", "_"): path for name, path in found.items()})
