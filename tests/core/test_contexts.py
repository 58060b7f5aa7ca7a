"""Contexts of the nats command line: found, read, and where they stand among the settings."""

from __future__ import annotations

import base64
import json
import os
import pwd
from pathlib import Path

import pytest

from controller.cli.finding import ClientConfig, client_config, leave_note
from controller.config import ControllerConfig, load_controller
from controller.loading import load
from events.contexts import contexts_dir, known_contexts, read_context, selected_context
from events.errors import Invalid
from schedulers.node.config import AgentConfig


class Home:
    """A user's configuration of the nats command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {"XDG_CONFIG_HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
        (folder / "nats" / "context").mkdir(parents=True)

    def context(self, name: str, **fields: object) -> Path:
        path = self.folder / "nats" / "context" / f"{name}.json"
        path.write_text(json.dumps({"description": "", "nsc": "", "color_scheme": "", **fields}))
        return path

    def select(self, name: str) -> None:
        (self.folder / "nats" / "context.txt").write_text(f"{name}\n")

    def client(self, environ: dict[str, str] | None = None, **flags: str) -> ClientConfig:
        return client_config(flags, {**self.environ, **(environ or {})})


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_all_that_is_supported_is_read(home: Home) -> None:
    home.context(
        "prod",
        url="tls://a:4222,tls://b:4222",
        user="u",
        password="p",
        creds="~/x.creds",
        cert="c.pem",
        key="k.pem",
        ca="ca.pem",
        tls_first=True,
        inbox_prefix="_INBOX_me",
        some_field_of_tomorrow={"a": 1},
    )
    assert read_context("prod", home.environ).settings == {
        "server": "tls://a:4222,tls://b:4222",
        "user": "u",
        "password": "p",
        "creds_file": "~/x.creds",
        "tls_cert": "c.pem",
        "tls_key": "k.pem",
        "tls_ca": "ca.pem",
        "tls_first": True,
        "inbox_prefix": "_INBOX_me",
    }
    assert "p" not in repr(read_context("prod", home.environ)).replace("prod", "").split("'")


def test_a_context_without_a_server_means_the_local_default(home: Home) -> None:
    home.context("bare")
    assert home.client(context="bare").server == "nats://127.0.0.1:4222"


def test_a_jwt_and_a_seed_are_credentials(home: Home) -> None:
    home.context("jwt", user_jwt="eyJ0", user_seed="SUAX")
    reference = str(read_context("jwt", home.environ).settings["creds_file"])
    text = base64.b64decode(reference.partition(",")[2]).decode()
    assert [line for line in text.splitlines() if not line.startswith("-")] == ["eyJ0", "SUAX"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nsc", "nsc://o/a/u"),
        ("socks_proxy", "socks5://x"),
        ("jetstream_domain", "hub"),
        ("jetstream_api_prefix", "JS.hub"),
        ("windows_cert_store", "user"),
        ("windows_ca_certs_match", ["x"]),
        ("user_jwt", "eyJ0"),
    ],
)
def test_what_is_not_supported_is_named(home: Home, field: str, value: object) -> None:
    home.context("odd", **{field: value})
    with pytest.raises(Invalid, match=rf"context odd: its.*{field}.*not supported"):
        home.client(context="odd")


def test_a_context_that_is_not_there_or_broken(home: Home) -> None:
    with pytest.raises(Invalid, match="there is no context 'prod': there are none in"):
        home.client(context="prod")
    home.context("one")
    home.context("two")
    assert known_contexts(home.environ) == ["one", "two"]
    with pytest.raises(Invalid, match="there are one, two"):
        home.client(context="prod")
    with pytest.raises(Invalid, match="neither a name nor a .json file"):
        home.client(context="../one")
    home.context("one").write_text("{")
    with pytest.raises(Invalid, match="is no context"):
        home.client(context="one")
    home.context("one").write_text('{"url": 5}')
    with pytest.raises(Invalid, match=r"Expected `str`, got `int`.*url"):
        home.client(context="one")


def test_without_a_variable_they_are_in_the_home_of_the_user_database(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert contexts_dir({"HOME": "/elsewhere"}) == home / ".config" / "nats"

    def nobody(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert contexts_dir({"HOME": "/elsewhere"}) == Path("/elsewhere/.config/nats")


def test_a_context_can_be_a_file_of_its_own(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"url": "nats://file:1"}')
    assert home.client(context=str(path)).server == "nats://file:1"


def test_the_order_in_which_a_context_is_chosen(home: Home) -> None:
    for name in ("flag", "ours", "theirs", "selected"):
        home.context(name, url=f"nats://{name}:1")
    assert home.client().server == "nats://127.0.0.1:4222"
    home.select("selected")
    assert selected_context(home.environ) == "selected"
    assert home.client().server == "nats://selected:1"
    theirs = {"NATS_CONTEXT": "theirs"}
    assert home.client(theirs).server == "nats://theirs:1"
    ours = {**theirs, "SLOTBUS_CFG_CONTEXT": "ours"}
    assert home.client(ours).server == "nats://ours:1"
    assert home.client(ours, context="flag").server == "nats://flag:1"
    assert home.client(context="").server == "nats://127.0.0.1:4222"
    assert home.client({"SLOTBUS_CFG_CONTEXT": ""}).server == "nats://127.0.0.1:4222"


def test_flags_and_variables_win_over_the_context_field_by_field(home: Home) -> None:
    home.context("prod", url="nats://prod:1", user="u", password="p", inbox_prefix="_I")
    home.select("prod")
    other = home.client({"NATS_URL": "nats://env:1"})
    assert (other.server, other.user, other.password) == ("nats://env:1", "u", "p")
    assert home.client({"NATS_URL": "nats://env:1"}, server="nats://flag:1").server == (
        "nats://flag:1"
    )
    assert home.client(inbox_prefix="_J").inbox_prefix == "_J"
    assert home.client({"NATS_PASSWORD": "q"}).password == "q"


def test_who_we_are_comes_from_one_source_as_a_whole(home: Home) -> None:
    home.context("prod", user="u", password="p")
    home.select("prod")
    config = home.client({"NATS_CREDS": "x.creds"})
    assert (config.creds_file, config.user, config.password) == ("x.creds", "", "")
    config = home.client({"NATS_CREDS": "x.creds"}, token="t")
    assert (config.token, config.creds_file) == ("t", "")
    config = home.client({"SLOTBUS_CFG_NKEY_FILE": "n", "NATS_USER": "v", "NATS_PASSWORD": "w"})
    assert (config.nkey_file, config.user, config.password) == ("n", "", "")


def test_every_variable_of_the_nats_command_line_is_read(home: Home) -> None:
    names = ("URL", "USER", "PASSWORD", "CERT", "KEY", "CA")
    config = home.client({f"NATS_{name}": name.lower() for name in names})
    assert (config.server, config.user, config.password) == ("url", "user", "password")
    assert (config.tls_cert, config.tls_key, config.tls_ca) == ("cert", "key", "ca")
    assert home.client({"NATS_TOKEN": "t"}).token == "t"
    assert home.client({"NATS_NKEY": "n"}).nkey_file == "n"


def test_a_running_up_comes_after_what_is_said_and_before_the_selected_context(
    home: Home,
) -> None:
    home.context("prod", url="nats://prod:1", user="u", password="p")
    home.select("prod")
    with leave_note("nats://up:1", 1.0, home.environ, root="mine"):
        config = home.client()
        assert (config.server, config.root, config.user) == ("nats://up:1", "mine", "")
        assert home.client(root="other").root == "other"
        named = home.client(context="prod")
        assert (named.server, named.root, named.user) == ("nats://prod:1", "slotbus", "u")


def test_programs_take_contexts_too(home: Home, tmp_path: Path) -> None:
    home.context("prod", url="nats://prod:1", creds="env://CREDS")
    home.select("prod")
    config = load_controller(environ=home.environ)
    assert (config.server, config.creds_file, config.context) == (
        "nats://prod:1", "env://CREDS", "prod",
    )  # fmt: skip
    assert "CREDS" not in repr(config)
    assert load_controller(environ=home.environ, use_selected=False) == ControllerConfig()
    file = tmp_path / "c.toml"
    file.write_text('server = "nats://file:1"\n')
    assert load_controller(file=file, environ=home.environ).server == "nats://file:1"
    file.write_text('context = ""\n')
    assert load_controller(file=file, environ=home.environ).server == ControllerConfig().server
    file.write_text("context = 5\n")
    with pytest.raises(Invalid, match="5, which is no name"):
        load_controller(file=file, environ=home.environ)
    agent = load(AgentConfig, environ=home.environ)
    assert (agent.server, agent.access().creds_file) == ("nats://prod:1", "env://CREDS")
