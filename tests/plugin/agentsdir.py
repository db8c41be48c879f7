"""An invented agent as others declare theirs: a manifest in a directory of its own, whose command brings a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.catalog.write import manifest_text

if TYPE_CHECKING:
    from pathlib import Path

# Speaks the protocol, asks its model once, writes the answer into out.txt and tells on stderr what it was given.
PROGRAM = """\
import json, os, sys, urllib.request

home = os.path.expanduser("~/.courier/settings.json")

def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def ask(prompt):
    body = {"model": os.environ["COURIER_MODEL"], "messages": [{"role": "user", "content": prompt}]}
    head = {"Authorization": "Bearer " + os.environ["COURIER_KEY"], "Content-Type": "application/json"}
    url = os.environ["COURIER_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), head)) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

given = {"told": None, "settings": json.load(open(home)), "program": os.path.realpath(sys.argv[1])}
for line in sys.stdin:
    message = json.loads(line)
    result = {}
    if message["method"] == "initialize":
        result = {"protocolVersion": 1, "agentCapabilities": {}}
    elif message["method"] == "session/new":
        result = {"sessionId": "s"}
    elif message["method"] == "session/set_model":
        given["told"] = message["params"]["modelId"]
    elif message["method"] == "session/prompt":
        with open("out.txt", "w") as file:
            file.write(ask(message["params"]["prompt"][0]["text"]))
        with open(home, "w") as file:
            file.write("{}")
        given["environment"] = {name: os.environ.get(name) for name in ("BENCHFLOW_AGENT_HOME", "COURIER_TENANT")}
        print("given " + json.dumps(given), file=sys.stderr, flush=True)
        result = {"stopReason": "end_turn"}
    send(id=message["id"], result=result)
"""

INSTALL = f"""
set -eu
mkdir -p /opt/benchflow/courier "$HOME/.local/bin" ~/.courier
cat >/opt/benchflow/courier/agent.py <<'PY'
{PROGRAM}
PY
cat >"$HOME/.local/bin/courier" <<'SH'
#!/bin/sh
exec python3 /opt/benchflow/courier/agent.py "$0"
SH
chmod +x "$HOME/.local/bin/courier"
echo '{{"made by": "install_cmd"}}' >~/.courier/settings.json
"""

COURIER: dict[str, Any] = {
    "contract_version": "1.0",
    "name": "courier",
    "install_cmd": INSTALL,
    "launch_cmd": 'export PATH="$HOME/.local/bin:$PATH" && exec courier',
    "protocol": "acp",
    "acp_model_format": "provider/model",
    "requires_env": ["COURIER_API_KEY"],
    "home_dirs": [".courier"],
    "aliases": ["courier", "post"],
    "env_mapping": {
        "BENCHFLOW_PROVIDER_BASE_URL": "COURIER_URL",
        "BENCHFLOW_PROVIDER_API_KEY": "COURIER_KEY",
        "BENCHFLOW_PROVIDER_MODEL": "COURIER_MODEL",
    },
}


def declare(directory: Path, **changes: Any) -> Path:
    """Write the courier's manifest with some values changed (None: left out) and return the file."""
    values = {key: value for key, value in (COURIER | changes).items() if value is not None}
    file = directory / "acp" / str(values.get("name")) / "manifest.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(manifest_text(values), "utf-8")
    return file
