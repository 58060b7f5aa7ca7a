"""Headers of NATS messages: ours are read as nats-py reads them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from events.connection import _Swift

names = st.one_of(
    st.sampled_from(
        [b"Nats-Msg-Id", b" padded\t", b"two words", b"", b"a\x1cb", b"\x1f", b"\xc3\xa4"]
    ),
    st.binary(max_size=6),
)
lines = st.builds(lambda name, colon, value: name + colon + value, names, st.sampled_from(
    [b":", b": ", b""]
), st.binary(max_size=8))  # fmt: skip


@given(st.lists(lines, max_size=6), st.sampled_from([b"\r\n", b"\r\n\r\n", b""]))
def test_any_block_of_headers_means_what_it_means_to_nats_py(
    block: list[bytes], end: bytes
) -> None:
    raw = b"\r\n".join(block) + end
    assert _Swift._parse_header_lines(raw) == Client._parse_header_lines(raw)
