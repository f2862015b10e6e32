import base64
import http.client
import json
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.artifacts.disk import sealed, unsealed
from pipeline.errors import ArtifactError
from pipeline.ids import file_sha256
from pipeline.models.folder import digest_of_tokenizer
from pipeline.models.policy import load_tokenizer, tokenizer_digest
from pipeline.models.tiny import train_tokenizer
from pipeline.view import page
from pipeline.view.parts import Parts, tables_of
from pipeline.view.rollout import rollouts_at
from pipeline.view.run import Run
from pipeline.view.server import answer, make_server
from stages.command import main
from tests.pipeline.view.conftest import PLAYED, SHOWN


@pytest.fixture(scope="module")
def port(run_dir: Path) -> Iterator[int]:
    server = make_server(Run(run_dir))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def request(port: int, target: str, method: str = "GET", **headers: str) -> tuple[int, Any, str]:
    """Returns status, headers and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, target, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()
    finally:
        connection.close()


def ask(port: int, what: str, **query: Any) -> Any:
    words = "&".join(f"{name}={value}" for name, value in query.items())
    status, _, text = request(port, f"/api/{what}?{words}")
    assert status == 200, text
    return json.loads(text)


def index_of(port: int, stage: str) -> dict[str, Any]:
    """Returns a stage's version and its columns, decoded as the page does."""
    found = ask(port, "index", stage=stage)
    columns = {}
    of_steps = ask(port, "step_columns", stage=stage, version=found["version"])
    for name, column in (found["columns"] | of_steps).items():
        data = np.frombuffer(base64.b64decode(column["data"]), f"<{column['kind']}")
        columns[name] = [column["values"][code] for code in data] if "values" in column else data.tolist()
        assert len(columns[name]) == found["rows"]
    return {"stage": stage, "version": found["version"], **columns}


def test_the_run_is_named_with_the_stages_that_have_rollouts_complete_or_not(port: int) -> None:
    facts = ask(port, "run")
    assert facts["run"] == "r"
    assert facts["stages"] == [
        {"stage": "rollouts", "rollouts": 4, "complete": True},
        {"stage": "labels", "rollouts": 2, "complete": True},
        {"stage": "actor", "rollouts": 2, "complete": False},
    ]
    assert facts["pages"] == ["summary.html"]


def test_an_index_says_of_every_rollout_what_it_can_be_filtered_by(port: int) -> None:
    found = index_of(port, "rollouts")
    for name, expected in {
        "outcome": ["failure", "success", "not graded", "partial"],
        "level": ["1", "1", "2", "2"],
        "split": ["train", "train", "val", "val"],
        "attempt": ["0", "1", "0", "0"],
        "draw": ["0", "0", "0", "1"],
        "guided": ["no", "yes", "no", "no"],
        "kind": ["whole"] * 4,
        "iteration": ["0", "0", "1", "1"],
        "group_id": ["g0", "g0", "g1", "g1"],
        "env_status": ["ok", "ok", "infra", "ok"],
        "verifier": ["a wrong step", "no wrong step", "a wrong step", "a wrong step"],
        "first_wrong": [1, -1, 1, 1],
        "steps": [3, 2, 3, 3],
        "tokens": [4, 4, 4, 4],
    }.items():
        assert found[name] == expected, name
    np.testing.assert_array_equal(found["reward"], np.float32([0, 0.95, np.nan, 0.5]))
    assert np.isnan(found["value"]).all()
    assert index_of(port, "actor")["value"] == [0.75, 0.25]


def rows_of(port: int, stage: str, rows: str, what: str = "rollouts") -> Any:
    version = ask(port, "index", stage=stage)["version"]
    return ask(port, what, stage=stage, version=version, rows=rows)


def test_a_rollout_comes_whole_with_labels_and_measured_states_and_every_text_made_visible(port: int) -> None:
    [later, first] = rows_of(port, "rollouts", "3,0")
    assert (later["rollout_id"], later["level"], later["split"]) == ("bb01", 2, "val")
    assert first["steps"][0]["text"] == f"first {SHOWN}"
    assert first["steps"][1]["verifier_message"] == f"why {SHOWN}"
    assert first["messages"][2]["content"] == SHOWN
    assert first["feedback_text"] == f"too early {SHOWN}"
    assert [step["label"] for step in first["steps"]] == [None, 0.5, None]
    assert [step["measured"] for step in first["steps"]] == [None, None, [2, 1.0]]
    [guided] = rows_of(port, "rollouts", "1")
    assert guided["feedback_in_context"] == f"you asked twice {SHOWN}"
    assert (guided["parent_rollout_ids"], len(guided["steps"])) == (["aa00"], 2)
    [trained] = rows_of(port, "actor", "0")
    assert [step["value"] for step in trained["steps"]] == [0.75, 0.5, 0.125]
    assert "response_token_ids" not in trained


