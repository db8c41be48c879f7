"""Tell what really went to a provider for a translated request, and what came back."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pytest_benchflow.dialects._match import dialect_for, recorded_dialect
from pytest_benchflow.dialects.chat import dialect as chat
from pytest_benchflow.records.jsontext import loads
from pytest_benchflow.records.values import mapping

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_benchflow.contracts import Dialect
    from pytest_benchflow.proxy._litellm_wire import Call

_REQUEST_IDS = ("x-request-id", "request-id", "x-amzn-requestid", "apim-request-id", "x-goog-request-id", "cf-ray")
_PASSED_ON = ("retry-after", "retry-after-ms", "x-should-retry", *_REQUEST_IDS)
_LIMITS = re.compile(r"(?:x|anthropic)-ratelimit-")
_SECRET = re.compile(r"key|token|secret|credential|password", re.IGNORECASE)
_SHORTEST_SECRET = 6
_MODEL_IN_PATH = re.compile(r"/(?:model|models|deployments)/([^/:?]+(?::\d+)?)")
_WHOLE_TYPES = ("application/json", "text/html")
_QUERY = re.compile(r"[?#].*", re.DOTALL)
_GOOGLE_CREDENTIALS = ("DefaultCredentialsError", "RefreshError", "MalformedError", "ReauthFailError")
_AMAZON_CREDENTIALS = re.compile(
    "ProfileNotFound|(No|Partial)CredentialsError|CredentialRetrievalError|InvalidConfigError|NoAuthTokenError|"
    "TokenRetrievalError|SSOTokenLoadError|UnauthorizedSSOTokenError"
)
# Of the service that gives out credentials for a role.
_AMAZON_CODES = re.compile(
    "AccessDenied|ExpiredToken(Exception)?|InvalidClientTokenId|InvalidIdentityToken|SignatureDoesNotMatch"
)
# Bedrock's ways to ask Claude and others for reasoning.
_BEDROCK_EFFORTS = (("output_config", "effort"), ("reasoning_config", "maxReasoningEffort"))


def headers_of(calls: Sequence[Call], *, failed: bool) -> dict[str, str]:
    """Return the provider's headers that are the agent's business: when to try again, and the ids of the request."""
    answered = [call for call in calls if call.status is not None]
    if not answered:
        return {}
    last = answered[-1]
    kept = {name: value for name, value in last.headers.items() if name in _PASSED_ON or _LIMITS.match(name)}
    # An answer that was given and could not be translated would be paid for again.
    vain = failed and (last.status or 0) < 400 and _stopped(last) is None
    return kept | ({"x-should-retry": "false"} if vain else {})


def seen(calls: Sequence[Call], *, request_too: bool) -> dict[str, Any]:
    """Return what an exchange's metadata says of the calls made for it; the last one is the model's."""
    if not calls:
        return {"upstream": None, "upstream_calls": 0}
    call = calls[-1]
    request, dialect = _json(call.request), recorded_dialect(urlsplit(call.url).path)
    answer = _answer(call, dialect)
    ids = (call.headers.get(name) for name in _REQUEST_IDS)
    about = {
        "method": call.method,
        "url": call.url,
        "format": dialect.name if dialect else None,
        "request_sha256": hashlib.sha256(call.request).hexdigest(),
        "model": mapping(request).get("model") or _model_of(call.url),
        "effort": effort_of(dialect, request),
        "status": call.status,
        "request_id": next((each for each in ids if each), None),
        "response_id": answer.get("id") or answer.get("responseId"),
        "response_model": answer.get("model") or answer.get("modelVersion"),
        "response_effort": dialect.effort(answer) if dialect else None,
        "response_sha256": hashlib.sha256(call.answer).hexdigest(),
        "response_bytes": len(call.answer),
    }
    if request_too:
        about["request"] = request if request is not None else call.request.decode(errors="backslashreplace")
    return {"upstream_calls": len(calls), "upstream": about}


def effort_of(dialect: Dialect | None, request: Any) -> str | None:
    """Return the reasoning effort that a request to a provider asks for; a budget of tokens is "budget=N"."""
    body = mapping(request)
    named = dialect.effort(body) if dialect else None
    more = mapping(body.get("additionalModelRequestFields"))
    for outer, inner in _BEDROCK_EFFORTS:
        found = mapping(body.get(outer) or more.get(outer)).get(inner)
        named = named or (found if isinstance(found, str) else None)
    thinking = mapping(body.get("thinking") or more.get("thinking"))
    budget = thinking.get("budget_tokens")
    return named or (f"budget={budget}" if isinstance(budget, int) else None)


def failure(asked: Mapping[str, Any], calls: Sequence[Call], error: Exception) -> tuple[int, bytes, str | None]:
    """Return the status and body that tell an agent of a failure; third why no provider said anything."""
    dialect = dialect_for(asked["path"]) or chat
    refused = calls[-1] if calls and (calls[-1].status or 0) >= 400 else None
    if refused is not None:
        said, kind = _said(refused)
        status = refused.status or 502
        return status, dialect.error_body(status, _without_secrets(said, asked), kind), None
    # LiteLLM appends where in itself it failed, and which of its settings would hide it.
    said = f"{type(error).__name__}: {error}".partition("\nTraceback")[0].partition(" To drop these")[0]
    said = _without_secrets(said[:2000].strip(), asked)
    if calls and calls[-1].status is None:
        return 502, b"", f"{urlsplit(calls[-1].url).netloc}: {said}"
    if calls and (elsewhere := calls[-1].leads_to) is not None:
        elsewhere = _without_secrets(_QUERY.sub("", elsewhere), asked)
        said = f"the provider answered {calls[-1].status} and leads to {elsewhere}, where its key is not sent"
        return 502, dialect.error_body(502, said, "upstream_error"), None
    if calls and (stopped := _stopped(calls[-1])) is not None:
        said = f"the provider's answer is not whole: {_without_secrets(stopped, asked)}"
        return 502, dialect.error_body(502, said, "upstream_error"), None
    if calls:
        return 502, dialect.error_body(502, f"the answer cannot be translated: {said}", "upstream_error"), None
    if _is_of_credentials(error):
        return 401, dialect.error_body(401, f"no credentials: {said}", "authentication_error"), None
    told = getattr(error, "status_code", None)
    # What LiteLLM refuses by itself would be refused again: no 5xx, which clients repeat.
    status = told if isinstance(told, int) and 400 <= told < 500 else 400
    return status, dialect.error_body(status, f"it cannot be translated: {said}", "invalid_request_error"), None


def no_stream(call: Call) -> str | None:
    """Return the type of an answer in one piece to a request for a stream, None where nothing says that it is one.

    It is "" where the type says so, and nothing of the answer has come that could say otherwise.
    """
    kind = call.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _WHOLE_TYPES or (call.status or 0) >= 400:
        return None
    if mapping(_json(call.request)).get("stream") is not True and "stream" not in urlsplit(call.url).path.lower():
        return None
    begins = call.answer.lstrip()[:1]
    return kind if begins in (b"{", b"<") else None if begins else ""


def _stopped(call: Call) -> str | None:
    """Say why an answer that had begun ended before its end, by the provider's fault; None where it did not."""
    if call.broken:
        return "the connection was closed in the middle of it"
    dialect = recorded_dialect(urlsplit(call.url).path)
    if dialect is None or _json(call.answer) is not None:
        return None
    error = mapping(mapping(dialect.assemble(call.answer)[0]).get("error"))
    return str(error.get("message") or error.get("type") or error)[:2000] if error else None


