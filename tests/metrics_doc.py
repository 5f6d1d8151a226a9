"""docs/metrics.md as tests read it."""

import re
from pathlib import Path

TEXT = (Path(__file__).parent.parent / "docs" / "metrics.md").read_text(encoding="utf-8")


def ours() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Each metric of ours under its scraped name: kind and labels."""
    rows = re.findall(r"^\| `(ray_graphserve_\w+)` \| (\w+) \| ([^|]+?) \|", TEXT, re.MULTILINE)
    return {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def of_vllm() -> list[str]:
    """vLLM's metrics that the document names."""
    return re.findall(r"^\| `(ray_vllm_\w+)` \|", TEXT, re.MULTILINE)
