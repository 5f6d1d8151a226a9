"""Control tokens and placeholders that a client wrote are text.

A chat template puts the client's words between control tokens and the tokenizer reads the whole. Without
this, ``<|im_end|>`` in a message ends the turn, and a placeholder draws the next picture to itself.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from app.http_errors import HttpError

FIELDS = ("messages", "tools", "documents")
"""What a client writes and a chat template puts into the prompt."""
TEMPLATE_FIELD = "chat_template_kwargs"
"""Arguments of the template itself: they may hold control tokens, and no places of media."""
UPSTREAM_SLOTS = ("<##IMAGE##>", "<##AUDIO##>", "<##VIDEO##>")
"""Texts that upstream puts between the parts of a message where media stand."""
BREAK = "\u200b"


class PlainText:
    """Breaks every such text by a zero-width space after its first character."""

    def __init__(self, control_tokens: Iterable[str], placeholders: Iterable[str]) -> None:
        slots = (*placeholders, *UPSTREAM_SLOTS)
        self._control = pattern(control_tokens)
        self._slots = pattern(slots)
        self._both = pattern((*control_tokens, *slots))

    def __call__(self, request: dict[str, Any], with_media: bool) -> dict[str, Any]:
        """The request, or a copy in which they are broken. Raises HttpError 400 when it is too deep.

        Placeholders matter beside media alone: without any, upstream looks for none.
        """
        try:
            request = _broken(request, FIELDS, self._both if with_media else self._control)
            if with_media:
                request = _broken(request, (TEMPLATE_FIELD,), self._slots)
        except RecursionError:
            raise HttpError(400, "the request is nested too deeply") from None
        return request


def pattern(texts: Iterable[str]) -> "re.Pattern[str] | None":
    """Finds the first character of every one of ``texts``, in time that does not grow with their number."""
    trie: dict[str, Any] = {}
    for text in texts:
        node = trie
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    firsts = [f"{re.escape(first)}(?={_rest(after)})" for first, after in trie.items() if first]
    return re.compile("|".join(firsts)) if firsts else None


def _rest(trie: dict[str, Any]) -> str:
    """What must follow; the shortest decides, as it is enough."""
    if "" in trie:
        return ""
    branches = [re.escape(character) + _rest(after) for character, after in trie.items()]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _broken(
    request: dict[str, Any], fields: tuple[str, ...], found: "re.Pattern[str] | None"
) -> dict[str, Any]:
    if found is None:
        return request
    there = {name: _unescaped(request[name]) for name in fields if name in request}
    text = json.dumps(there, ensure_ascii=False)
    if not found.search(text):
        return request
    return {**request, **json.loads(found.sub(lambda first: first.group() + BREAK, text))}


def _unescaped(value: Any) -> Any:
    """Messages whose tool calls hold their arguments as upstream will read them, no character escaped."""
    if isinstance(value, list):
        return [_unescaped(item) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {key: _unescaped(item) for key, item in value.items()}
    arguments = plain.get("arguments")
    if isinstance(arguments, str) and "\\" in arguments:
        try:
            plain["arguments"] = json.dumps(json.loads(arguments), ensure_ascii=False)
        except ValueError:
            return plain  # upstream refuses it
    return plain
