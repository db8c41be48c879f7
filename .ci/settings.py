"""Let an OpenHands SDK read the settings that our launch_cmd writes, and write them again, in an environment with it.

PYTHON .ci/settings.py CATALOGUE_FILE VERSION
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

# The SDK greets on standard output, and asks for a map of prices.
os.environ |= {"OPENHANDS_SUPPRESS_BANNER": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

from openhands.sdk import Agent

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def launched(command: str, home: Path, **env: str) -> str:
    """Return what a launch writes whose agent ends at once."""
    programs = home / "agent/venv/bin"
    programs.mkdir(parents=True, exist_ok=True)
    for name, target in (("python", sys.executable), ("openhands", "/bin/true")):
        if not (programs / name).exists():
            (programs / name).symlink_to(target)
    base = {"PATH": "/usr/bin:/bin", "HOME": str(home), "BENCHFLOW_AGENT_DIR": str(home / "agent")}
    base |= {"LLM_API_KEY": "key", "LLM_BASE_URL": "http://gateway/v1", "BENCHFLOW_PROVIDER_MODEL": "m"}
    subprocess.run(["sh", "-c", command], env=base | env, check=True)
    return (home / ".openhands/agent_settings.json").read_text("utf-8")


def changed(wanted: Any, found: Any, place: str = "") -> list[str]:
    """Return the places at which something that was written comes back as something else."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return [line for key in wanted for line in changed(wanted[key], found.get(key), f"{place}.{key}")]
    return [] if wanted == found else [f"{place.lstrip('.')} was {wanted!r} and is {found!r}"]


def main() -> str | None:
    """Return what is wrong, None: nothing."""
    file, wanted = sys.argv[1:]
    found = version("openhands-sdk")
    if found != wanted:
        return f"this environment has openhands-sdk {found}, not {wanted}"
    command = tomllib.loads(Path(file).read_text("utf-8"))["launch_cmd"]
    for effort in EFFORTS:
        with tempfile.TemporaryDirectory() as directory:
            env = {"LLM_TIMEOUT": "115200", "LLM_REASONING_EFFORT": effort, "OPENHANDS_SUBAGENTS": "off"}
            text = launched(command, Path(directory), **env)
        again = Agent.model_validate_json(text).model_dump_json(context={"expose_secrets": True})
        if wrong := changed(json.loads(text), json.loads(again)):
            return f"effort {effort}: {'; '.join(wrong)}"
    try:
        Agent.model_validate_json(text.replace('"reasoning_effort": null', '"reasoning_effort": "max"'))
    except ValueError:
        print(f"openhands-sdk {found}: {len(EFFORTS)} settings come back as they were written, a typed max is refused")
        return None
    return "a reasoning_effort of max is taken as it is now: the launch_cmd need not write it in another place"


if __name__ == "__main__":
    sys.exit(main())
