"""Writes ``graphserve.json`` beside it, a dashboard for Grafana: ``python deploy/grafana/dashboard.py``.

The panels are the questions of whoever runs the server; the metrics are those of docs/metrics.md.
"""

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("graphserve.json")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
OURS = 'application=~"$application"'
WIDTH = 24


def rate(name: str, by: str, where: str = "") -> str:
    """What a counter grows by a second, summed by labels."""
    selector = ", ".join(filter(None, (OURS, where)))
    return f"sum by ({by}) (rate(ray_graphserve_{name}{{{selector}}}[$__rate_interval]))"


def quantile(share: float, name: str, by: str, where: str = "") -> str:
    """A quantile of one of our histograms."""
    return f"histogram_quantile({share}, {rate(f'{name}_bucket', f'le, {by}' if by else 'le', where)})"


def engine(share: float, name: str) -> str:
    """A quantile of one of vLLM's histograms."""
    return f"histogram_quantile({share}, sum by (le) (rate(ray_vllm_{name}_bucket[$__rate_interval])))"


def share(part: str, rest: str) -> str:
    """``part`` of both; a counter that nothing was counted on yet does not exist, and is 0 here."""
    one, other = f"({part} or {rest} * 0)", f"({rest} or {part} * 0)"
    return f"{one} / ({one} + {other})"


COVERAGE = share(rate("graph_hits_total", "encoder"), rate("graph_misses_total", "encoder"))
PADDING = share(rate("graph_tokens_padded_total", "encoder"), rate("graph_tokens_replayed_total", "encoder"))
MISSED = 'outcome="miss"'
ENCODE = 'stage="encode"'


def mean(name: str, by: str, where: str) -> str:
    """Mean of a histogram; Ray rebuilds its sum from the buckets, so it is as exact as they are fine."""
    return f"({rate(f'{name}_sum', by, where)} / {rate(f'{name}_count', by, where)})"


def lost() -> str:
    """Encoder seconds a second that a graph would have saved."""
    hit, miss = (mean("encode_stage_seconds", "encoder", f'{ENCODE}, outcome="{o}"') for o in ("hit", "miss"))
    return f"({miss} - {hit}) * {rate('encode_stage_seconds_count', 'encoder', f'{ENCODE}, {MISSED}')}"


def by_shape(outcome: str) -> str:
    """Items of each shape within the time that is shown."""
    return (
        f"sum by (encoder, shape) (increase(ray_graphserve_shape_items_total{{{OURS}{outcome}}}[$__range]))"
    )


