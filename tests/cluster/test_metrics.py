"""What a running application tells: a scrape of its metrics, its logs, its status page.

Needs: Ray, vLLM on the CPU; a part needs Prometheus and a part Chromium, each skipped where there is none.
"""

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import browser, media, metrics_doc
from tests.asking import MODEL, text, user
from tests.scrape import OF_RAY, Samples, prometheus, scraped_until, session, total
from tests.servers import Server, client
from tests.unit.test_metrics_doc import expressions

NOT_HERE = {
    "ray_graphserve_graph_hits_total": "needs a GPU or the chaos application",
    "ray_graphserve_graph_tokens_replayed_total": "needs a GPU or the chaos application",
    "ray_graphserve_graph_tokens_padded_total": "needs budget graphs on a GPU",
    "ray_graphserve_graph_capture_failures_total": "needs the chaos application",
    "ray_graphserve_graph_replay_failures_total": "needs the chaos application",
    "ray_graphserve_encoder_recycles_total": "needs the chaos application",
    "ray_graphserve_failed_attempts_total": "needs the chaos application",
    "ray_graphserve_embedding_cache_evictions_total": "needs a full cache",
}


def ask(app: Server, request_id: str, *parts: Any, stream: bool = False) -> httpx.Response:
    body = {"model": MODEL, "messages": user(*parts), "max_tokens": 6, "temperature": 0, "stream": stream}
    return httpx.post(
        f"{app.base_url}/v1/chat/completions",
        json=body, headers={"X-Request-Id": request_id}, timeout=60, trust_env=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def before(app: Server) -> Samples:
    return scraped_until(app, bool)  # of an application that has just started Ray's agent may not listen yet


@pytest.fixture(scope="module")
def asked(app: Server, before: Samples) -> Iterator[Server]:
    """The application after some requests of every kind."""
    picture = dict(media.image_part(media.image_bytes(media.drawn(110, 84, seed=4711))))
    sound = dict(media.input_audio_part(media.sound_bytes(media.tone(1.0, 16_000), 16_000, "WAV"), "wav"))
    assert ask(app, "metrics-picture", picture, text("Look")).status_code == 200
    assert ask(app, "metrics-again", picture, text("Look")).status_code == 200
    assert ask(app, "metrics-both", picture, sound, text("What?"), stream=True).status_code == 200
    assert ask(app, "metrics-text", text("Hello"), stream=True).status_code == 200
    assert ask(app, "metrics-bad", dict(media.image_part(b"no picture"))).status_code == 400
    url = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}}
    assert ask(app, "metrics-host", url).status_code == 400
    return app


def test_the_scrape_is_what_the_document_says(asked: Server) -> None:
    """Each metric of ours in the scrape is in docs/metrics.md with its labels and kind, and each there is in
    the scrape, less those that this application has no cause to count.
    """
    documented = metrics_doc.ours()
    wanted = set(documented) - set(NOT_HERE)
    samples = scraped_until(asked, lambda found: wanted <= set(found))
    ours = {name: rows for name, rows in samples.items() if name.startswith("ray_graphserve_")}
    assert set(ours) <= set(documented)
    assert set(documented) - set(ours) <= set(NOT_HERE)
    for name, rows in ours.items():
        kind, labels = documented[name]
        for own, _ in rows:
            assert set(own) - OF_RAY == set(labels), name
            assert {"application", "deployment", "replica"} <= set(own), name
        assert any("le" in own for own, _ in rows) == (kind == "histogram"), name


def test_the_counts_are_those_of_the_requests(asked: Server, before: Samples) -> None:
    """Requests, media, cache, rejects, items and stages are counted once each."""

    def grown(name: str, **labels: str) -> float:
        return total(samples, f"ray_graphserve_{name}", **labels) - total(
            before, f"ray_graphserve_{name}", **labels
        )

    samples: Samples = {}

    def enough(found: Samples) -> bool:
        nonlocal samples
        samples = found
        return grown("requests_total") >= 6 and grown("shape_items_total") >= 2

    scraped_until(asked, enough)
    assert grown("requests_total", status="200") == 4
    assert grown("requests_total", status="400") == 2
    assert grown("requests_total", status="200", media="audio+vision") == 1
    assert grown("media_fetches_total", source="data") == 4
    assert grown("media_fetches_total", source="base64") == 1
    assert grown("media_rejects_total", where="fetch", reason="media_host", status="400") == 1
    assert grown("embedding_cache_lookups_total", outcome="hit") == 2
    assert grown("shape_items_total", encoder="vision", outcome="miss") == 1
    assert grown("shape_items_total", encoder="audio", outcome="miss") == 1
    assert grown("graph_misses_total", encoder="vision", reason="ineligible") == 1
    assert grown("stage_time_seconds_total", stage="encode") > 0
    assert total(samples, "ray_graphserve_encoder_replicas", encoder="vision", state="ready") == 1


