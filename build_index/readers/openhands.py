"""Trajectories of OpenHands: events in a JSON list, in JSON lines, or in a record's `history`.

Sources: `openhands/events/serialization` of release 0, whose events are an `action` or an
`observation`, and `openhands/sdk/event` of release 1, whose events have a `kind`. An action of
release 0 has the answer of the model in `tool_call_metadata`. Without it, the answer is the thought
and, for commands, the tags by which CodeAct has a model run them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from build_index.readers.turns import Turns, call_of, text_of

_TAGS = {"run": ("execute_bash", "command"), "run_ipython": ("execute_ipython", "code")}
_SILENT_ACTIONS = ("change_agent_state", "recall", "null", "condensation", "condensation_request")
_SILENT_OBSERVATIONS = ("agent_state_changed", "null", "agent_think", "agent_condensation")
_SILENT_KINDS = (
    *("ConversationStateUpdateEvent", "Condensation", "CondensationRequest", "PauseEvent"),
    *("LLMCompletionLogEvent", "TokenEvent", "StreamingDeltaEvent"),
)
_KINDS = (
    *("SystemPromptEvent", "MessageEvent", "ActionEvent", "ObservationEvent", "AgentErrorEvent"),
    *("UserRejectObservation", "CondensationSummaryEvent"),
)


def is_event(value: object) -> bool:
    """Return whether a value is an event of OpenHands."""
    if not isinstance(value, Mapping) or "source" not in value:
        return False
    is_release_0 = "action" in value or "observation" in value
    return (is_release_0 and "id" in value) or value.get("kind") in (*_KINDS, *_SILENT_KINDS)


def history_of(record: Mapping[str, Any]) -> list[Any] | None:
    """Return the events of a record with a history of them; None: it has none."""
    history = record.get("history")
    if isinstance(history, list) and any(map(is_event, history[:4])):
        return history
    return None


def add_event(turns: Turns, event: object, origin: str) -> None:
    """Add the content of an event; count the event if its type is unknown."""
    if not isinstance(event, Mapping):
        turns.unknown("an event", type(event).__name__, origin)
    elif "kind" in event:
        _add_release_1_event(turns, event, origin)
    elif "action" in event:
        _add_action(turns, event, origin)
    elif "observation" in event:
        _add_observation(turns, event)
    else:
        turns.unknown("an event", None, origin)


def _add_release_1_event(turns: Turns, event: Mapping[str, Any], origin: str) -> None:
    kind = event.get("kind")
    left_out = turns.left_out
    if kind == "SystemPromptEvent":
        turns.said("system", text_of(event.get("system_prompt"), left_out))
    elif kind == "MessageEvent":
        message = event.get("llm_message")
        fields = message if isinstance(message, Mapping) else {}
        text = text_of(fields.get("content"), left_out)
        if event.get("source") == "agent":
            reasoning = str(fields.get("reasoning_content") or "")
            turns.answered(event.get("llm_response_id") or origin, text, reasoning=reasoning)
        else:
            turns.said("user", text)
    elif kind == "ActionEvent":
        call = event.get("tool_call")
        fields = call if isinstance(call, Mapping) else {}
        name = fields.get("name") or event.get("tool_name")
        tool_call = call_of(name, fields.get("arguments"), event.get("tool_call_id"))
        thought = text_of(event.get("thought"), left_out)
        reasoning = str(event.get("reasoning_content") or "")
        key = event.get("llm_response_id") or origin
        turns.answered(key, thought, reasoning=reasoning, calls=[tool_call])
    elif kind in ("ObservationEvent", "AgentErrorEvent", "UserRejectObservation"):
        observed = event.get("observation")
        fields = observed if isinstance(observed, Mapping) else event
        content = next((fields[name] for name in _RESULTS if fields.get(name)), "")
        turns.returned(event.get("tool_call_id"), text_of(content, left_out))
    elif kind == "CondensationSummaryEvent":
        turns.said("user", text_of(event.get("summary"), left_out))
    elif kind not in _SILENT_KINDS:
        turns.unknown("an event", kind, origin)


_RESULTS = ("content", "output", "error", "rejection_reason")


def _add_action(turns: Turns, event: Mapping[str, Any], origin: str) -> None:
    action = event.get("action")
    arguments = event.get("args")
    fields = arguments if isinstance(arguments, Mapping) else {}
    if _add_response(turns, event) or action in _SILENT_ACTIONS:
        return
    if action in ("message", "system"):
        text = text_of(fields.get("content", event.get("message")), turns.left_out)
        if event.get("source") == "agent" and action == "message":
            turns.answered(origin, text)
        else:
            turns.said("system" if action == "system" else "user", text)
        return
    thought = text_of(fields.get("thought") or fields.get("final_thought"), turns.left_out)
    if isinstance(action, str) and action in _TAGS:
        tag, name = _TAGS[action]
        text = f"<{tag}>\n{fields.get(name, '')}\n</{tag}>"
        turns.answered(origin, f"{thought}\n{text}" if thought else text)
    elif thought:
        turns.answered(origin, thought)
    else:
        turns.unknown("an action without its answer", action, origin)


def _add_response(turns: Turns, event: Mapping[str, Any]) -> bool:
    """Add the answer that an action came from; return whether the event has it."""
    metadata = event.get("tool_call_metadata")
    response = metadata.get("model_response") if isinstance(metadata, Mapping) else None
    choices = response.get("choices") if isinstance(response, Mapping) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        return False
    message = choices[0].get("message")
    if not isinstance(message, Mapping) or not isinstance(response, Mapping):
        return False
    tool_calls = message.get("tool_calls")
    if not isinstance(tool_calls, list):
        tool_calls = []
    calls = [call for call in tool_calls if isinstance(call, Mapping)]
    if any(str(call.get("id")) in turns.calls for call in calls if "id" in call):
        return True  # one of several calls of an answer that is there
    reasoning = str(message.get("reasoning_content") or "")
    text = text_of(message.get("content"), turns.left_out)
    turns.answered(object(), text, reasoning=reasoning, calls=calls)
    return True


def _add_observation(turns: Turns, event: Mapping[str, Any]) -> None:
    if event.get("observation") in _SILENT_OBSERVATIONS:
        return
    metadata = event.get("tool_call_metadata")
    call = metadata.get("tool_call_id") if isinstance(metadata, Mapping) else None
    text = text_of(event.get("content"), turns.left_out)
    if call:
        turns.returned(call, text)
    else:
        turns.said("user", text)
