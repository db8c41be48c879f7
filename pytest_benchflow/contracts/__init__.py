"""The contracts between the rooms: what a sandbox, an agent, a model, a wire format and an exporter must offer."""

from __future__ import annotations

from pytest_benchflow.contracts.agent import (
    Agent,
    AgentContext,
    AgentOutcome,
    ClientPolicy,
)
from pytest_benchflow.contracts.dialect import (
    Dialect,
    Outcome,
    Role,
    ToolCall,
    Turn,
)
from pytest_benchflow.contracts.export import (
    Conversation,
    ExchangeFacts,
    Exporter,
)
from pytest_benchflow.contracts.model import (
    Endpoint,
    EndpointReport,
    ModelRequest,
    ModelResponse,
    Upstream,
)
from pytest_benchflow.contracts.sandbox import (
    INSTALL_HOME,
    INSTALL_ROOT,
    Backend,
    Capabilities,
    ExecResult,
    Installation,
    Mount,
    Network,
    PhaseName,
    Process,
    Remain,
    Sandbox,
    SandboxSpec,
)

__all__ = [
    "INSTALL_HOME",
    "INSTALL_ROOT",
    "Agent",
    "AgentContext",
    "AgentOutcome",
    "Backend",
    "Capabilities",
    "ClientPolicy",
    "Conversation",
    "Dialect",
    "Endpoint",
    "EndpointReport",
    "ExchangeFacts",
    "ExecResult",
    "Exporter",
    "Installation",
    "ModelRequest",
    "ModelResponse",
    "Mount",
    "Network",
    "Outcome",
    "PhaseName",
    "Process",
    "Remain",
    "Role",
    "Sandbox",
    "SandboxSpec",
    "ToolCall",
    "Turn",
    "Upstream",
]