def test_vllms_metrics_are_on_the_same_endpoint(asked: Server) -> None:
    """Time to first token, per token and use of the KV cache come with the model's name; the gap between
    single tokens is not counted.
    """

    def talk(found: Samples) -> bool:
        ask(asked, "metrics-talk", text("Hello"))  # gauges are there while the engine works
        return set(metrics_doc.of_vllm()) <= set(found)

    samples = scraped_until(asked, talk)
    for name in metrics_doc.of_vllm():
        assert all(own["model_name"] == MODEL for own, _ in samples[name])
    assert "ray_vllm_inter_token_latency_seconds" not in samples


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no Prometheus on this machine")
def test_a_real_prometheus_answers_the_dashboard(asked: Server, tmp_path: Path) -> None:
    """Prometheus takes the endpoints from Ray's file, and every query of the dashboard; those of traffic
    have values.
    """
    with prometheus(asked, str(shutil.which("prometheus")), tmp_path) as real:
        real.wait("ray_graphserve_requests_total")
        real.wait("count_over_time(ray_graphserve_requests_in_hand[1m]) > 3")
        ask(asked, "metrics-prometheus", text("Hello"))
        real.wait("sum(increase(ray_graphserve_requests_total[1m])) > 0")
        for expression in expressions():
            real.query(expression)
        by_stage = real.query(
            'sum by (stage) (ray_graphserve_stage_time_seconds_total{deployment="Ingress"})'
        )
        stages = {row["metric"]["stage"] for row in by_stage}
        assert {"fetch", "preprocess", "queue", "encode", "transfer", "handover", "first_token"} <= stages
        coverage = next(e for e in expressions() if "graph_hits_total" in e)
        real.wait(coverage.replace("rate(", "sum_over_time(").replace("[1m]", "[10m]"))


def records(server: Server, deployment: str) -> list[dict[str, Any]]:
    """Lines of the logs of a deployment's replicas."""
    files = (session(server) / "logs" / "serve").glob(f"replica_*_{deployment}_*.log")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_logs_are_json_and_follow_a_request(asked: Server) -> None:
    """A request is one line of the Ingress, an item one line of its encoder, joined by the request's id."""
    until = time.monotonic() + 10
    while not any(r.get("request_id") == "metrics-both" and "status" in r for r in records(asked, "Ingress")):
        assert time.monotonic() < until, records(asked, "Ingress")[-5:]
        time.sleep(0.2)
    mine = [r for r in records(asked, "Ingress") if r.get("request_id") == "metrics-both" and "status" in r]
    (line,) = mine
    assert (line["status"], line["media"], line["deployment"]) == (200, "audio+vision", "graphserve_Ingress")
    assert line["latency_s"] >= line["first_token_s"] > 0
    (sound,) = [r for r in records(asked, "AudioEncoder") if r.get("request_id") == "metrics-both"]
    assert re.fullmatch(r"f\d+", sound["shape_key"])
    assert (sound["outcome"], sound["miss_reason"], sound["batch_size"]) == ("miss", "ineligible", 1)
    assert min(sound["preprocess_s"], sound["encode_s"]) > 0
    assert sound["replica"]
    pictures = [r for r in records(asked, "VisionEncoder") if str(r.get("request_id")).startswith("metrics-")]
    assert [r["request_id"] for r in pictures if "outcome" in r] == ["metrics-picture"]


def test_status_adds_up_the_requests(asked: Server) -> None:
    """``/v1/status`` knows every deployment, and the requests of the last minute."""
    for _ in range(3):
        assert client(asked).models.list()
        ask(asked, "metrics-status", text("Hello"))
    time.sleep(2.5)  # two collections
    status = httpx.get(f"{asked.base_url}/v1/status", timeout=20, trust_env=False).json()
    states = {d["name"]: [r["state"] for r in d["replicas"]] for d in status["deployments"]}
    names = ("AudioEncoder", "Decoder", "GraphController", "Ingress", "VisionEncoder")
    assert states == {name: ["RUNNING"] for name in names}
    traffic = status["traffic"]
    assert traffic["ingresses"] == 1
    assert traffic["ok"] >= 3
    assert traffic["requests_per_s"] >= 3 / 60
    assert 0 < traffic["latency_s"]["p50"] <= traffic["latency_s"]["p95"]
    assert {row["shape"] for row in status["shapes"]["vision"]}


@pytest.mark.skipif(browser.program() is None, reason="no Chromium on this machine")
def test_the_status_page_shows_the_application(asked: Server, tmp_path: Path) -> None:
    """The page at / is live on the real thing and its console stays silent."""
    with browser.browsing(tmp_path / "profile") as page:
        page.show(f"{asked.base_url}/", width=1280, height=900)
        page.wait("document.querySelectorAll('.deployment').length === 5")
        page.wait("document.querySelectorAll('#replicas .card').length === 2")
        before = page.value("document.querySelector('#updated').textContent")
        page.wait(f"document.querySelector('#updated').textContent !== {json.dumps(before)}")
        page.picture(tmp_path / "status.png")
        assert page.text().count("ready") >= 4
        assert page.problems == []