def test_tokens_come_on_demand_and_only_sampled_ones_have_log_probabilities(port: int) -> None:
    [found] = rows_of(port, "rollouts", "0", "tokens")
    assert found["tokens"] == [["1 ", -0.5], ["2 ", -0.25], ["3 ", None], ["4 ", -1.0], ["5 ", -2.0]]
    assert "no such tokenizer" in found["note"]


def test_continuations_are_gathered_once_for_all_rollouts(run_dir: Path) -> None:
    """Else a page with everything inside takes rollouts times continuations."""
    run = Run(run_dir)
    assert run.continued("rollouts", ["bb00", "aa00"]) == [{}, {2: (2, 1.0)}]
    for stage in ("rollouts", "labels"):
        run.index(stage).table = None  # type: ignore[assignment]
    assert run.continued("rollouts", ["aa01", "aa00"]) == [{}, {2: (2, 1.0)}]


def test_a_tokenizer_that_transformers_makes_otherwise_than_its_file_says_is_found(
    run_dir: Path, tmp_path: Path
) -> None:
    """Of a Qwen3 adopted as it is, rollouts name the rebuilt tokenizer, and the run has the file."""
    copy = tmp_path / "r"
    shutil.copytree(run_dir, copy)
    folder = copy / "sft" / "policy"
    train_tokenizer(["a few words and others"] * 9, 270, folder, "")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    stored = digest_of_tokenizer((folder / "tokenizer.json").read_text("utf-8"))
    rebuilt = tokenizer_digest(loaded := load_tokenizer(folder))
    assert rebuilt != stored
    ids = loaded.encode("a few words")
    for wanted in (rebuilt, stored):
        assert Run(copy).tokenizer(wanted).decode(ids) == "a few words"
    assert Run(copy).tokenizer("another") is None


def test_briefs_say_how_the_task_begins(port: int) -> None:
    [brief] = rows_of(port, "rollouts", "2", "briefs")
    assert (brief["rollout_id"], brief["task_id"]) == ("bb00", "t1")
    assert brief["text"].startswith("Task 1 <script>")


def test_search_finds_texts_in_messages_feedback_and_ids_in_any_case(port: int) -> None:
    def found(stage: str, **query: Any) -> list[int]:
        return ask(port, "match", stage=stage, version=ask(port, "index", stage=stage)["version"], **query)

    assert found("rollouts", text="SECOND") == [0, 1, 2, 3]
    assert found("rollouts", text="asked+twice") == [1]
    assert found("rollouts", text="too+early") == [0]
    assert found("rollouts", text="bb0") == [2, 3]
    assert found("rollouts", text=".*") == []  # no pattern
    assert found("actor", low=0.1, high=0.2) == [0]
    assert found("actor", low=0.25, high=0.5) == [1]
    assert found("rollouts", low=0, high=1) == []


def test_a_rollout_is_found_by_its_id_or_the_beginning_of_it(port: int) -> None:
    assert ask(port, "find", id="dd01") == {"stage": "actor", "row": 1}
    assert ask(port, "find", id="cc01", stage="labels") == {"stage": "labels", "row": 1}
    for target in ("id=aa0", "id=", "id=zz", "id=aa00&stage=labels", "id=aa00&stage=tasks"):
        assert request(port, f"/api/find?{target}")[0] == 404, target


