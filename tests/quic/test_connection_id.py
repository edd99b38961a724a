from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk.quic.config import CID_LENGTH
from pgtrunk_gateway.quic.connection_id import ConnectionIds, bucket_of, generation_of


@given(st.binary(min_size=CID_LENGTH, max_size=CID_LENGTH), st.sets(st.integers(0, 255), min_size=1), st.integers(0, 3))
def test_an_id_leads_to_its_worker(entropy: bytes, buckets: set[int], generation: int) -> None:
    issued = ConnectionIds(lambda _: entropy, buckets=sorted(buckets), generation=generation)()
    assert len(issued) == CID_LENGTH
    assert bucket_of(issued) in buckets
    assert generation_of(issued) == generation


def test_every_bucket_is_used_evenly() -> None:
    ids = ConnectionIds(os.urandom, buckets=range(3, 256, 4))
    seen = [bucket_of(ids()) for _ in range(20_000)]
    assert set(seen) == set(range(3, 256, 4))
    assert max(map(seen.count, set(seen))) < 2 * min(map(seen.count, set(seen)))


def test_the_rest_is_random() -> None:
    ids = ConnectionIds(os.urandom, buckets=[7], generation=2)
    assert len({ids() for _ in range(1000)}) == 1000


@pytest.mark.parametrize(("generation", "octet"), [(0, 0x3F), (1, 0x7F), (2, 0xBF), (3, 0xFF)])
def test_the_layout_is_fixed(generation: int, octet: int) -> None:
    issued = ConnectionIds(lambda size: b"\xff" * size, buckets=[5], generation=generation)()
    assert issued == bytes([0xFF, 5, octet, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF])
