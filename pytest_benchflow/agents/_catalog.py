"""Run an agent that a catalogue manifest describes: environment in, ACP on stdio out."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_benchflow.agents._acp import drive
from pytest_benchflow.agents._mcp import environment as servers_variable
from pytest_benchflow.agents._mcp import unreachable, unused
from pytest_benchflow.agents._place import agent_dir
from pytest_benchflow.agents._settings import settings_kept
from pytest_benchflow.catalog.load import find
from pytest_benchflow.contracts import INSTALL_HOME, Installation
from pytest_benchflow.errors import UsageError
from pytest_benchflow.settings import EFFORT_VARIABLE

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.catalog.load import Manifest
    from pytest_benchflow.contracts import AgentContext, AgentOutcome, Backend, Mount
    from pytest_benchflow.tasks.task import Task

# Wire formats whose clients expect the version in the base URL.
_VERSIONED = ("chat", "responses")

# What the gateway is called where an agent gives its providers names.
PROVIDER = "benchflow"

# Programs and settings that the installation left in its own HOME are found in this one; what is there already stays.
_BRING_HOME = f"""\
installed={INSTALL_HOME}
if [ -d "$installed/.local/bin" ]; then
  mkdir -p "$HOME/.local/bin"
  for program in "$installed"/.local/bin/*; do
    link=$HOME/.local/bin/${{program##*/}}
    [ ! -e "$program" ] || [ -e "$link" ] || [ -L "$link" ] || ln -s "$program" "$link"
  done
fi
bring_home() {{
  if [ -d "$installed/$1" ] && [ ! -e "$HOME/$1" ] && [ ! -L "$HOME/$1" ]; then
    mkdir -p "$(dirname "$HOME/$1")" && cp -R "$installed/$1" "$HOME/$1" && chmod -R u+w "$HOME/$1"
  fi
}}
"""

# Skills are linked to where the agent looks for them; a directory of the task's own is left alone.
_LINK_SKILLS = """\
link=$1
if [ ! -e "$link" ] && [ ! -L "$link" ]; then
  mkdir -p "$(dirname "$link")" && ln -s "$BENCHFLOW_SKILLS_DIR" "$link"
fi
"""


class CatalogAgent:
    """An agent whose manifest says all there is to say."""

    uses_model = True

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.name = manifest.name
        self.version = manifest.host.version
        self.api_dialect = manifest.dialect

    def unsupported(self, task: Task) -> str | None:
        """Return why the agent cannot be given the task's tool servers, None when it can or there are none."""
        servers = task.environment.mcp_servers
        return unreachable(servers) if self.manifest.host.mcp_servers else unused(servers, self.name)

    async def install(self, backend: Backend, task: Task, log_dir: Path) -> tuple[Mount, ...]:
        """Run install_cmd once per version and image, and return what it made. Raises: AgentError."""
        return await backend.install(self._installation(), task, log_dir / "install.log")

    def _installation(self) -> Installation:
        manifest, inside = self.manifest, agent_dir(self.name)
        env = {"BENCHFLOW_AGENT_DIR": inside}
        if manifest.host.version:
            env["BENCHFLOW_AGENT_VERSION"] = manifest.host.version
        return Installation(
            name=self.name,
            version=manifest.host.version,
            script=f"mkdir -p {shlex.quote(inside)}\n{manifest.install_cmd}",
            timeout_sec=manifest.install_timeout,
            env=env,
            python=manifest.host.python,
        )

    async def run(self, context: AgentContext) -> AgentOutcome:
        """Launch the agent for one prompt. Raises: SandboxError."""
        process = await context.sandbox.spawn(
            ["sh", "-c", self._script(context)],
            env=self.environment(context),
            cwd=context.sandbox.workdir,
            user=context.user,
        )
        host = self.manifest.host
        outcome = await drive(
            process,
            context,
            start_sec=host.start_timeout,
            model_id=self._model_id(context.model),
            servers=() if host.mcp_environment else None,
        )
        return replace(outcome, settings=await settings_kept(context, host, self.environment(context)))

    def environment(self, context: AgentContext) -> dict[str, str]:
        """Return the variables the agent starts with; the user's own come last and win."""
        base = context.base_url or ""
        env = {
            "BENCHFLOW_AGENT_DIR": agent_dir(self.name),
            "BENCHFLOW_PROVIDER_BASE_URL": f"{base}/v1" if base and self.api_dialect in _VERSIONED else base,
            "BENCHFLOW_PROVIDER_API_KEY": context.token or "",
            "BENCHFLOW_PROVIDER_MODEL": context.model,
            # Under this name launchers of benchflow-ai/agents register a model that their agent has never heard of.
            "BENCHFLOW_LITELLM_MODEL_ALIAS": context.model,
            "BENCHFLOW_PROVIDER_NAME": PROVIDER,
            "BENCHFLOW_PROVIDER_PROTOCOL": self.manifest.spoken_protocol,
            "BENCHFLOW_LLM_TIMEOUT": str(math.ceil(context.llm_timeout_sec)),
        }
        if context.reasoning_effort:
            env["BENCHFLOW_REASONING_EFFORT"] = context.reasoning_effort
        if context.skills_dir:
            env["BENCHFLOW_SKILLS_DIR"] = context.skills_dir
        if self.manifest.host.mcp_environment:
            env |= servers_variable(context.task.environment.mcp_servers)
        env |= {theirs: env[ours] for ours, theirs in self.manifest.env_mapping.items() if ours in env}
        env |= context.env
        if context.reasoning_effort and EFFORT_VARIABLE in context.env:
            # The same effort, but launch commands know it in the spelling of the option alone.
            env[EFFORT_VARIABLE] = context.reasoning_effort
        return env

    def _model_id(self, model: str) -> str | None:
        """Return how the agent is told its model by the protocol, None: it takes it from the environment."""
        if not self.manifest.supports_acp_set_model:
            return None
        return model if self.manifest.acp_model_format == "bare" else f"{PROVIDER}/{model}"

    def _skill_places(self) -> tuple[str, ...]:
        """Return where skills are linked: in the workspace, which a verifier may judge, only as a last resort."""
        paths = self.manifest.skill_paths
        return tuple(path for path in paths if path.startswith("$HOME/")) or paths

    def _script(self, context: AgentContext) -> str:
        lines = [
            f"WORKSPACE={shlex.quote(context.sandbox.workdir)}",
            'export BENCHFLOW_AGENT_HOME="$HOME"',
            _BRING_HOME,
        ]
        lines += [f"bring_home {shlex.quote(path)}" for path in self.manifest.home_dirs]
        if context.skills_dir:
            lines.append(f"link_skills() {{\n{_LINK_SKILLS}}}")
            lines += [f'link_skills "{path}"' for path in self._skill_places()]
        return "\n".join([*lines, self.manifest.launch_cmd])


def agent(name: str) -> CatalogAgent:
    """Return the agent of a shipped manifest, in the version after an @ where there is one. Raises: UsageError."""
    manifest = find(name)
    if manifest is None:
        raise UsageError(f"agents: the catalogue has no {name}.toml")
    _, at, version = name.partition("@")
    offered = tuple(dict.fromkeys([*filter(None, [manifest.host.version]), *manifest.host.versions]))
    if at and version not in offered:
        known = f"it comes in: {', '.join(offered)}" if offered else "it comes in one version only"
        raise UsageError(f"agents: {manifest.name} has no version {version!r}; {known}")
    return CatalogAgent(replace(manifest, host=replace(manifest.host, version=version)) if at else manifest)
