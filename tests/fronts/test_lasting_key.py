"""The key of stateless resets: what it stays the same through, and what makes it another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pgtrunk_gateway.config.settings import Config
from pgtrunk_gateway.fronts.lasting_key import lasting_key, machine, quic_keys


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "key.pem"
    file.write_bytes(b"a private key")
    return Config(quic_key_file=str(file), quic_listen_addr=("*",), quic_listen_port=6432)


def test_it_is_the_same_after_a_restart(config: Config) -> None:
    key = lasting_key(config, machine())
    assert len(key) == 32
    assert key == lasting_key(replace(config), machine())


@pytest.mark.parametrize("other", [{"quic_listen_port": 6433}, {"quic_listen_addr": ("10.0.0.1",)}])
def test_a_gateway_elsewhere_has_another_one(config: Config, other: dict[str, object]) -> None:
    assert lasting_key(config, b"one") != lasting_key(replace(config, **other), b"one")  # type: ignore[arg-type]
    assert lasting_key(config, b"one") != lasting_key(config, b"other")


def test_with_another_certificate_it_is_another_one(config: Config) -> None:
    before = lasting_key(config, b"one")
    assert config.quic_key_file is not None
    Path(config.quic_key_file).write_bytes(b"another private key")
    assert lasting_key(config, b"one") != before


@pytest.mark.parametrize("other", [{"quic_listen_port": 0}, {"quic_key_file": None}, {"quic_key_file": "/nowhere"}])
def test_where_nothing_lasts_it_is_random(config: Config, other: dict[str, object]) -> None:
    config = replace(config, **other)  # type: ignore[arg-type]
    assert len(lasting_key(config, b"one")) == 32
    assert lasting_key(config, b"one") != lasting_key(config, b"one")


def test_what_seals_is_another_one_each_time(config: Config) -> None:
    before, after = quic_keys(config), quic_keys(config)
    assert before[0] != after[0]
    assert before[-1] == after[-1] == lasting_key(config, machine())
