"""Find what an installation needs from the host: an interpreter, and how packages are fetched here."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pytest_benchflow.contracts import Mount
from pytest_benchflow.settings import host_variable

# What says where packages come from. Settings that say where they go, or change what is installed, stay behind; so do
# proxies, which a sandbox's own way out goes through where the host has one: their URLs may hold a password.
_SOURCES = (
    *("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "NO_INDEX", "CONSTRAINT"),
    *("CERT", "CLIENT_CERT", "TRUSTED_HOST", "DEFAULT_TIMEOUT", "RETRIES"),
)
_PASSED = (
    *(f"PIP_{name}" for name in _SOURCES),
    *(f"UV_{name}" for name in ("DEFAULT_INDEX", "INDEX", "INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "NO_INDEX")),
    *(f"UV_{name}" for name in ("CONSTRAINT", "INDEX_STRATEGY", "INSECURE_HOST", "NATIVE_TLS", "HTTP_TIMEOUT")),
    *("UV_PYTHON_INSTALL_MIRROR", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    "NODE_EXTRA_CA_CERTS",
)
# uv reads none of pip's settings: these say the same to both.
_SAME_FOR_UV = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_NO_INDEX": "UV_NO_INDEX",
    "PIP_CONSTRAINT": "UV_CONSTRAINT",
    "PIP_TRUSTED_HOST": "UV_INSECURE_HOST",
    "PIP_DEFAULT_TIMEOUT": "UV_HTTP_TIMEOUT",
    "PIP_CERT": "SSL_CERT_FILE",
}
# A user, a query, or a part of the path that looks made at random.
_HOLDS_A_SECRET = re.compile(r"@|\?|/(?=[^/]*\d)[A-Za-z0-9_-]{16,}(?:/|\Z)")
_PROBE = "import sys; print(sys.base_prefix); print('%d.%d' % sys.version_info[:2])"


def find_python(version: str) -> Path | None:
    """Return an interpreter of that version (as "3.12") that really runs, None when this host has none."""
    name = f"python{version}"
    # A version manager's shim may be on PATH without any version behind it: each candidate is run.
    found = [Path(path) for path in (shutil.which(name), sys.executable) if path]
    for pattern in (f".pyenv/versions/{version}*/bin/{name}", f".local/share/uv/python/cpython-{version}*/bin/{name}"):
        found += sorted(Path.home().glob(pattern), reverse=True)
    for candidate in found:
        base = _base_interpreter(candidate, version)
        if base is not None:
            return base
    return None


def _base_interpreter(candidate: Path, version: str) -> Path | None:
    try:
        done = subprocess.run([candidate, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.split("\n")
    if done.returncode != 0 or lines[1:2] != [version]:
        return None
    base = Path(lines[0], "bin", f"python{version}")
    return base if base.is_file() else None


def python_mounts(interpreter: Path | None) -> tuple[Mount, ...]:
    """Return what makes an interpreter usable inside at its own path; one under /usr is there already."""
    if interpreter is None or interpreter.is_relative_to("/usr"):
        return ()
    prefix = interpreter.parent.parent
    return (Mount(prefix, str(prefix)),)


def package_sources() -> tuple[dict[str, str], tuple[Mount, ...]]:
    """Return variables that tell pip, uv and npm where this host gets its packages, and the local paths they name.

    They are for an installation only and never reach a rollout.
    """
    env = _pip_files() | {name: value for name in _PASSED if (value := host_variable(name))}
    for pip, uv in _SAME_FOR_UV.items():
        if pip in env:
            env.setdefault(uv, ",".join(env[pip].split()) if uv == "UV_FIND_LINKS" else env[pip])
    if "PIP_EXTRA_INDEX_URL" in env:
        # As pip does: the best version of any index, not the first index that knows the name.
        env.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    if registry := _npm_registry():
        env["npm_config_registry"] = registry
    config = host_variable("UV_CONFIG_FILE") or str(Path.home() / ".config/uv/uv.toml")
    if Path(config).is_file():
        env["UV_CONFIG_FILE"] = config
    return env, tuple(Mount(path, str(path)) for path in _local_paths(env))


def public_sources() -> dict[str, str]:
    """Return variables that name this host's package indexes, as far as they are on the network and hold no secret."""
    names = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT", "npm_config_registry")
    env, _ = package_sources()
    found = {}
    for name in names:
        words = env.get(name, "").split()
        if name.endswith(("_URL", "registry")):
            words = [word for word in words if re.match("https?://", word) and not _HOLDS_A_SECRET.search(word)]
        if words:
            found[name] = " ".join(words)
    if "PIP_INDEX_URL" in found:
        found["UV_DEFAULT_INDEX"] = found["PIP_INDEX_URL"]
    return found


def _pip_files() -> dict[str, str]:
    """Return pip's configuration files as the variables that say the same; later files win."""
    home = Path.home()
    shared = [Path(place, "pip/pip.conf") for place in os.environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")]
    user = [home / ".pip/pip.conf", Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config", "pip/pip.conf")]
    named = [Path(path)] if (path := host_variable("PIP_CONFIG_FILE")) else []
    found: dict[str, str] = {}
    for file in (*shared, Path("/etc/pip.conf"), *user, Path(sys.prefix, "pip.conf"), *named):
        parser = configparser.RawConfigParser()
        try:
            parser.read(file)
        except configparser.Error:
            continue
        for section in ("global", "install"):
            for key, value in parser.items(section) if parser.has_section(section) else ():
                name = key.upper().replace("-", "_")
                if name in _SOURCES:
                    found[f"PIP_{name}"] = " ".join(value.split())
    return found


def _npm_registry() -> str | None:
    """Return the registry that npm uses here, None for its own."""
    for name in ("npm_config_registry", "NPM_CONFIG_REGISTRY"):
        if value := host_variable(name):
            return value
    file = Path(host_variable("NPM_CONFIG_USERCONFIG") or Path.home() / ".npmrc")
    text = file.read_text("utf-8", errors="replace") if file.is_file() else ""
    found = re.findall(r"^\s*registry\s*=\s*[\"']?(https?://[^\s\"'$]+)", text, re.MULTILINE)
    return found[-1] if found else None


def _local_paths(env: dict[str, str]) -> list[Path]:
    paths: dict[Path, None] = {}
    for name, value in env.items():
        for word in re.split(r"[\s,]+", value):
            path = Path(word.removeprefix("file://"))
            if not path.is_absolute() or not path.exists():
                continue
            # The pages of a local index link to files beside it.
            beside = "INDEX" in name and len(path.parent.parts) > 2
            paths[path.parent if beside else path] = None
    return [path for path in paths if not any(other != path and path.is_relative_to(other) for other in paths)]
