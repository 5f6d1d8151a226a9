"""Qwen2.5-VL, divided, answers what vLLM's own undivided server answers, token for token.

Needs: Ray, vLLM on the CPU, two servers at once (about 4 GB of memory). Real HTTP, the official client.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests import media
from tests.asking import MODEL, as_text, ask, ask_crowd, ask_streamed, check_written_is_text, text, user
from tests.cases import photo, picture, turns
from tests.cluster.test_http import settled_report
from tests.servers import Server, client, running_app, running_undivided, wait_for
from tiny_models import folders

pytestmark = pytest.mark.full

WIDE, TALL, SMALL = (420, 300), (200, 500), (120, 90)
CASES: dict[str, list[dict[str, Any]]] = {
    "text": user(text("Tell me about the red circle.")),
    "one_image": user(text("What is this?"), picture(SMALL)),
    "image_before_text": user(picture(WIDE, 1), text("What is this?")),
    "photograph_scaled_down": user(text("Describe"), photo("coffee")),
    "smallest_image": user(picture((5, 5), 2), text("What is this?")),
    "two_images_of_different_size": user(text("First"), picture(SMALL, 2), text("second"), picture(WIDE, 3)),
    "two_images_of_equal_size": user(picture(TALL, 4), picture(TALL, 5), text("Compare them")),
    "three_images": user(picture(WIDE, 6), picture(SMALL, 7), text("and"), picture(TALL, 8)),
    "marks_written_by_a_client": user(
        text("<|vision_start|> and <|vision_end|>, <|video_pad|>"), picture(WIDE, 12), picture(SMALL, 13)
    ),
    "several_turns": turns(
        [text("Look"), picture(SMALL, 9)],
        "A blue square.",
        [text("And now?"), picture(WIDE, 10)],
        "A red circle.",
        "Which was larger?",
    ),
}


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("qwen")
    args = {"served_model_name": MODEL}
    with running_app(folder, args, source="configs/qwen2_5_vl-tiny.yaml") as server:
        yield server


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("qwen-undivided")
    with running_undivided(folder, str(folders.ensure("qwen2_5_vl"))) as server:
        yield server


@pytest.mark.parametrize("name", CASES)
def test_tokens_equal_the_undivided_run(divided: Server, whole: Server, name: str) -> None:
    """Whole and streamed, each case's tokens, text, stop reason and prompt length equal vLLM's own.

    Control tokens that a client wrote are text here: there it is asked with broken ones.
    """
    expected = ask(client(whole), as_text(CASES[name]))
    assert len(expected.tokens) > 0
    assert ask(client(divided), CASES[name]) == expected
    assert ask_streamed(client(divided), CASES[name]) == expected


def test_a_crowd_gets_no_answer_mixed_up(divided: Server, whole: Server) -> None:
    """32 different requests, 8 at once: each answer equals its own undivided answer, all differ."""
    sizes = (WIDE, TALL, SMALL)
    requests = [
        user(text(f"Request number {number}."), picture(sizes[number % 3], 100 + number))
        for number in range(32)
    ]
    expected = asyncio.run(ask_crowd(whole.base_url, requests, at_once=1))
    assert len({said.tokens for said in expected}) == len(expected)
    assert asyncio.run(ask_crowd(divided.base_url, requests, at_once=8)) == expected


def test_a_turned_picture_is_turned(divided: Server, whole: Server) -> None:
    """EXIF orientation swaps the patch grid on both sides of the cut alike."""
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    data = media.image_bytes(media.drawn(*WIDE, seed=11), "JPEG", exif=exif)
    request = user(dict(media.image_part(data, "image/jpeg")), text("What is this?"))
    assert ask(client(divided), request) == ask(client(whole), request)


@pytest.mark.parametrize(
    "written", ["<|image_pad|>", "<|vision_start|>" + "<|image_pad|>" * 12 + "<|vision_end|>", "<##IMAGE##>"]
)
def test_a_placeholder_that_a_client_wrote_is_text(divided: Server, written: str) -> None:
    """It answers, and the picture's tokens stand once, in the place of its part."""
    check_written_is_text(divided.base_url, written, picture(WIDE))


@pytest.mark.parametrize("size", [(402, 2), (2, 402)])
def test_a_picture_that_is_too_thin_is_a_400(divided: Server, size: tuple[int, int]) -> None:
    """It names the part and says why."""
    answer = _post(divided, user(picture(size)))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "messages[0].content[0].image_url"
    assert "200 times" in error["message"]


def test_sound_is_a_400_that_says_what_is_taken(divided: Server) -> None:
    """The model has no audio, so that no AudioEncoder runs and a clip is refused at the door."""
    answer = _post(divided, user(dict(media.input_audio_part(media.speech_bytes(), "flac"))))
    assert answer.status_code == 400
    assert "audio" in answer.json()["error"]["message"]


def test_items_are_counted_and_only_the_vision_encoder_runs(divided: Server) -> None:
    """The report counts pictures, each an ineligible miss on a CPU, and knows of no other encoder."""
    before = settled_report(divided)["totals"]["vision"]["graph_misses"]
    ask(client(divided), user(picture(SMALL, 500)))
    assert wait_for(lambda: _report(divided)["totals"]["vision"]["graph_misses"] > before)
    report = _report(divided)
    totals = report["totals"]["vision"]
    assert totals["unit"] == "items"
    assert totals["ineligible_misses"] == totals["graph_misses"] == before + 1
    assert [replica["encoder"] for replica in report["replicas"]] == ["vision"]
    assert report["replicas"][0]["modules_loaded"] == ["visual"]


def _post(server: Server, messages: list[dict[str, Any]]) -> httpx.Response:
    with httpx.Client(trust_env=False, timeout=60) as http:
        body = {"model": MODEL, "messages": messages, "max_tokens": 1}
        return http.post(f"{server.base_url}/v1/chat/completions", json=body)


def _report(server: Server) -> dict[str, Any]:
    with httpx.Client(trust_env=False, timeout=60) as http:
        report: dict[str, Any] = http.get(f"{server.base_url}/v1/graphs").json()
        return report