def test_a_stage_that_went_on_is_no_longer_shown_by_old_row_numbers(run_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "r"
    shutil.copytree(run_dir, copy)
    run = Run(copy)
    before = run.index("actor")
    assert run.index("actor", before.version) is before
    [line, *others] = list((copy / "actor" / "_ledger").iterdir())
    assert not others
    line.write_text(line.read_text().splitlines()[0] + "\n")
    after = run.index("actor")
    assert (before.num_rows, after.num_rows) == (2, 1)
    with pytest.raises(LookupError, match="load the page again"):
        run.index("actor", before.version)


def made_again(stage: Path) -> None:
    """Puts another file of the same rows in another order in place of the stage's labels or rollouts."""
    path = stage / f"{stage.name}.parquet"
    table = pq.read_table(path)
    other = path.with_name("other")
    pq.write_table(table.take(list(range(table.num_rows))[::-1]), other)
    other.replace(path)
    manifest = unsealed(stage / "manifest.json")
    for facts in manifest["files"]:
        if facts["path"] == path.name:
            facts |= {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
    (stage / "manifest.json").write_bytes(sealed(manifest))


def test_a_stage_that_was_made_again_is_no_longer_shown_by_old_row_numbers(
    run_dir: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "r"
    shutil.copytree(run_dir, copy)
    run = Run(copy)
    before = run.index("rollouts")
    assert rollouts_at(run, before, [0])[0]["rollout_id"] == "aa00"
    made_again(copy / "rollouts")
    with pytest.raises(ArtifactError, match=r"was made again\. Next: load the page again"):
        rollouts_at(run, before, [0])
    after = run.index("rollouts")
    assert after.version != before.version
    assert rollouts_at(run, after, [0])[0]["rollout_id"] == "bb01"


def test_labels_that_were_made_again_are_read_again(run_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "r"
    shutil.copytree(run_dir, copy)
    run = Run(copy)
    assert run.labels_of("rollouts", ["bb00", "aa00"]) == [{}, {1: 0.5}]
    made_again(copy / "labels")
    assert run.labels_of("rollouts", ["aa00"]) == [{1: 0.5}]


def test_more_rollouts_at_a_time_read_no_manifest_more_often(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, seen = Run(run_dir), []
    index = run.index("rollouts")
    monkeypatch.setattr(
        "pipeline.view.run.tables_of", lambda folder: seen.append(folder) or tables_of(folder)
    )
    counts = []
    for rows in ([0], [0], [0, 1, 2, 3]):  # the first time indexes are made
        seen.clear()
        rollouts_at(run, index, rows)
        counts.append(len(seen))
    assert 0 < counts[1] == counts[2]


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/api/index?stage=../r/rollouts", 404),
        ("/api/index?stage=tasks", 404),
        ("/api/index", 400),
        ("/api/rollouts?stage=rollouts&version=x&rows=0", 404),
        ("/api/nothing", 404),
        ("/rollouts/rollouts.parquet", 404),
        ("/../r/rollouts/manifest.json", 404),
        ("/%2e%2e/view.js", 404),
        ("/rollouts/report.html", 404),  # there is none
        ("//evil.example/view.js", 404),
    ],
)
def test_nothing_but_the_page_its_answers_and_reports_is_served(port: int, target: str, status: int) -> None:
    assert request(port, target)[0] == status


def test_a_target_that_is_no_address_is_refused(run_dir: Path) -> None:
    assert answer(Run(run_dir), "http://[/view.html")[0] == 400


@pytest.mark.parametrize("rows", ["", "x", "4", "-1", ",".join("0" * 201), "1e3"])
def test_rows_that_are_none_are_refused(port: int, rows: str) -> None:
    version = ask(port, "index", stage="rollouts")["version"]
    for what in ("briefs", "rollouts", "tokens"):
        target = f"/api/{what}?stage=rollouts&version={version}&rows={rows}"
        assert request(port, target)[0] == 400


def test_only_this_machine_by_its_own_name_may_read_and_nobody_may_change(port: int) -> None:
    assert request(port, "/api/run", Host=f"localhost:{port}")[0] == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", "127.0.0.1:1"):
        status, _, text = request(port, "/api/run", Host=host)
        assert (status, "alone" in text) == (421, True), host
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert request(port, "/api/run", method)[0] == 501
    server = make_server.__doc__
    assert server is not None
    assert "127.0.0.1" in server


def test_answers_forbid_scripts_frames_and_reading_by_other_sites(port: int) -> None:
    for target in ("/view.html", "/view.js", "/view.css", "/api/run", "/api/none", "/summary.html"):
        _, headers, _ = request(port, target)
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; base-uri 'none'; form-action 'none'"), target
        assert "unsafe-eval" not in policy
        assert "'unsafe-inline'" not in policy.replace("style-src 'unsafe-inline'", "")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers
    assert request(port, "/")[1]["Location"] == "/view.html"
    assert "script-src" not in request(port, "/summary.html")[1]["Content-Security-Policy"]


def test_the_script_makes_no_markup_and_the_page_loads_nothing_from_elsewhere() -> None:
    script = page.JS.read_text("utf-8")
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|Function\(", script)
    for path in (page.HTML, page.CSS, page.JS):
        addresses = set(re.findall(r"\w+://[\w./]*", path.read_text("utf-8")))
        assert addresses <= {"http://www.w3.org/2000/svg"}, path


def test_the_page_is_in_one_unit_names_draws_and_goes_to_a_rollout_below_the_list() -> None:
    """What `test_browser.py` sees, where there is no browser."""
    script, style = page.JS.read_text("utf-8"), page.CSS.read_text("utf-8")
    assert len(re.findall(r"toFixed", script)) == 2  # in `percent`, and of a log-probability
    assert "`attempt ${attempt.values[attempt.data[row]]}, draw ${draw.values[draw.data[row]]}`" in script
    assert 'place(id ? "rollout" : "list").scrollIntoView()' in script
    chosen = script.partition("function choose(")[2].partition("\n}\n")[0]
    assert "scrollIntoView" not in chosen  # it would take a phone back to the list
    assert re.search(r"body \{[^}]*overflow-wrap: anywhere", style)
    narrow = style.partition("@media (max-width: 58rem)")[2]
    assert ".columns { display: block; }" in narrow


def test_one_page_holds_everything_and_hostile_texts_cannot_leave_its_data(
    run_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    assert main(["view", str(run_dir), "--out", str(out)]) == 0
    html = out.read_text("utf-8")
    assert html.lower().count("<script") == html.count("</script>") == 2
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert "src=" not in html.partition('id="data">')[0]
    [data] = re.findall(r'id="data">(.*?)</script>', html, flags=re.DOTALL)
    stages = json.loads(data)["stages"]
    assert list(stages) == ["rollouts", "labels", "actor"]
    assert [r["rollout_id"] for r in stages["rollouts"]["rollouts"]] == [r.rollout_id for r in PLAYED]
    assert stages["rollouts"]["rollouts"][0]["messages"][2]["content"] == SHOWN
    assert len(stages["actor"]["tokens"]) == 2
    for hashed in re.findall(r"'(sha256-[^']+)'", html):
        assert hashed in {page._hash(page.JS.read_text("utf-8")), page._hash(page.CSS.read_text("utf-8"))}
    assert main(["view", str(run_dir), "--out", str(out), "--stage", "labels"]) == 0
    assert '"actor"' not in out.read_text("utf-8")


def test_what_cannot_be_shown_is_refused_with_what_to_do(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(code: int, words: str, *argv: object) -> None:
        assert main(["view", *map(str, argv)]) == code
        assert words in capsys.readouterr().err

    out = tmp_path / "page.html"
    refused(3, "is no folder", tmp_path / "no")
    refused(3, "no rollouts to show. Next: make rollouts", tmp_path)
    refused(2, "allowed: rollouts, labels, actor", run_dir, "--out", out, "--stage", "critic")
    refused(2, "--stage goes with --out", run_dir, "--stage", "labels")
    refused(2, "is no folder", run_dir, "--out", tmp_path / "no" / "page.html")
    refused(2, "allowed: a free port", run_dir, "--port", 70000)
    monkeypatch.setattr(page, "LARGEST", 100)
    refused(2, "a local server shows runs of any size", run_dir, "--out", out)
    assert not out.exists()


def test_a_damaged_file_is_named_and_not_shown(run_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "r"
    shutil.copytree(run_dir, copy)
    path = copy / "rollouts" / "rollouts.parquet"
    whole = bytearray(path.read_bytes())
    whole[40] ^= 0xFF
    path.write_bytes(bytes(whole))
    with pytest.raises(ArtifactError, match=r"rollouts\.parquet: not a readable Parquet file"):
        Run(copy).index("rollouts")
    path.write_bytes(bytes(whole) + b"x")
    with pytest.raises(ArtifactError, match="bytes, listed with"):
        Run(copy)


def test_rows_are_read_across_files_and_row_groups_in_the_order_asked(tmp_path: Path) -> None:
    import pyarrow as pa

    for part in range(2):
        table = pa.table({"n": list(range(1000 * part, 1000 * part + 1000)), "light": [str(part)] * 1000})
        pq.write_table(table, tmp_path / f"{part}.parquet", row_group_size=300)
    parts = Parts((tmp_path / "0.parquet", tmp_path / "1.parquet"))
    assert parts.num_rows == 2000
    wanted = [1999, 0, 299, 300, 1000, 0]
    assert [row["n"] for row in parts.rows(wanted, ["n"])] == wanted
    assert [first for first, _ in parts.batches(["n"])] == [0, 1000]
    with pytest.raises(IndexError):
        parts.rows([2000], ["n"])
