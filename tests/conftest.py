"""Markers by folder: a test's tier is where its file lies."""

from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("any pace", deadline=None)  # a busy machine is no fault of an example
hypothesis.settings.load_profile("any pace")

TESTS = Path(__file__).parent
TIERS = ("unit", "local", "cluster", "gpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in TIERS:
            item.add_marker(folder)