def _is_of_credentials(error: BaseException) -> bool:
    """Tell whether a call was not made because what should sign it cannot be had, or was itself rejected."""
    found: list[BaseException] = []
    next_one: BaseException | None = error
    while next_one is not None and next_one not in found:
        found.append(next_one)
        next_one = next_one.__cause__ or next_one.__context__
    return any(_rejects(each) for each in found)


def _rejects(error: BaseException) -> bool:
    origin = type(error).__module__
    if origin == "google.auth.exceptions":
        # Those that may pass by themselves say so.
        return not getattr(error, "retryable", False) and type(error).__name__ in _GOOGLE_CREDENTIALS
    if origin.startswith("botocore."):
        code = str(mapping(mapping(getattr(error, "response", None)).get("Error")).get("Code"))
        return bool(_AMAZON_CREDENTIALS.fullmatch(type(error).__name__) or _AMAZON_CODES.fullmatch(code))
    return False


def _said(call: Call) -> tuple[str, str]:
    """Return a provider's own words about a failure, and its kind."""
    body = mapping(_json(call.answer))
    error = body.get("error")
    told = mapping(error) or body
    message = told.get("message") or told.get("Message") or (error if isinstance(error, str) else None)
    kind = told.get("type") or told.get("status") or call.headers.get("x-amzn-errortype")
    text = message if isinstance(message, str) else call.answer.decode(errors="backslashreplace")
    return text[:4000] or f"HTTP {call.status}", kind if isinstance(kind, str) else "upstream_error"


def _without_secrets(text: str, asked: Mapping[str, Any]) -> str:
    values = [*mapping(asked["environment"]).values()]
    values += [value for name, value in mapping(asked["parameters"]).items() if _SECRET.search(name)]
    for value in values:
        if isinstance(value, str) and len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, "(left out)")
    return text


def _answer(call: Call, dialect: Dialect | None) -> dict[str, Any]:
    """Return a provider's answer as far as it has come; empty where its format is none of ours."""
    whole = _json(call.answer)
    if isinstance(whole, dict):
        return whole
    if dialect is None or not call.chunks:
        return {}
    return mapping(dialect.assemble(call.answer)[0])


def _model_of(url: str) -> str | None:
    found = _MODEL_IN_PATH.search(unquote(urlsplit(url).path))
    return found[1] if found else None


def _json(raw: bytes) -> Any:
    try:
        return loads(raw)
    except ValueError:
        return None
