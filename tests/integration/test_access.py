"""Every way to say who one is, on real servers that ask; and every way to be turned away."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from controller.embedded import EmbeddedServer
from events.connection import Access, ConnectionFailed, connect
from tests.support.secured import Certificates, Operator, make_key


async def works(server: EmbeddedServer | str, **access: str | bool) -> None:
    """A connection can be made, and something can be asked over it."""
    url = server if isinstance(server, str) else server.url
    nc = await connect(url, name="test", access=Access(**access))  # type: ignore[arg-type]
    try:
        await nc.flush(5)
    finally:
        await nc.close()


async def refused(server: EmbeddedServer | str, **access: str | bool) -> ConnectionFailed:
    with pytest.raises(ConnectionFailed) as failed:
        await works(server, **access)
    return failed.value


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


# --- nkeys, tokens, passwords -----------------------------------------------------------------


async def test_an_nkey_from_a_file_a_variable_or_the_setting_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, other = make_key("U"), make_key("U")
    config = f"authorization {{ users: [{{nkey: {key.public}}}] }}"
    async with EmbeddedServer(tmp_path / "nats", config=config) as server:
        path = written(tmp_path / "user.nk", f"# of somebody\n{key.seed}\n")
        await works(server, nkey_file=path)
        monkeypatch.setenv("SEEDS", str(tmp_path))
        await works(server, nkey_file="$SEEDS/user.nk")
        await works(server, nkey_file=f"file://{path}")
        monkeypatch.setenv("MY_SEED", key.seed)
        await works(server, nkey_file="env://MY_SEED")
        data = base64.b64encode(key.seed.encode()).decode()
        await works(server, nkey_file=f"data:;base64,{data}")
        wrong = await refused(server, nkey_file=written(tmp_path / "other.nk", other.seed))
        assert wrong.why == "auth"
        assert (await refused(server)).why == "auth"


async def test_a_token_and_a_user_that_is_one(tmp_path: Path) -> None:
    config = "authorization { token: s3cret }"
    async with EmbeddedServer(tmp_path / "nats", config=config) as server:
        await works(server, token="s3cret")
        await works(server, user="s3cret")
        wrong = await refused(server, token="guess")
        assert (wrong.why, "guess" in wrong.message) == ("auth", False)


@pytest.mark.parametrize(
    ("access", "said"),
    [
        ({"nkey_file": "nowhere.nk"}, "nkey: nowhere.nk can't be read: No such file"),
        ({"nkey_file": "ACCOUNT"}, "is not a user's seed"),
        ({"nkey_file": "NONSENSE"}, "holds no nkey seed"),
        ({"creds_file": "nowhere.creds"}, "creds: nowhere.creds can't be read: No such file"),
        ({"creds_file": "NONSENSE"}, "holds no credentials: it lacks a user JWT"),
        ({"creds_file": "env://NOT_THERE"}, "the variable 'NOT_THERE' is not set"),
        ({"creds_file": "op://vault/item"}, "op: references can't be used: 1Password"),
        ({"creds_file": "nsc://o/a/u"}, "nsc: references can't be used: nsc is not run"),
        ({"creds_file": "ftp://x"}, "none of a path, file://, env:// and data:"),
        ({"creds_file": "data:;base64,%%%"}, "data: reference can't be read"),
        ({"creds_file": "data:"}, "has no content"),
        ({"tls_ca": "NONSENSE"}, "holds no certificate in PEM"),
        ({"tls_ca": "nowhere.pem"}, "tlsca: nowhere.pem can't be read"),
        ({"tls_key": "NONSENSE"}, "a key without its certificate"),
        ({"inbox_prefix": "a.*"}, "the inbox prefix 'a.*' is no plain subject"),
    ],
    ids=lambda value: next(iter(value.items()))[1] if isinstance(value, dict) else "",
)
async def test_what_cannot_be_used_is_said_before_anything_is_sent(
    tmp_path: Path, access: dict[str, str], said: str
) -> None:
    files = {
        "ACCOUNT": written(tmp_path / "account.nk", make_key("A").seed),
        "NONSENSE": written(tmp_path / "nonsense", "-- nothing --\n"),
    }
    found = await refused(
        "nats://127.0.0.1:1", **{name: files.get(value, value) for name, value in access.items()}
    )
    assert found.why == "setup"
    assert said in found.message


# --- operator mode ----------------------------------------------------------------------------


async def test_credentials_under_an_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = Operator()
    async with EmbeddedServer(tmp_path / "nats", config=operator.config()) as server:
        text = operator.creds()
        await works(server, creds_file=written(tmp_path / "user.creds", text))
        monkeypatch.setenv("MY_CREDS", text)
        await works(server, creds_file="env://MY_CREDS")
        stranger = Operator().creds()
        assert (await refused(server, creds_file=written(tmp_path / "s", stranger))).why == "auth"
        old = operator.creds(exp=int(time.time()) - 5)
        expired = await refused(server, creds_file=written(tmp_path / "old", old))
        assert expired.why == "expired", expired.message
        no_seed = text.partition("****")[0]
        lacking = await refused(server, creds_file=written(tmp_path / "half", no_seed))
        assert "it lacks a user's seed" in lacking.message


async def test_an_account_that_takes_no_more_connections(tmp_path: Path) -> None:
    operator = Operator(connections=1)
    async with EmbeddedServer(tmp_path / "nats", config=operator.config()) as server:
        path = written(tmp_path / "user.creds", operator.creds())
        first = await connect(server.url, name="first", access=Access(creds_file=path))
        try:
            # The server often hangs up before its reason is read: then it looks like a
            # refusal of who we are, which is said; sooner or later the reason gets through.
            for _ in range(30):
                full = await refused(server, creds_file=path)
                if full.why == "limit":
                    break
            assert full.why == "limit"
            assert "takes no more connections" in full.message
        finally:
            await first.close()


# --- TLS --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest_asyncio.fixture
async def secure(tmp_path: Path, certificates: Certificates) -> AsyncIterator[EmbeddedServer]:
    config = certificates.server_config()
    async with EmbeddedServer(tmp_path / "secure", config=config) as server:
        yield server


async def test_a_server_whose_certificate_is_trusted(
    secure: EmbeddedServer, certificates: Certificates
) -> None:
    await works(secure, tls_ca=str(certificates.ca))
    await works(secure.url.replace("nats:", "tls:"), tls_ca=str(certificates.ca))


async def test_a_server_whose_certificate_is_not_trusted(
    secure: EmbeddedServer, tmp_path: Path
) -> None:
    other = Certificates(tmp_path / "other")
    for access in ({"tls_ca": str(other.ca)}, {}):
        found = await refused(secure, **access)
        assert found.why == "tls_ca"
        assert "name the CA that signed it (--tlsca)" in found.message


async def test_a_certificate_for_another_name(tmp_path: Path, certificates: Certificates) -> None:
    config = certificates.server_config("elsewhere.example")
    async with EmbeddedServer(tmp_path / "nats", config=config) as server:
        found = await refused(server, tls_ca=str(certificates.ca))
        assert found.why == "tls_name"
        assert "another name" in found.message


async def test_a_server_that_wants_a_certificate(
    tmp_path: Path, certificates: Certificates
) -> None:
    config = certificates.server_config(more="verify: true")
    async with EmbeddedServer(tmp_path / "nats", config=config) as server:
        cert, key = certificates.issue("someone@example.com")
        ca = str(certificates.ca)
        await works(server, tls_ca=ca, tls_cert=str(cert), tls_key=str(key))
        found = await refused(server, tls_ca=ca)
        assert found.why == "tls_wanted"
        assert "--tlscert, --tlskey" in found.message
        _, other = certificates.issue("other@example.com")
        unfit = await refused(server, tls_ca=ca, tls_cert=str(cert), tls_key=str(other))
        assert (unfit.why, "can't be used together" in unfit.message) == ("setup", True)


async def test_tls_before_the_greeting(tmp_path: Path, certificates: Certificates) -> None:
    config = certificates.server_config(more="handshake_first: true")
    async with EmbeddedServer(tmp_path / "nats", config=config) as server:
        await works(server, tls_ca=str(certificates.ca), tls_first=True)


async def test_nothing_is_sent_in_the_clear_where_tls_was_asked_for(
    tmp_path: Path, certificates: Certificates
) -> None:
    config = 'authorization { user: u, password: "s3cret" }\ntrace: true\n'
    async with EmbeddedServer(tmp_path / "nats", config=config) as server:
        found = await refused(server, tls_ca=str(certificates.ca), user="u", password="s3cret")
        assert found.why == "tls_none"
        assert "CONNECT" not in server.log_path.read_text()
        await works(server, user="u", password="s3cret")
        assert "CONNECT" in server.log_path.read_text()


async def test_something_that_is_no_nats_server(tmp_path: Path) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        found = await refused(f"nats://127.0.0.1:{port}")
    assert found.why == "hung_up"
    assert "is it a NATS server?" in found.message
