"""Run a task's own solution: an agent whose score shows that the task can be solved and its verifier agrees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_benchflow.agents._logs import CappedLog
from pytest_benchflow.contracts import AgentOutcome
from pytest_benchflow.errors import AgentError, SandboxError
from pytest_benchflow.settings import host_variable
from pytest_benchflow.tasks.env import expand_env
from pytest_benchflow.tasks.shebang import interpreter

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.contracts import AgentContext, Backend, ExecResult, Mount
    from pytest_benchflow.tasks.task import Step, Task

SCRIPT = "solve.sh"


class Oracle:
    """An agent that runs solution/solve.sh; the solution is in the sandbox only meanwhile."""

    name = "oracle"
    version: str | None = None
    uses_model = False
    api_dialect: str | None = None

    def unsupported(self, task: Task) -> str | None:
        """Return why there is nothing to run, None when each step of the task has a solution."""
        missing = next((step for step in task.steps if _script(step) is None), None)
        if missing is None:
            return None
        which = f"step {missing.name} of {task.name}" if missing.name else task.name
        return f"{which} has no solution; oracle runs solution/{SCRIPT}, for example {task.path}/solution/{SCRIPT}"

    async def install(self, backend: Backend, task: Task, log_dir: Path) -> tuple[Mount, ...]:
        """Install nothing."""
        del backend, task, log_dir
        return ()

    async def run(self, context: AgentContext) -> AgentOutcome:
        """Run the step's solution as the agent's user. Raises: AgentError when there is none, SandboxError."""
        solution = _script(next(step for step in context.task.steps if step.name == context.step))
        if solution is None:
            raise AgentError(str(self.unsupported(context.task)))
        target, sandbox = context.task.solution_target, context.sandbox
        context.events.append({"type": "user_message", "text": context.instruction})
        await sandbox.upload(solution.parent, target)
        try:
            done = await sandbox.exec(
                [*interpreter(solution), f"{target}/{SCRIPT}"],
                env={**context.env, **expand_env(context.task.solution_env, host_variable)},
                cwd=sandbox.workdir,
                user=context.user,
                timeout=context.timeout_sec,
            )
            # Before anything else is asked of the sandbox, which may be lost by now.
            _keep(context, done.stdout, done.stderr)
        except SandboxError as error:
            _keep(context, *error.said)
            raise
        finally:
            await sandbox.remove(target)
        return _judge(context, done)


def _script(step: Step) -> Path | None:
    return step.solution / SCRIPT if step.solution and (step.solution / SCRIPT).is_file() else None


def _keep(context: AgentContext, stdout: str, stderr: str) -> None:
    for name, text in (("stdout.txt", stdout), ("stderr.txt", stderr)):
        with CappedLog(context.log_dir / name) as log:
            log.write(str(context.redact(text)).encode())


def _judge(context: AgentContext, done: ExecResult) -> AgentOutcome:
    if done.timed_out:
        limit = {"reason": "timeout", "timeout_sec": context.timeout_sec, "pending_tool_call_ids": []}
        context.events.append({"type": "agent_timeout", **limit, "terminal_trajectory_complete": True})
        outcome = AgentOutcome(stop="timeout", in_flight_at_timeout=f"solution/{SCRIPT}")
    else:
        # Many solutions end with the status of their last grep: the verifier decides, not the exit code.
        outcome = AgentOutcome(stop="finished", stop_reason=f"exit code {done.exit_code}")
    context.events.append({"type": "stop", "outcome": outcome.stop, "stop_reason": outcome.stop_reason, "error": None})
    return outcome


def agent(name: str) -> Oracle:
    """Return the agent."""
    del name
    return Oracle()
