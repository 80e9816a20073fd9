"""The numbers of sentences that compare are those of the result files, and one command knows what is stale."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
import claims  # noqa: E402
import refresh  # noqa: E402


@pytest.fixture(scope="module")
def sentences():
    return claims.sentences()


def test_the_page_has_the_numbers_of_the_files(tmp_path, monkeypatch, sentences):
    page, text = tmp_path / "claims.md", (ROOT / "docs" / "claims.md").read_text()
    monkeypatch.setattr(claims, "PAGE", page)
    monkeypatch.setattr(claims, "REPEATED", {})
    claims.main()
    assert page.read_text() == text, "run python benchmarks/claims.py"
    old = "- On SBU_3DFE, nothing is known.\n"
    assert claims.written_again(old, [sentences["sbu"]]) == f"- {sentences['sbu']}\n"


@pytest.mark.parametrize("name", claims.REPEATED)
def test_pages_repeat_the_sentences(name, sentences):
    text = (ROOT / name).read_text()
    assert [key for key in claims.REPEATED[name] if f"- {sentences[key]}\n" not in text] == [], "run claims.py"


def test_a_changed_number_is_noticed(sentences, monkeypatch):
    figures = claims.load("conformal.json")
    changed = {
        "figures": {"sbu_3dfe": {m: {"auto": dict(f["auto"])} for m, f in figures["figures"]["sbu_3dfe"].items()}}
    }
    width = changed["figures"]["sbu_3dfe"]["SNEFY"]["auto"]["width"]
    changed["figures"]["sbu_3dfe"]["SNEFY"]["auto"]["width"] = [0.6 for _ in width]
    monkeypatch.setattr(claims, "load", lambda name: changed)
    found = claims.intervals("sbu_3dfe", "SBU_3DFE")[0]
    assert "are .600 wide" in found
    assert found != sentences["sbu"]


def test_every_result_belongs_to_one_benchmark_that_exists():
    files = [file for one in refresh.BENCHMARKS.values() for file in one.files]
    assert len(files) == len(set(files))
    assert {p.name for p in refresh.RESULTS.iterdir() if p.is_file()} <= {*files, "versions.json", "behaviour.json"}
    for one in refresh.BENCHMARKS.values():
        assert one.script.exists(), one.command
        assert shlex.split(one.command)[0] == "python"
        assert all((refresh.SOURCE / name).exists() for name in one.reads)


def test_a_result_is_stale_if_its_script_or_a_number_changed(tmp_path, monkeypatch):
    one, numbers = refresh.BENCHMARKS["effects"], {"then": {"explain": {"nats": 1.001, "kl": 1.001}}}
    about = {"code": one.code(), "script": refresh.code_digest(one.script), "behaviour": "then"}
    monkeypatch.setattr(refresh, "RESULTS", tmp_path)
    monkeypatch.setattr(refresh, "library_numbers", lambda: {"explain": {"nats": 1.0, "kl": 1.0}})
    monkeypatch.setattr(refresh, "recorded", lambda digest: numbers.get(digest, {}))
    found = []
    for changes in ({}, {"code": ""}, {"code": "", "script": ""}, {"code": "", "behaviour": ""}):
        (tmp_path / "versions.json").write_text(json.dumps(dict.fromkeys(one.files, about | changes)))
        found.append(one.reason())
    assert found == [None, "", "its script changed", "explain: nats nan to 1.0000, kl nan to 1.0000"]