# Title of a row, then its panels: kind, title, unit, width, what it tells, queries with their legends.
Panel = tuple[str, str, str, int, str, list[tuple[str, str]]]
ROWS: list[tuple[str, list[Panel]]] = [
    (
        "Is coverage good?",
        [
            ("stat", "Work that ran in a graph", "percentunit", 6, "Share of calls or items.", [(COVERAGE, "{{encoder}}")]),
            ("timeseries", "Coverage", "percentunit", 6, "Falls when traffic brings shapes that hold no graph.", [(COVERAGE, "{{encoder}}")]),
            ("timeseries", "Misses by reason", "ops", 6, "capacity: all slots are taken; warmup: not seen often enough; memory: under the floor; ineligible: batches, CPU, graphs off.", [(rate("graph_misses_total", "encoder, reason"), "{{encoder}} {{reason}}")]),
            ("timeseries", "Graphs held, and padding", "short", 6, "Padding: share of replayed tokens that nobody asked for.", [
                (f"sum by (encoder) (ray_graphserve_graphs_held{{{OURS}}})", "{{encoder}} graphs"),
                (PADDING, "{{encoder}} padding"),
            ]),
        ],
    ),
    (
        "Which shapes miss, and what does a miss cost?",
        [
            ("table", "Shapes that missed most", "short", 8, "Within the time shown. Raise max_graphs or name them in controller.warm_keys.", [(f"topk(15, {by_shape(', ' + MISSED)})", "{{encoder}} {{shape}}")]),
            ("table", "Coverage by shape", "percentunit", 8, "Within the time shown; rarely used shapes are `other`.", [(share(by_shape(', outcome="hit"'), by_shape(", " + MISSED)), "{{encoder}} {{shape}}")]),
            ("timeseries", "Encode time, in a graph and without", "s", 4, "The median of one item; the gap between hit and miss is what a graph saves.", [(quantile(0.5, "encode_stage_seconds", "encoder, outcome", ENCODE), "{{encoder}} {{outcome}}")]),
            ("timeseries", "Encoder time lost to misses", "s", 4, "Seconds a second: how much longer misses ran than hits, times how many there were. Needs both.", [(lost(), "{{encoder}}")]),
        ],
    ),
    (
        "Who was recycled, and why?",
        [
            ("timeseries", "Encoder replicas by state", "short", 8, "", [(f"sum by (encoder, state) (ray_graphserve_encoder_replicas{{{OURS}}}) > 0", "{{encoder}} {{state}}")]),
            ("timeseries", "Recycles by cause", "short", 8, "Since the controller began. Ids and full reasons: GET /v1/graphs, or the status page.", [(f"sum by (encoder, cause) (ray_graphserve_encoder_recycles_total{{{OURS}}})", "{{encoder}} {{cause}}")]),
            ("timeseries", "Broken captures and replays", "short", 4, "Since the controller began; each ends its replica.", [
                (f"sum by (encoder) (ray_graphserve_graph_capture_failures_total{{{OURS}}})", "{{encoder}} capture"),
                (f"sum by (encoder) (ray_graphserve_graph_replay_failures_total{{{OURS}}})", "{{encoder}} replay"),
            ]),
            ("timeseries", "Leaked device memory", "bytes", 4, "What broken captures hold until their process ends.", [(f"sum by (encoder) (ray_graphserve_graph_leaked_bytes{{{OURS}}})", "{{encoder}}")]),
        ],
    ),
    (
        "Where does a request's time go?",
        [
            ("timeseries", "Time of a request by stage", "s", 8, "Exact mean over all requests, stacked. Stages of several media run side by side.", [(f"{rate('stage_time_seconds_total', 'stage')} / on () group_left () sum({rate('requests_total', 'status')})", "{{stage}}")]),
            ("timeseries", "Encode stages, 95 %", "s", 8, "Of one item. A long queue: more replicas; long preprocess: more preprocess_workers.", [(quantile(0.95, "encode_stage_seconds", "encoder, stage"), "{{encoder}} {{stage}}")]),
            ("timeseries", "Whole requests", "s", 8, "", [
                (quantile(0.5, "request_seconds", ""), "latency, median"), (quantile(0.95, "request_seconds", ""), "latency, 95 %"),
                (quantile(0.5, "first_token_seconds", ""), "first token, median"), (quantile(0.95, "first_token_seconds", ""), "first token, 95 %"),
            ]),
            ("timeseries", "Hand-over to the decoder", "s", 8, "Without the decoder's own time.", [(quantile(0.5, "handover_seconds", "media"), "{{media}}, median"), (quantile(0.95, "handover_seconds", "media"), "{{media}}, 95 %")]),
            ("timeseries", "Batch size, mean", "short", 8, "", [(mean("encode_batch_size", "encoder", ""), "{{encoder}}")]),
            ("timeseries", "Fetching media, 95 %", "s", 8, "", [(quantile(0.95, "media_fetch_seconds", "source"), "{{source}}")]),
        ],
    ),
    (
        "What comes in, and what is refused?",
        [
            ("timeseries", "Requests by status", "reqps", 6, "499: the client went away.", [(rate("requests_total", "status"), "{{status}}")]),
            ("timeseries", "In hand", "short", 6, "", [(f"sum (ray_graphserve_requests_in_hand{{{OURS}}})", "requests")]),
            ("timeseries", "Attempts that failed", "ops", 6, "Most are made again; requests_total says what failed in the end.", [(rate("failed_attempts_total", "part, kind"), "{{part}} {{kind}}")]),
            ("timeseries", "Media refused", "ops", 6, "", [(rate("media_rejects_total", "where, reason"), "{{where}} {{reason}}")]),
            ("timeseries", "Media by source", "ops", 6, "", [(rate("media_fetches_total", "source"), "{{source}}")]),
            ("timeseries", "Media bytes", "Bps", 6, "", [(rate("media_bytes_total", "source"), "{{source}}")]),
            ("timeseries", "Embedding cache", "ops", 6, "", [(rate("embedding_cache_lookups_total", "outcome"), "{{outcome}}"), (rate("embedding_cache_evictions_total", "application"), "evicted")]),
            ("timeseries", "Embedding cache, bytes", "bytes", 6, "", [(f"sum by (replica) (ray_graphserve_embedding_cache_bytes{{{OURS}}})", "{{replica}}")]),
        ],
    ),
    (
        "The decoder (vLLM)",
        [
            ("timeseries", "Time to first token", "s", 6, "In the engine, without encoders.", [(engine(0.5, "time_to_first_token_seconds"), "median"), (engine(0.95, "time_to_first_token_seconds"), "95 %")]),
            ("timeseries", "Time per output token", "s", 6, "Mean of each request.", [(engine(0.5, "request_time_per_output_token_seconds"), "median"), (engine(0.95, "request_time_per_output_token_seconds"), "95 %")]),
            ("timeseries", "KV cache in use", "percentunit", 4, "", [("max by (ReplicaId) (ray_vllm_kv_cache_usage_perc)", "{{ReplicaId}}")]),
            ("timeseries", "Running and waiting", "short", 4, "", [("sum (ray_vllm_num_requests_running)", "running"), ("sum (ray_vllm_num_requests_waiting)", "waiting")]),
            ("timeseries", "Tokens", "short", 4, "A second.", [("sum (rate(ray_vllm_prompt_tokens_total[$__rate_interval]))", "prompt"), ("sum (rate(ray_vllm_generation_tokens_total[$__rate_interval]))", "generated")]),
        ],
    ),
]  # fmt: skip

