"""The manifests: valid by Kubernetes' own schemas, and agreeing with each other and with the gateway.

Nothing here needs a cluster or a network: the schemas come with kubernetes-validate.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import kubernetes_validate
import pytest
import yaml

from pgtrunk_gateway.config import load

if TYPE_CHECKING:
    from pgtrunk_gateway.config import Loaded

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "deploy" / "kubernetes"
FILES: Final = sorted(FOLDER.glob("*.yaml"))
VERSION: Final = "1.30"
"""Of Kubernetes: one of several years, since clusters are."""
Manifest = dict[str, Any]


class StrictLoader(yaml.SafeLoader):
    """YAML lets a key come twice, and the last one wins: here that is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        assert not twice, f"{node.start_mark}: {twice} more than once"
        return super().construct_mapping(node, deep)


def documents(path: Path) -> list[Manifest]:
    with path.open() as file:
        return list(yaml.load_all(file, StrictLoader))


OBJECTS: Final = [each for path in FILES for each in documents(path) if each["kind"] != "Kustomization"]


def the(kind: str, name: str = "pgtrunk") -> Manifest:
    (found,) = (each for each in OBJECTS if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


POD: Final = the("StatefulSet")["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
REPLICAS: Final = the("StatefulSet")["spec"]["replicas"]


# -- each by itself


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_files_are_tidy(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("---\n")
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    for number, line in enumerate(text.splitlines(), 1):
        assert "\t" not in line, number
        assert line == line.rstrip(), number
        assert len(line) <= 120, number
        # Inside of a text it is the text's own affair.
        if line.strip() and not _is_in_a_text(text, number):
            assert (len(line) - len(line.lstrip())) % 2 == 0, number


def _is_in_a_text(text: str, number: int) -> bool:
    """Whether a line stands in a block that begins with "|"."""
    lines = text.splitlines()
    depth = len(lines[number - 1]) - len(lines[number - 1].lstrip())
    for line in reversed(lines[: number - 1]):
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent < depth:
            if line.rstrip().endswith("|"):
                return True
            depth = indent
    return False


@pytest.mark.parametrize("manifest", OBJECTS, ids=lambda each: f"{each['kind']} {each['metadata']['name']}")
def test_kubernetes_schemas(manifest: Manifest) -> None:
    kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_a_schema_that_is_not_met_is_noticed() -> None:
    manifest = {**the("PodDisruptionBudget"), "spec": {"maxUnavailable": 1, "selectr": {}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_all_files_are_applied() -> None:
    (kustomization,) = documents(FOLDER / "kustomization.yaml")
    assert {*kustomization["resources"], "kustomization.yaml"} == {path.name for path in FILES}


def test_there_are_no_secrets_in_git() -> None:
    assert "Secret" not in {each["kind"] for each in OBJECTS}
    texts = {path: path.read_text() for path in (ROOT / "deploy").rglob("*") if path.is_file()}
    assert not [path for path, text in texts.items() if "PRIVATE KEY" in text or "password" in text.lower()]


# -- as a whole


def test_selectors_select_the_pods() -> None:
    labels = the("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    selectors = [
        the("StatefulSet")["spec"]["selector"]["matchLabels"],
        the("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        the("Service")["spec"]["selector"],
        the("Service", "pgtrunk-peers")["spec"]["selector"],
        *(each["labelSelector"]["matchLabels"] for each in POD["topologySpreadConstraints"]),
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)


def test_services_lead_to_ports_of_the_container() -> None:
    ports = {(port["name"], port["protocol"]): port["containerPort"] for port in CONTAINER["ports"]}
    for service in ("pgtrunk", "pgtrunk-peers"):
        for port in the("Service", service)["spec"]["ports"]:
            assert ports[port["targetPort"], port["protocol"]] == port["port"]
    protocols = {port["protocol"] for port in the("Service")["spec"]["ports"]}
    assert protocols == {"TCP", "UDP"}
    assert the("Service")["spec"]["externalTrafficPolicy"] == "Local"
    assert CONTAINER["readinessProbe"]["tcpSocket"]["port"] in {name for name, _ in ports}


def test_mounts_have_volumes_and_volumes_are_mounted() -> None:
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    assert {mount["name"] for mount in CONTAINER["volumeMounts"]} == set(volumes)
    assert volumes["configuration"]["configMap"]["name"] == the("ConfigMap")["metadata"]["name"]
    (mount,) = (each for each in CONTAINER["volumeMounts"] if each["name"] == "configuration")
    assert mount["subPath"] in the("ConfigMap")["data"]
    # Keys that others may read are a warning of the gateway's.
    assert {volumes[name]["secret"]["defaultMode"] for name in ("users", "tls")} == {0o440}


def test_nobody_is_root_or_can_become_it() -> None:
    assert POD["securityContext"]["runAsNonRoot"]
    assert POD["securityContext"]["runAsUser"] == POD["securityContext"]["fsGroup"] != 0
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert f"USER {POD['securityContext']['runAsUser']}:" in (ROOT / "deploy" / "Containerfile").read_text()
    assert POD["automountServiceAccountToken"] is False


def test_a_pod_less_at_a_time() -> None:
    assert the("PodDisruptionBudget")["spec"]["maxUnavailable"] < REPLICAS


def test_the_container_has_what_it_runs() -> None:
    text = (ROOT / "deploy" / "Containerfile").read_text()
    copied = re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE)
    assert all((ROOT / name).exists() for names in copied for name in names.split())
    assert "pgtrunk-gateway" in text


# -- what the gateway makes of it


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """By each path of a mount its folder in this test, with what would be in it."""
    found = {}
    for mount in CONTAINER["volumeMounts"]:
        found[mount["mountPath"]] = tmp_path / mount["name"]
    for path in found.values():
        path.mkdir()
    for name in ("userlist.txt",):
        _private(found["/etc/pgtrunk/users"] / name)
    for name in ("tls.crt", "tls.key"):
        _private(found["/etc/pgtrunk/tls"] / name)
    return found


def _private(path: Path) -> None:
    path.touch(mode=0o600)


def moved(text: str, places: dict[str, Path]) -> str:
    """The same with the folders of this test."""
    for path in sorted(places, key=len, reverse=True):
        text = text.replace(path, str(places[path]))
    return text


def load_as(ordinal: int, places: dict[str, Path], tmp_path: Path) -> Loaded:
    """What the replica with this ordinal loads, once its command has run up to the gateway."""
    command, *_ = CONTAINER["args"]
    script = "\n".join(line for line in moved(command, places).splitlines() if not line.startswith("exec "))
    environment = {"HOSTNAME": f"pgtrunk-{ordinal}", "PATH": "/usr/bin:/bin"}
    subprocess.run([*CONTAINER["command"], script], check=True, env=environment, timeout=20)
    ini = tmp_path / "gateway.ini"
    ini.touch(mode=0o600)
    ini.write_text(moved(the("ConfigMap")["data"]["gateway.ini"], places))
    return load(ini)


def test_each_replica_loads_its_ini_and_is_a_peer_of_the_others(places: dict[str, Path], tmp_path: Path) -> None:
    for ordinal in range(REPLICAS):
        loaded = load_as(ordinal, places, tmp_path)
        config = loaded.config
        assert not [str(remark) for remark in loaded.remarks if remark.serious]
        assert config.peer_id == ordinal + 1
        service = the("StatefulSet")["spec"]["serviceName"]
        assert {peer: each.host for peer, each in config.peers.items()} == {
            each + 1: f"pgtrunk-{each}.{service}" for each in range(REPLICAS)
        }


def test_ports_folders_and_times_agree(places: dict[str, Path], tmp_path: Path) -> None:
    config = load_as(0, places, tmp_path).config
    ports = {port["protocol"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert (config.listen_port, config.quic_listen_port) == (ports["TCP"], ports["UDP"])
    assert {peer.port for peer in config.peers.values()} == {ports["TCP"]}
    assert config.unix_socket_dir == str(places["/run/pgtrunk"])
    (_, waits) = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert POD["terminationGracePeriodSeconds"] >= config.shutdown_timeout + int(waits) + 10
    affinity = the("Service")["spec"]["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"]
    assert affinity > config.quic_idle_timeout


def test_sessions_go_where_they_can_write(places: dict[str, Path], tmp_path: Path) -> None:
    databases = load_as(0, places, tmp_path).config.databases
    assert databases["shop"].session_attrs == "read-write"
    assert databases["shop_ro"].session_attrs == "prefer-standby"
    assert len(databases["shop"].places) == 2
    # What stands there as another way would do as well.
    text = the("ConfigMap")["data"]["gateway.ini"]
    (other,) = re.findall(r"^; (shop = patroni=.*)$", text, re.MULTILINE)
    ini = tmp_path / "other.ini"
    ini.touch(mode=0o600)
    ini.write_text(f"[databases]\n{other}\n[pgtrunk]\nauth_type = trust\nlisten_addr = *\nunix_socket_dir =\n")
    assert len(load(ini).config.databases["shop"].patroni) == 2


def probe(places: dict[str, Path]) -> subprocess.CompletedProcess[str]:
    """What liveness is asked by, with the folders of this test."""
    _, *command = CONTAINER["livenessProbe"]["exec"]["command"]
    command = [moved(part, places) for part in command]
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=30, check=False)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """A gateway on the unix socket of the manifests, in a short place."""
    folder = tmp_path / "run"
    folder.mkdir()
    ini = tmp_path / "gateway.ini"
    ini.write_text(
        "[databases]\nx = host=127.0.0.1\n[pgtrunk]\nauth_type = trust\n"
        f"unix_socket_dir = {folder}\nlisten_port = 6432\n"
    )
    process = subprocess.Popen([sys.executable, "-m", "pgtrunk_gateway", str(ini)], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "process up" in line:
                break
        yield {"/run/pgtrunk": folder}
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_liveness_is_an_answer(running: dict[str, Path], tmp_path: Path) -> None:
    alive = probe(running)
    assert alive.returncode == 0, alive.stderr
    assert probe({"/run/pgtrunk": tmp_path}).returncode != 0
