"""Finds the media of a chat request, and puts embeddings in their places."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.http_errors import HttpError
from deployments.families.base import EncoderSpec
from deployments.messages import EMBEDDING_PART

TEXT_TYPES = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Types of part that hold text, and the key that holds it."""
TEXT_EXTRAS = ("annotations", "cache_control", "closed", "logprobs", "signature")
"""Keys that other APIs put into such parts and that upstream passes over."""
FORBIDDEN_FIELDS = ("mm_processor_kwargs", "media_io_kwargs")
MEDIA_TYPES = {
    "image_url": "pictures",
    "input_audio": "audio",
    "audio_url": "audio",
    "video_url": "video",
}
"""Types of part that carry media, and what a model lacks that takes none of them."""
AUDIO_FORMATS = ("flac", "mp3", "ogg", "wav")


@dataclass(frozen=True)
class MediaPart:
    """One medium of a request: where it stands, which encoder takes it, where its bytes are."""

    param: str  # for example messages[0].content[1].image_url
    message: int
    part: int
    encoder: str
    url: str | None = None  # http, https, data
    base64: str | None = None


def find_media(
    request: Mapping[str, Any], encoders: tuple[EncoderSpec, ...], max_parts: int
) -> list[MediaPart]:
    """Every medium of the request in order. Raises HttpError 400 that names the part at fault."""
    for name in FORBIDDEN_FIELDS:
        if request.get(name):
            raise HttpError(400, f"{name} is not supported: media is prepared apart from the decoder", name)
    by_type = {kind: spec.encoder for spec in encoders for kind in spec.content_types}
    found = [
        medium
        for i, content in _contents(request.get("messages"))
        for j, part in enumerate(content)
        if (medium := _media_part(part, by_type, f"messages[{i}].content[{j}]", i, j)) is not None
    ]
    if len(found) > max_parts:
        raise HttpError(
            400, f"{len(found)} media parts; at most {max_parts} are allowed", found[max_parts].param
        )
    return found


def _contents(messages: Any) -> Iterator[tuple[int, list[Any]]]:
    """Every message whose content is a list of parts. What holds none at all is upstream's to refuse."""
    for i, message in enumerate(messages if isinstance(messages, list) else ()):
        if not isinstance(message, dict):
            continue
        content = message.get("content")
        if isinstance(content, list):
            yield i, content
        elif content is not None and not isinstance(content, str):
            raise HttpError(400, "content must be a string or a list of parts", f"messages[{i}].content")


def _media_part(part: Any, by_type: Mapping[str, str], path: str, i: int, j: int) -> MediaPart | None:
    if isinstance(part, str):
        return None
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise HttpError(400, "a content part must be an object with a type", path)
    kind = part["type"]
    if kind in TEXT_TYPES:
        _check_text(part, TEXT_TYPES[kind], path)
        return None
    if kind not in by_type:
        why = f"the model has no {MEDIA_TYPES[kind]}" if kind in MEDIA_TYPES else "unknown type"
        taken = ", ".join(["text", *sorted(by_type)])
        raise HttpError(400, f"{why}: {kind[:40]}; it takes {taken}", f"{path}.{kind[:40]}")
    param = f"{path}.{kind}"
    value = part.get(kind)
    if kind == "input_audio":
        return MediaPart(param, i, j, by_type[kind], base64=_audio_data(value, param))
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str) or not url:
        raise HttpError(400, f"{kind} must hold a url", param)
    return MediaPart(param, i, j, by_type[kind], url=url)


def _check_text(part: Mapping[str, Any], key: str, path: str) -> None:
    """Upstream looks into a part by its keys, whatever its type says, so a part of text holds text alone."""
    if not isinstance(part.get(key), str):
        raise HttpError(400, f"a part of type {part['type']} must hold a string", f"{path}.{key}")
    for name in part:
        if name not in ("type", key, *TEXT_EXTRAS):
            raise HttpError(400, f"a part of type {part['type']} holds no such key", f"{path}.{name[:40]}")


def _audio_data(value: Any, param: str) -> str:
    if not isinstance(value, dict) or not isinstance(value.get("data"), str):
        raise HttpError(400, "input_audio must hold data (base64) and format", param)
    if value.get("format") not in AUDIO_FORMATS:
        raise HttpError(400, f"format must be one of {', '.join(AUDIO_FORMATS)}", f"{param}.format")
    data: str = value["data"]
    return data


def with_embeddings(request: dict[str, Any], media: list[MediaPart]) -> dict[str, Any]:
    """The request with medium i replaced by ``{"type": "graphserve_embedding", "index": i}``."""
    if not media:
        return request
    messages = list(request["messages"])
    for index, medium in enumerate(media):
        message = dict(messages[medium.message])
        content = list(message["content"])
        content[medium.part] = {"type": EMBEDDING_PART, "index": index}
        message["content"] = content
        messages[medium.message] = message
    return {**request, "messages": messages}
