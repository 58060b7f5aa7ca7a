"""Configuration: which source wins, and what a person is told about a mistake."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import msgspec
import pytest
import structlog

from controller.config import (
    ControllerConfig,
    access_of,
    default_state_dir,
    env_name,
    load_controller,
    split_address,
)
from controller.loading import load
from controller.logs import setup_logging
from events.errors import Invalid
from events.settings import DEFAULT_SERVER


class Small(msgspec.Struct, kw_only=True, frozen=True):
    node_id: str
    slots: int = 1
    labels: dict[str, str] = {}
    words: list[str] | None = None


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "slotbus.toml"
    file.write_text(text)
    return file


def refused(file: Path | None = None, **environ: str) -> Invalid:
    with pytest.raises(Invalid) as caught:
        load_controller(file=file, environ=environ)
    return caught.value


def test_defaults_stand_alone() -> None:
    assert load_controller() == ControllerConfig()
    assert ControllerConfig().server == DEFAULT_SERVER


def test_a_later_source_wins(tmp_path: Path) -> None:
    file = write(tmp_path, 'cluster = "file"\nslots_per_process = 2\nnode_expiry_s = 60\n')
    environ = {"SLOTBUS_CFG_SLOTS_PER_PROCESS": "3", "SLOTBUS_CFG_NODE_EXPIRY_S": "70"}
    config = load_controller(
        file=file, environ=environ, flags={"node_expiry_s": 80.0, "cluster": None}
    )
    assert (config.cluster, config.slots_per_process, config.node_expiry_s) == ("file", 3, 80.0)


def test_the_server_of_other_nats_tools_is_used_unless_ours_is_given() -> None:
    environ = {"NATS_URL": "nats://a:1"}
    assert load_controller(environ=environ).server == "nats://a:1"
    environ["SLOTBUS_CFG_SERVER"] = "nats://b:2"
    assert load_controller(environ=environ).server == "nats://b:2"


@pytest.mark.parametrize("text", ["sleep '1 0'", '["sleep", "1 0"]'])
def test_a_command_in_text_is_split_like_a_shells_words(tmp_path: Path, text: str) -> None:
    from_env = load_controller(environ={"SLOTBUS_CFG_WORKER_COMMAND": text})
    from_flag = load_controller(flags={"worker_command": text})
    from_list = load_controller(file=write(tmp_path, 'worker_command = ["sleep", "1 0"]'))
    assert from_env == from_flag == from_list
    assert from_env.worker_command == ["sleep", "1 0"]


def test_switches_are_read_from_text() -> None:
    environ = {"SLOTBUS_CFG_ALLOW_JOB_COMMAND": "false"}
    assert load_controller(environ=environ).allow_job_command is False


def test_an_unknown_key_of_a_file_is_refused_with_the_nearest_known(tmp_path: Path) -> None:
    file = write(tmp_path, 'sever = "nats://x"')
    error = refused(file)
    assert error.path == "sever"
    assert error.facts["source"] == str(file)
    assert "did you mean server?" in error.message


def test_an_unknown_variable_is_refused_unless_another_program_reads_it() -> None:
    error = refused(SLOTBUS_CFG_CLUSTR="x")
    assert "did you mean SLOTBUS_CFG_CLUSTER?" in error.message
    others = frozenset({"node_id"})
    config = load_controller(environ={"SLOTBUS_CFG_NODE_ID": "n1"}, also_known=others)
    assert config == ControllerConfig()


def test_a_wrong_value_is_told_with_its_name_and_source(tmp_path: Path) -> None:
    error = refused(SLOTBUS_CFG_TASK_SLOTS="many")
    assert error.path == "task_slots"
    assert error.message == "task_slots from the environment: Expected `int`, got `str`"
    error = refused(write(tmp_path, 'task_slots = "8"\nscheduler = "mesos"'))
    assert error.path == "scheduler"
    error = refused(write(tmp_path, "node_expiry_s = -1"))
    assert error.path == "node_expiry_s"


def test_rules_across_fields_name_their_source() -> None:
    error = refused(SLOTBUS_CFG_HEARTBEAT_S="30")
    assert (error.path, error.facts["source"]) == ("heartbeat_s", "the environment")
    assert refused(SLOTBUS_CFG_ROOT="a.*").path != ""
    assert refused(SLOTBUS_CFG_HTTP="somewhere").path == "http"
    assert refused(SLOTBUS_CFG_WORKER_COMMAND="echo 'open").path == "worker_command"
    assert refused(SLOTBUS_CFG_WORKER_COMMAND="[1").path == "worker_command"


def test_an_expiry_below_the_heartbeat_says_what_to_set_instead() -> None:
    with pytest.raises(Invalid) as refusal:
        load_controller(flags={"node_expiry_s": 3.0})
    error = refusal.value
    assert (error.path, error.facts["source"]) == ("node_expiry_s", "a flag")
    assert error.message.startswith("node_expiry_s is 3 and heartbeat_s 5: ")
    assert "a longer --node-expiry, or set heartbeat_s to 1 or less" in error.message
    assert "SLOTBUS_CFG_HEARTBEAT_S or in a --config file" in error.message
    environ = {"SLOTBUS_CFG_HEARTBEAT_S": "1"}
    assert load_controller(environ=environ, flags={"node_expiry_s": 3.0}).heartbeat_s == 1


def test_a_file_that_cant_be_read_or_parsed_is_named(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "absent.toml").message
    assert "is not TOML" in refused(write(tmp_path, "a = = 1")).message


def test_other_programs_load_the_same_way() -> None:
    environ = {"SLOTBUS_CFG_LABELS": "zone=a, disk=ssd", "SLOTBUS_CFG_WORDS": "a b"}
    small = load(Small, environ=environ, flags={"node_id": "n1", "slots": 4})
    assert small == Small(
        node_id="n1", slots=4, labels={"zone": "a", "disk": "ssd"}, words=["a", "b"]
    )
    assert load(Small, flags={"node_id": "n1", "words": ("a",)}).words == ["a"]
    with pytest.raises(Invalid, match="node_id is needed: give --node-id or SLOTBUS_CFG_NODE_ID"):
        load(Small)
    with pytest.raises(Invalid, match="'zone' is not key=value"):
        load(Small, environ={"SLOTBUS_CFG_LABELS": "zone"})


def test_addresses() -> None:
    assert split_address("0.0.0.0:80").host == "0.0.0.0"
    assert split_address(":80").host == "127.0.0.1"
    assert split_address("[::1]:0").host == "::1"
    for wrong in ("80", "x:", "x:99999", "x:²"):
        with pytest.raises(Invalid):
            split_address(wrong)


def test_the_state_directory_follows_xdg() -> None:
    assert default_state_dir({"XDG_STATE_HOME": "/s"}, "c") == Path("/s/slotbus/c")
    assert default_state_dir({"XDG_STATE_HOME": "s"}, "c").is_relative_to(Path.home())
    assert env_name("http") == "SLOTBUS_CFG_HTTP"


def test_credentials_are_passed_on_and_not_shown() -> None:
    config = ControllerConfig(user="u", password="secret")
    assert (access_of(config).user, access_of(config).password) == ("u", "secret")
    assert "secret" not in repr(config.access())
    assert "secret" not in repr(config)


def _log_a_failure() -> None:
    password = "hunter2"
    try:
        raise ValueError("wrong")
    except ValueError:
        structlog.get_logger("slotbus.test").exception("failed", length=len(password))


def test_logs_are_json_for_machines_and_columns_on_request() -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        out = io.StringIO()
        setup_logging("info", "auto", out)
        structlog.get_logger("slotbus.test").info("started", epoch=7)
        structlog.get_logger("slotbus.test").debug("not shown")
        logging.getLogger("other").warning("from %s", "elsewhere")
        first, second = (json.loads(line) for line in out.getvalue().splitlines())
        assert (first["event"], first["epoch"], first["level"]) == ("started", 7, "info")
        assert (second["event"], second["logger"]) == ("from elsewhere", "other")
        out = io.StringIO()
        setup_logging("info", "console", out)
        structlog.get_logger("slotbus.test").info("started", epoch=7)
        assert "epoch=7" in out.getvalue()
        _log_a_failure()
        assert "ValueError: wrong" in out.getvalue()
        assert "hunter2" not in out.getvalue().replace('password = "hunter2"', "")
        assert len([h for h in root.handlers if h not in before]) == 1
    finally:
        for handler in list(root.handlers):
            if handler not in before:
                root.removeHandler(handler)
        root.setLevel(level)
        structlog.reset_defaults()
