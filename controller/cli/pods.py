"""``slotbus pod``: the manifests that a start would create, for people and for kubectl.

What lives here: its arguments. What may not: anything heavy at the top; see
``controller.cli``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.options import ConfigFile

if TYPE_CHECKING:
    from controller.config import ControllerConfig
    from events.messages import StartPipelineReq
    from schedulers.kubernetes.overlay import Json


def pod(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="Id of the job.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="The request as TOML or JSON."),
    ] = None,
    slots: Annotated[
        int | None, typer.Option("--slots", "-s", metavar="N", help="Units of parallelism.")
    ] = None,
    config: ConfigFile = None,
) -> None:
    """Print the pods that a start would create on Kubernetes, and start nothing.

    What a controller would refuse is refused here. The cluster has the last word:

        slotbus pod -f job.toml | kubectl apply --dry-run=server -f -

    The controller's configuration is read as the controller reads it; worker ids, and so the
    names of the pods, are none that a controller would give.
    """
    import msgspec

    from controller.cli.finding import settings_of_others
    from controller.cli.job_file import StartArguments, build_start
    from controller.cli.output import write
    from controller.cli.running import as_usage, reported
    from controller.config import ControllerConfig, load_controller

    with reported(), as_usage():
        chosen = load_controller(
            file=config,
            environ=os.environ,
            also_known=settings_of_others(ControllerConfig),
            use_selected=False,
        )
        request = build_start(StartArguments(job_id=job, file=file, slots=slots))
        whole = {"apiVersion": "v1", "kind": "List", "items": manifests(chosen, request)}
        write(msgspec.json.format(msgspec.json.encode(whole)).decode())


def manifests(config: ControllerConfig, request: StartPipelineReq) -> list[Json]:
    """The program's ConfigMap, if it needs one, then the pods. Raises Invalid."""
    from events.errors import Invalid
    from schedulers.decide.words import split_command
    from schedulers.kubernetes.connecting import own_namespace
    from schedulers.kubernetes.manifest import (
        in_config_map,
        planned,
        pod_manifest,
        program_manifest,
        shares,
    )

    pods = config.pods(own_namespace())
    command = request.scheduler_config.command
    if command is not None and not config.allow_job_command:
        raise Invalid(
            "jobs may not bring a command here (allow_job_command is off)",
            path="$.scheduler_config.command",
        )
    assignments = [
        planned(
            pods,
            request,
            number,
            share,
            command=split_command(command),
            default_command=config.worker_command,
        )
        for number, share in enumerate(shares(pods, request.slots), start=1)
    ]
    first = assignments[:1] if in_config_map(assignments[0]) else []
    programs = [program_manifest(pods, assignment) for assignment in first]
    return [*programs, *(pod_manifest(pods, assignment) for assignment in assignments)]
