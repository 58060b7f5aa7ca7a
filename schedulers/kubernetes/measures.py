"""What the Kubernetes backend counts, as metrics.

What lives here: names and helps of the series, and where their numbers come from. What may not:
counting.
"""

from __future__ import annotations

from msgspec import Struct

from schedulers.backend import Measure, Value
from schedulers.kubernetes.client import KubeApi
from schedulers.kubernetes.watch import PodWatch


class _Count(Struct, frozen=True):
    """Of ``WatchStats``: the field, and what it means."""

    field: str
    series: str
    text: str


_WATCH = (
    _Count("lists", "lists", "Lists of all pods."),
    _Count("watches", "watches", "Watches begun, each where the one before ended."),
    _Count("events", "watch_events", "Changes of pods that watches told."),
    _Count("failures", "watch_failures", "Lists and watches that failed or broke off."),
    _Count("silent", "silent_watches", "Watches that said nothing at all, not even in a bookmark."),
    _Count("unreadable", "unreadable_pods", "Pods that could not be read, each time one was seen."),
    _Count("faults", "watch_faults", "Faults of slotbus in following the pods."),
)


def measures(api: KubeApi | None, watch: PodWatch, pods: int) -> list[Measure]:
    """All series; ``api`` None: not connected yet, ``pods``: how many are followed."""
    age_s = watch.age()
    return [
        Measure(
            name="kubernetes_pods",
            text="Pods of workers that are followed.",
            values=[Value(pods)],
        ),
        Measure(
            name="kubernetes_view_age_seconds",
            text="Seconds since the API server was last heard of the pods.",
            values=[] if age_s is None else [Value(age_s)],
        ),
        *(
            Measure(
                name=f"kubernetes_{each.series}",
                text=each.text,
                values=[Value(getattr(watch.stats, each.field))],
                grows=True,
            )
            for each in _WATCH
        ),
        *_of_requests(api),
    ]


def _of_requests(api: KubeApi | None) -> list[Measure]:
    waits = api.pacer.waits if api is not None else {}
    return [
        Measure(
            name="kubernetes_requests",
            text="Requests to the API server, by verb and HTTP status (none: no answer).",
            labels=("verb", "code"),
            values=[
                Value(times, {"verb": asked.verb, "code": asked.code})
                for asked, times in (api.asked if api is not None else {}).items()
            ],
            grows=True,
        ),
        Measure(
            name="kubernetes_throttled",
            text="Requests that waited: for others under way (at_once), for our own rate "
            "(rate), because the server asked for it or was away (server).",
            labels=("by",),
            values=[Value(one.times, {"by": by}) for by, one in waits.items()],
            grows=True,
        ),
        Measure(
            name="kubernetes_throttled_seconds",
            text="Seconds that requests waited so, added up.",
            labels=("by",),
            values=[Value(one.seconds, {"by": by}) for by, one in waits.items()],
            grows=True,
        ),
    ]
