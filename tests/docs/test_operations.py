"""Instructions for operators work: backups, alert rules, the dashboard, benchmark data."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

import rest_store
from rest_store.bench.prompts import read_prompts
from rest_store.live.live_check import check_live
from tests.shared.pages import PAGES, ROOT, python_blocks
from tests.shared.strategies import identity

MONITORING = ROOT / "deploy" / "monitoring"


def test_a_backup_of_a_datastore_in_use_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    back_up, restore = python_blocks(PAGES["docs/how-to/backup.md"])
    with rest_store.LiveDatastore.open("history", tokenizer=identity(300), max_tokens=1000) as live:
        live.add([[1, 2, 3, 4], [5, 6, 7]], ids=["a", "b"])
        live.compact()
        live.add([[1, 2, 9]])
        live.delete(["b"])
        exec(back_up, {})
        live.add([[1, 2, 8]])
        exec(restore, {})
    assert capsys.readouterr().out == "2\n"
    check_live(tmp_path / "restored")
    with rest_store.LiveDatastore.open("restored") as restored:
        assert (restored.count([1, 2]), restored.count([5]), restored.info().max_tokens) == (
            2,
            0,
            1000,
        )
        restored.add([[1, 2, 3, 4]], ids=["a"])
        assert restored.info().document_count == 2, "ids are kept"


def test_alerts_have_what_prometheus_needs() -> None:
    (group,) = yaml.safe_load((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names) > 4
    for rule in group["rules"]:
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("info", "warning"), "nobody is woken for drafts"


def test_the_dashboard_has_panels_of_the_chosen_instances() -> None:
    dashboard = json.loads((MONITORING / "grafana.json").read_text(encoding="utf-8"))
    assert {one["name"] for one in dashboard["templating"]["list"]} == {
        "source",
        "instance",
        "method",
    }
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in dashboard["panels"]:
        assert panel["datasource"]["uid"] == "${source}"
        assert all('instance=~"$instance"' in target["expr"] for target in panel["targets"]), panel[
            "title"
        ]


def test_humaneval_becomes_prompts_with_a_family(tmp_path: Path) -> None:
    (recipe,) = re.findall(r"sed '[^']*'", PAGES["docs/reference/benchmark-data.md"])
    line = '{"task_id": "HumanEval/7", "prompt": "def add(", "test": ""}\n'
    done = subprocess.run(
        recipe, shell=True, input=line, capture_output=True, text=True, check=True
    )
    (tmp_path / "HUMANEVAL").write_text(done.stdout, encoding="utf-8")
    (prompt,) = read_prompts(tmp_path / "HUMANEVAL", lambda text: list(text.encode()))
    assert (prompt.family, prompt.key, bytes(prompt.tokens)) == (
        "humaneval-raw",
        "HumanEval/7",
        b"def add(",
    )
