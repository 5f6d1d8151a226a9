"""docs/metrics.md, the table in the code and the dashboard say the same. Needs nothing."""

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from deployments.metrics import OF_CONTROLLER, OF_INGRESS
from tests import metrics_doc
from tests.scrape import OF_RAY

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "graphserve.json").read_text(encoding="utf-8"))
VLLM_LABELS = {"ReplicaId", "model_name", "engine", "le"}

pytestmark = pytest.mark.rule


def exported(name: str, kind: str) -> str:
    """The name under which Ray exports a metric."""
    return f"ray_{name}_total" if kind == "counter" else f"ray_{name}"


def test_the_document_lists_the_metrics_of_the_code() -> None:
    """Name, kind and labels of each metric stand in the table, and no other."""
    table = {**OF_INGRESS, **OF_CONTROLLER}
    assert metrics_doc.ours() == {
        exported(name, metric.kind): (metric.kind, metric.labels) for name, metric in table.items()
    }


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    """Every query, with a value in the place of each of Grafana's variables."""
    values = {"$__rate_interval": "1m", "$__range": "30m", "$application": ".*"}
    found = []
    for panel in panels():
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in values.items():
                expression = expression.replace(name, value)
            assert "$" not in expression, expression
            found.append(expression)
    return found


def test_the_dashboard_is_what_its_program_writes() -> None:
    """Nobody changed graphserve.json past deploy/grafana/dashboard.py."""
    spec = importlib.util.spec_from_file_location("dashboard", ROOT / "deploy" / "grafana" / "dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    assert program.text() == program.FILE.read_text(encoding="utf-8")


def test_panels_lie_side_by_side() -> None:
    """Ids differ, so do the letters of a panel's queries; no panel covers another or leaves the grid."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels():
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    """Each metric and label in a query is in docs/metrics.md, and each of ours has its place on a panel."""
    ours, used = metrics_doc.ours(), set()
    for expression in expressions():
        names = re.findall(r"\bray_\w+", expression)
        assert names
        labels = set(re.findall(r"(\w+)=~?\"", expression))
        for group in re.findall(r"by \(([^)]*)\)", expression):
            labels |= set(re.findall(r"\w+", group))
        known: set[str] = set(OF_RAY)
        for name in names:
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            used.add(base)
            assert base in ours or base in metrics_doc.of_vllm(), name
            known |= set(ours[base][1]) if base in ours else VLLM_LABELS
        assert labels <= known, (labels - known, expression)
    assert set(ours) - used == set(), "metrics without a panel"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool on this machine")
def test_prometheus_can_read_every_query(tmp_path: Path) -> None:
    """Each query is PromQL by Prometheus's own parser."""
    rules = [{"record": f"query:{n}", "expr": expression} for n, expression in enumerate(expressions())]
    file = tmp_path / "rules.json"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    checked = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
