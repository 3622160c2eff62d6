"""HTTP from bytes, in whatever pieces they come."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_airflow.agent import wire

WORD = "0123abcd"
JSON = st.dictionaries(st.text(), st.integers() | st.text() | st.none() | st.booleans())


@given(document=JSON, cuts=st.lists(st.integers(1, 40)))
def test_a_request_survives_any_cutting(document, cuts):
    data = wire.post("/v1/go?replica=worker-1&why=a%20b+c", document, token=WORD)
    buffer, found = bytearray(), []
    while data:
        size = cuts.pop() if cuts else len(data)
        buffer += data[:size]
        data = data[size:]
        request = wire.read_request(buffer)
        if request:
            found.append(request)
    (request,) = found
    assert (request.method, request.path, request.body) == ("POST", "/v1/go", document)
    assert request.query == {"replica": "worker-1", "why": "a b c"}
    assert request.headers["x-ffdl-token"] == WORD
    assert buffer == b""


@given(document=JSON, status=st.sampled_from(sorted(wire.REASONS)))
def test_a_response_is_read_as_it_was_written(document, status):
    buffer = bytearray(wire.response(status, document) + b"HTTP")
    assert wire.read_response(buffer) == (status, document)
    assert buffer == b"HTTP"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET / SPDY/1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n[1]", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n{1}", 400),
        (b"x" * 20000, 413),
    ],
)
def test_what_is_no_request_is_refused(data, status):
    with pytest.raises(wire.WireError) as caught:
        wire.read_request(bytearray(data))
    assert caught.value.status == status


@given(data=st.binary(max_size=200))
def test_no_bytes_break_the_reader(data):
    with contextlib.suppress(wire.WireError):
        wire.read_request(bytearray(data))
