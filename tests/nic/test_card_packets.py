"""Headers and checksums, against published examples and the kernel's own rules."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from card_packets import ACK, CWR, FIN, PSH, cut, ones_sum, parse
from card_pipe import frames, tcp_frame


def test_the_sum_of_a_published_header() -> None:
    # The example of RFC 1071, section 3, and an IPv4 header whose checksum 0xb861 is widely printed.
    assert ones_sum(bytes.fromhex("0001f203f4f5f6f7")) == 0xDDF2
    header = bytes.fromhex("45000073000040004011b861c0a80001c0a800c7")
    assert ones_sum(header) == 0xFFFF and 0xFFFF ^ ones_sum(header[:10] + header[12:]) == 0xB861
    assert ones_sum(b"\x12\x34\x56") == 0x1234 + 0x5600


@given(st.binary(max_size=300), st.booleans(), st.integers(0, 2**32 - 1), st.integers(0, 255))
def test_what_is_made_is_read(payload: bytes, v6: bool, sequence: int, tos: int) -> None:
    one = parse(tcp_frame(payload, sequence, v6=v6, tos=tos))
    assert one is not None and one.tcp_fits and one.ip_fits
    assert (one.v6, one.sequence, one.traffic_class, one.flags) == (v6, sequence, tos, ACK)
    assert one.data[one.payload :] == payload
    marked = parse(one.changed(payload + b"x", dscp=0x28))
    assert marked is not None and marked.traffic_class == 0x28 | tos & 3 and marked.tcp_fits and marked.ip_fits


@given(st.binary(min_size=1, max_size=5000), st.booleans(), st.integers(1, 1500), st.integers(0, 2**32 - 1))
def test_a_large_packet_is_cut_as_the_segments_would_have_been_sent(payload: bytes, v6: bool, size: int, sequence: int) -> None:
    large = parse(tcp_frame(payload, sequence, v6=v6, flags=ACK | PSH | FIN | CWR))
    assert large is not None
    parts = [parse(part) for part in cut(large, size)]
    plain = frames(payload, range(0, len(payload), size), sequence, v6=v6)
    assert len(parts) == len(plain)
    for number, (part, expected) in enumerate(zip(parts, plain, strict=True)):
        assert part is not None and part.tcp_fits and part.ip_fits and part.sequence == parse(expected).sequence  # type: ignore[union-attr]
        assert part.data[part.payload :] == expected[part.payload :]
        ends = FIN | PSH if number == len(parts) - 1 else 0
        assert part.flags == ACK | ends | (CWR if number == 0 else 0)
        if not v6:
            assert int.from_bytes(part.data[18:20], "big") == 4242 + number


def test_what_is_no_single_tcp_packet() -> None:
    one = tcp_frame(b"abc", 1)
    assert parse(one) is not None
    assert parse(one[:-1]) is parse(one + b"\0") is parse(one[:53]) is parse(b"") is None
    assert parse(one[:23] + b"\x11" + one[24:]) is parse(one[:20] + b"\x20\0" + one[22:]) is None
    assert (
        parse(one[:46] + b"\xf0" + one[47:]) is parse(one[:46] + b"\x40" + one[47:]) is None
    )  # a header longer, or shorter, than can be
