"""What ``GET /openapi.json`` says: the paths, and the body of a chat request as most clients use it.

The decoder checks a request by vLLM's own schema, which knows more fields; those named here have its types.
"""

from typing import Any

from fastapi import FastAPI

TEXT = {"type": "string"}
URL = {"type": "object", "properties": {"url": TEXT}, "required": ["url"]}


def _part(kind: str, held: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"type": {"const": kind}, kind: held},
        "required": ["type", kind],
    }


SOUND = {
    "type": "object",
    "properties": {"data": TEXT, "format": {"enum": ["wav", "mp3", "flac", "ogg"]}},
    "required": ["data", "format"],
}
PARTS = [
    _part("text", TEXT),
    _part("image_url", URL),
    _part("audio_url", URL),
    _part("input_audio", SOUND),
]
MESSAGE = {
    "type": "object",
    "properties": {
        "role": {"enum": ["system", "user", "assistant", "tool"]},
        "content": {"anyOf": [TEXT, {"type": "array", "items": {"anyOf": PARTS}}]},
    },
    "required": ["role", "content"],
}
TOOL = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {"name": TEXT, "description": TEXT, "parameters": {"type": "object"}},
            "required": ["name"],
        },
    },
    "required": ["type", "function"],
}
REQUEST = {
    "type": "object",
    "required": ["messages"],
    "properties": {
        "messages": {"type": "array", "items": MESSAGE, "minItems": 1},
        "model": TEXT,
        "max_tokens": {"type": "integer", "minimum": 1},
        "max_completion_tokens": {"type": "integer", "minimum": 1},
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "top_k": {"type": "integer", "minimum": 0},
        "n": {"type": "integer", "minimum": 1},
        "seed": {"type": "integer"},
        "stop": {"anyOf": [TEXT, {"type": "array", "items": TEXT}]},
        "stream": {"type": "boolean"},
        "stream_options": {"type": "object", "properties": {"include_usage": {"type": "boolean"}}},
        "logprobs": {"type": "boolean"},
        "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
        "frequency_penalty": {"type": "number", "minimum": -2, "maximum": 2},
        "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2},
        "logit_bias": {"type": "object", "additionalProperties": {"type": "number"}},
        "tools": {"type": "array", "items": TOOL},
        "tool_choice": {"enum": ["none", "auto", "required"]},
        "response_format": {
            "type": "object",
            "properties": {"type": {"enum": ["text", "json_object"]}},
            "required": ["type"],
        },
        "user": TEXT,
    },
}
CHAT: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": REQUEST}}},
}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {"message": TEXT, "type": TEXT},
        }
    },
}


def described(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of ``app``, every path with the one shape of its errors."""
    document = app.openapi()
    refusal = {"description": "refused", "content": {"application/json": {"schema": ERROR}}}
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
            operation["responses"]["4XX"] = operation["responses"]["5XX"] = refusal
    return document