HEIGHT = 8
STACKED = ("Misses by reason", "Time of a request by stage", "Requests by status")


def panel(number: int, made: Panel, x: int, y: int) -> dict[str, Any]:
    """One panel in Grafana's schema."""
    kind, title, unit, width, tells, queries = made
    custom = {"stacking": {"mode": "normal"}, "fillOpacity": 30} if title in STACKED else {}
    body: dict[str, Any] = {
        "id": number, "type": kind, "title": title, "description": tells, "datasource": SOURCE,
        "gridPos": {"h": HEIGHT, "w": width, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": custom}, "overrides": []},
        "targets": [target(place, expression, legend, kind) for place, (expression, legend) in enumerate(queries)],
    }  # fmt: skip
    if kind == "table":
        hidden = {"Time": True}
        body["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
        body["fieldConfig"]["defaults"] = {"unit": unit, "custom": {}}
        body["options"] = {"sortBy": [{"displayName": "Value", "desc": True}], "showHeader": True}
    elif kind == "timeseries":
        body["options"] = {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi"},
        }
    else:
        body["options"] = {"reduceOptions": {"calcs": ["lastNotNull"]}}
    return body


def target(place: int, expression: str, legend: str, kind: str) -> dict[str, Any]:
    """One query of a panel."""
    query = {"refId": "ABCDEFGH"[place], "datasource": SOURCE, "expr": expression, "legendFormat": legend}
    return {**query, "format": "table", "instant": True} if kind == "table" else query


def variable(name: str, label: str, **more: Any) -> dict[str, Any]:
    """A choice at the top of the dashboard."""
    return {"name": name, "label": label, "hide": 0, **more}


def dashboard() -> dict[str, Any]:
    """The whole dashboard."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        number = len(panels) + 1
        head = {"id": number, "type": "row", "title": title, "collapsed": False, "panels": []}
        panels.append({**head, "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": y}})
        x, y = 0, y + 1
        for made in row:
            if x + made[3] > WIDTH:
                x, y = 0, y + HEIGHT
            panels.append(panel(len(panels) + 1, made, x, y))
            x += made[3]
        y += HEIGHT
    choices = [
        variable("datasource", "Prometheus", type="datasource", query="prometheus", current={}),
        variable(
            "application", "Application", type="query", datasource=SOURCE, refresh=2, multi=True, includeAll=True,
            allValue=".*", query="label_values(ray_graphserve_requests_in_hand, application)",
            current={"text": ["All"], "value": ["$__all"]},
        ),
    ]  # fmt: skip
    return {
        "uid": "graphserve", "title": "GraphServe", "tags": ["graphserve", "ray"], "schemaVersion": 39,
        "editable": True, "refresh": "10s", "time": {"from": "now-30m", "to": "now"}, "timezone": "browser",
        "templating": {"list": choices}, "annotations": {"list": []}, "links": [], "panels": panels,
    }  # fmt: skip


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
