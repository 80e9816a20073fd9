"""To people and back: tasks for Label Studio, and the votes of its annotators."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from snefy_ldl import SnefyLDL
from snefy_ldl.active import ActiveLearner
from snefy_ldl.apps.integrations.label_studio import make_config, make_tasks, write_tasks
from snefy_ldl.datasets import make_annotators
from snefy_ldl.datasets.label_studio import read_choices, read_votes
from snefy_ldl.errors import InputError

LABELS = ["work", "play", "learn"]


def said(who, *choices, **more):
    """An annotation as Label Studio exports it."""
    result = [{"type": "choices", "from_name": "label", "value": {"choices": list(choices)}}]
    return {"completed_by": who, "result": result, **more}


def test_tasks_carry_rows_scores_and_predictions(tmp_path):
    shares = np.array([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]])
    path = write_tasks(tmp_path / "tasks.json", [7, 3], predicted=shares, utilities=[2.5, 1.0], label_names=LABELS)
    tasks = json.loads(path.read_text())
    assert [task["data"]["row"] for task in tasks] == [7, 3]
    assert [task["data"]["utility"] for task in tasks] == [2.5, 1.0]
    assert [list(task["data"]["predicted"].values()) for task in tasks] == shares.tolist()
    suggested = [task["predictions"][0]["result"][0]["value"]["choices"] for task in tasks]
    assert suggested == [["play"], ["work"]]


def exported(rows):
    """Four tasks: two with annotations of all kinds, two without any."""
    tasks = make_tasks(rows)
    tasks[0]["annotations"] = [said(1, "work"), said(2, "work", "play"), said({"id": 3}, "learn", was_cancelled=True)]
    tasks[1]["annotations"] = [
        said(1, "learn", updated_at="2024-02-02"),
        said(1, "work", updated_at="2024-01-01"),
        said(None, "play"),
        said(None, "play"),
    ]
    tasks[2]["annotations"] = []
    return tasks


def test_every_choice_of_every_annotator_is_a_vote_and_the_last_word_counts(tmp_path):
    path = tmp_path / "export.json"
    path.write_text(json.dumps(exported([7, 3, 5, 9])))
    rows, counts = read_votes(path, LABELS)
    np.testing.assert_array_equal(rows, [7, 3])
    np.testing.assert_array_equal(counts, [[2, 1, 0], [0, 2, 1]])
    assert read_votes(path, LABELS, from_name="other")[1].shape == (0, 3)
    columns, key = read_choices(path)
    assert key == "row"
    assert columns["item"] == ["7"] * 3 + ["3"] * 3
    assert columns["label"] == ["work", "work", "play", "play", "play", "learn"]
    assert columns["annotator"][:3] == ["1", "2", "2"]


def test_an_active_learner_takes_the_votes_as_they_come_back():
    data = make_annotators(n=60, n_labels=3, votes=(2, 5), random_state=0)
    model = SnefyLDL(n_neurons=4, n_readouts=2, epochs=1, random_state=0, device="cpu")
    learner = ActiveLearner(model, data.X, None, "random", budget=8, batch_size=4, votes=True)
    rows = learner.ask()
    learner.tell(*read_votes(exported(rows), LABELS))
    np.testing.assert_array_equal(learner.labeled_, rows[:2])
    np.testing.assert_array_equal(learner.answers_, [[2, 1, 0], [0, 2, 1]])
    np.testing.assert_array_equal(learner.ask(), rows[2:])


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda: read_votes([{"data": {}}], ["a", "b"]), r"every task needs data\['row'\]"),
        (lambda: read_votes([{"data": {"row": "x"}, "annotations": [said(1, "a")]}], ["a", "b"]), "no row number"),
        (lambda: read_votes({"data": {}}, ["a", "b"]), "list of tasks"),
        (lambda: read_votes([], ["a"]), "label_names"),
        (
            lambda: read_votes(
                [{"data": {"row": 1}, "annotations": [{"result": [{"type": "choices", "value": {"choices": ["c"]}}]}]}],
                ["a", "b"],
            ),
            "choice 'c'",
        ),
        (lambda: make_tasks([1, 2], [{}]), "data must have"),
        (lambda: make_tasks([1], predicted=[[0.5, 0.5]]), "predicted must be"),
    ],
)
def test_bad_tasks(work, message):
    with pytest.raises(InputError, match=message):
        work()


def _annotation(who, **chosen):
    return {
        "completed_by": who,
        "result": [
            {"type": "choices", "from_name": name, "value": {"choices": [choice]}}
            if isinstance(choice, str)
            else {"type": "rating", "from_name": name, "value": {"rating": choice}}
            for name, choice in chosen.items()
        ],
    }


def test_of_several_controls_the_one_with_the_labels_counts():
    tasks = [{"data": {"row": 3}, "annotations": [_annotation(1, mood="yes", sharp="very", stars=4)]}]
    assert read_votes(tasks, ["no", "yes"])[1].tolist() == [[0, 1]]
    assert read_votes(tasks, ["3", "4"], from_name="stars")[1].tolist() == [[0, 1]]
    with pytest.raises(InputError, match=r"several controls \(mood, sharp, stars\)"):
        read_choices(tasks)
    assert read_choices(tasks, from_name="sharp")[0]["label"] == ["very"]


def test_the_set_up_of_the_page():
    text = make_config(["no", "a & b"], ["photo", "place"], images=["photo"])
    page = ElementTree.fromstring(text)
    assert [tag.get("value") for tag in page.iter("Choice")] == ["no", "a & b"]
    assert page.find("Image").attrib == {"name": "item", "value": "$photo"}
    assert page.find("Choices").attrib == {"name": "label", "toName": "item", "choice": "single"}
    with pytest.raises(InputError, match="at least two labels"):
        make_config(["no"])
