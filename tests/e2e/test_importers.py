"""Files of responses as the world writes them: every shape is read, or refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from eval_suite import grade_file
from eval_suite.benchmarks.tasks import BENCHMARKS
from eval_suite.responses.imports import as_items, as_responses, read_responses
from eval_suite.responses.match_rows import join
from evaluations import write_rows
from mmcorl.errors import UserError
from mmcorl.grading.items import Item
from paths import FIXTURES


def row(**more: Any) -> dict[str, Any]:
    return {"id": "a", "response": "<answer>2</answer>", "gold": "2", **more}


def read(tmp_path: Path, *rows: Any, **options: Any) -> Any:
    return list(read_responses(write_rows(tmp_path / "a.jsonl", rows), **options)[0])


def test_line_separators_and_byte_order_marks_do_not_split_or_spoil_lines(tmp_path: Path) -> None:
    text = "one\u2028two\x85three <answer>2</answer>"
    content = json.dumps(row(response=text), ensure_ascii=False).encode()
    (tmp_path / "a.jsonl").write_bytes("\ufeff".encode() + content + b"\r\n\n")
    assert [response.text for response in read_responses(tmp_path / "a.jsonl")[0]] == [text]


def test_samples_may_be_numbered_in_any_way(tmp_path: Path) -> None:
    for numbers, expected in (
        ([None, None, None], [0, 1, 2]),  # counted per id
        ([1, 2, 3], [0, 1, 2]),  # counted from 1
        ([42, 43, 1e300], [0, 1, 2]),  # seeds
        (["9", "10", "8"], [1, 2, 0]),  # numbers of a table, by size and not by spelling
        (["b", "a", "c"], [1, 0, 2]),
    ):
        rows = [row() if number is None else row(sample=number) for number in numbers]
        assert [response.sample for response in read(tmp_path, *rows)] == expected
    # Numbered samples may lack some.
    lacking = [row(id="a", sample=0), row(id="a", sample=1), row(id="b", sample=1)]
    assert [response.sample for response in read(tmp_path, *lacking)] == [0, 1, 1]
    several = read(tmp_path, {"id": 1, "responses": ["<answer>2</answer>", "<answer>3</answer>"], "gold": 2})
    assert [(part.sample, part.text) for part in several] == [(0, "<answer>2</answer>"), (1, "<answer>3</answer>")]


def test_a_question_is_a_text_where_there_is_one(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "1 + 1"}]
    assert [part.question for part in read(tmp_path, row(messages=turns, input="1 + 1"))] == ["1 + 1"]
    assert [part.question for part in read(tmp_path, row(messages=turns))] == [""]


def test_responses_that_never_came_are_missing_and_told(tmp_path: Path) -> None:
    failed = {"id": "c", "prediction": "Failed to obtain answer via API. Error 500", "gold": "2"}
    rows, notes = read_responses(write_rows(tmp_path / "a.jsonl", [row(id="a"), row(id="b", response=None), failed]))
    assert [response.text is None for response in rows] == [False, True, True]
    assert notes == ["2 of 3 rows hold no response, or a failed call; they count as missing"]
    assert len(as_items(rows, "x")) == 3
    assert [response.id for response in as_responses(rows, "x")] == ["a"]


def test_options_in_every_form(tmp_path: Path) -> None:
    listed = (["40", "45"], "['40', '45']", '["40", "45"]', "A. 40; B. 45", [40, 45.0])
    for choices in (*listed, {"A": "40", "B": "45"}, '{"A": "40", "B": "45"}', "{'A': 40, 'B': 45}"):
        assert read(tmp_path, row(choices=choices))[0].choices == ("40", "45")
    # A letter that is left out does not move the others.
    (tmp_path / "kit.csv").write_text('index,question,A,B,C,answer,prediction\n1,?,4,,6,C,"a,\n""b"""\n')
    ((response,), _) = read_responses(tmp_path / "kit.csv")
    assert (response.choices, response.text) == (("4", "", "6"), 'a,\n"b"')
    # They do not matter where a benchmark brings its own.
    assert read(tmp_path, row(choices="40|45"), golds=False)[0].choices is None


def test_json_by_id_in_lists_and_alone(tmp_path: Path) -> None:
    for content in ({"a": row()}, [row()], {"logs": [row()]}, row()):
        file = tmp_path / "a.json"
        file.write_text(json.dumps(content))
        ((one,), _) = read_responses(file)
        assert (one.id, one.gold) == ("a", "2")
    file.write_text(json.dumps({"7": {"response": "x", "answer": "2"}}))  # MathVista's own outputs
    assert next(iter(read_responses(file)[0])).id == "7"


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([row(response=["a", {"b": 1}])], "holds dict as 'response', no text"),
        ([row(gold={"a": 1})], "holds {'a': 1} as the known answer"),
        ([row(gold=1, choices=["x", "y", "z"])], "which may count from 0 or from 1"),
        # Options that are dropped in silence would leave a letter that nothing equals. The last is an array of pandas.
        *(
            ([row(choices=choices)], r"row 1 of .* \(counted from 1\) holds .* in which no options can be read")
            for choices in ("40|45", ["40"], {"a": "40", "b": "45"}, [{"A": 1}], "['40' '45']")
        ),
        ([{"id": "a", "response": "2"}], r"none of its columns \['id', 'response'\] holds known answers"),
        *(([row(gold=gold)], "its column 'gold' is blank, so fill it") for gold in ("  ", float("nan"))),
        ([row(response=None)], "holds no response in any of its 1 rows"),
        ([row(sample=1), row()], r"row 2 of .*a.jsonl \(counted from 1\) has no sample number, but other rows have"),
        ([row(sample=1, response=["a", "b"])], "holds 2 responses and a sample number"),
        ([{"doc_id": 0, "resps": [[["-1.5", "False"]], [["-3.0", "True"]]], "target": "0"}], "holds likelihoods"),
        ([{"doc_id": 0, "target": "2", "filtered_resps": "x", "doc_hash": "h"}] * 2, "answers '0' a second time"),
        # A repeated id is no second sample of one problem.
        ([*[row(id=str(n)) for n in range(4)], row(id="2")],
         r"2 responses to id '2' and 1 to each of 3 other ids: give .* column 'sample'"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_meant_are_refused(tmp_path: Path, rows: list[Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        as_items(read(tmp_path, *rows), "x")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b'{"id": 1}\n{"id": ', "line 2 of a.jsonl is not JSON"),
        ("a.csv", "id,response".encode("utf-16"), "save it anew as UTF-8"),
        ("a.json", b"3", "holds int, no rows"),
        ("a.json", b"[" * 100_000, "nested too deep"),
        ("a.csv", b"id,response,gold\n1,2,3,4\n", "line 2 has more or fewer cells than the head"),
        ("a.csv", b"", "holds no rows"),
        ("a.parquet", b"PAR1", "cannot be read as parquet"),
        ("a.xlsx", b"PK", "is not a readable Excel workbook"),
        ("a.pkl", b"", "has the ending '.pkl'"),
    ],
)
def test_files_that_are_not_what_they_say_are_refused(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=says):
        read_responses(tmp_path / name)


def test_an_excel_workbook_is_read(tmp_path: Path) -> None:
    path, book = tmp_path / "model_MathVision.xlsx", openpyxl.Workbook()
    for cells in (
        ["index", "question", "A", "B", "answer", "prediction"],
        [1, "a < b & c?", 40, 45, "B", "<answer>45</answer>_x000D_\nend"],
        [2, "?", 40, 45, "A", None],  # a response beyond Excel's limit is not written
    ):
        book.active.append(cells)
    book.save(path)
    assert [(row.id, row.question, row.choices, row.gold, row.text) for row in read_responses(path)[0]] == [
        ("1", "a < b & c?", ("40", "45"), "B", "<answer>45</answer>\r\nend"),
        ("2", "?", ("40", "45"), "A", None),
    ]


def test_a_log_of_lm_eval_is_read_once_and_unfiltered(tmp_path: Path) -> None:
    # Two filters repeat every document; `filtered_resps` is what the filter left of the response.
    doc = {"question": "1+1?", "answer": "One and one.\n#### 2"}
    both = [
        {"doc_id": 0, "doc": doc, "target": doc["answer"], "resps": [["so \\boxed{2}", "\\boxed{3}"]]}
        | {"filtered_resps": [filtered], "filter": name, "metrics": ["exact_match"], "doc_hash": "x"}
        for name, filtered in (("strict-match", "[invalid]"), ("flexible-extract", "2"))
    ]
    rows, (note,) = read_responses(write_rows(tmp_path / "samples_gsm8k.jsonl", both))
    assert [(row.id, row.sample, row.text) for row in rows] == [("0", 0, "so \\boxed{2}"), ("0", 1, "\\boxed{3}")]
    assert next(iter(rows)).gold == doc["answer"]
    assert "strict-match, flexible-extract" in note
    # The target counts: MMLU's documents hold the place of the right option, its tasks compare with the letter.
    doc = {"question": "?", "choices": ["w", "x", "y", "z"], "answer": 1}
    (response,) = read(tmp_path, {"doc_id": 0, "doc": doc, "target": "B", "resps": [["B"]], "doc_hash": "x"})
    assert response.gold == "B"


def items_of(name: str) -> tuple[Item, ...]:
    return BENCHMARKS[name].load(FIXTURES / f"{name}.parquet").items


def test_documents_of_a_log_are_joined_by_their_place(tmp_path: Path) -> None:
    # A log of lmms-eval leaves the documents out: only their place in the split says which they are.
    items = items_of("wemath")
    log = [
        {"doc_id": n, "target": item.gold, "filtered_resps": f"<answer>{item.gold}</answer>", "doc_hash": f"h{n}"}
        for n, item in enumerate(items)
    ]
    ids, how = join(read(tmp_path, *log, golds=False), items, "wemath", "log.jsonl")
    # Ids count from 1 in this benchmark, and documents from 0.
    assert ids == {str(place): item.id for place, item in enumerate(items)}
    assert how == "the place in column 'doc_id'"


def test_known_answers_decide_what_ids_and_places_mean(tmp_path: Path) -> None:
    items = items_of("mathvision")
    golds = [item.gold for item in items]
    shifted = golds[3:] + golds[:3]
    rows = [{"id": i.id, "response": "x", "answer": gold} for i, gold in zip(items, shifted, strict=True)]
    with pytest.raises(UserError, match=r"agree with those of mathvision for only \d+%"):
        join(read(tmp_path, *rows, golds=False), items, "mathvision", "a.jsonl")
    # A table that counts from 0 is joined by place where its answers say so.
    rows = [{"index": place, "prediction": "x", "answer": item.gold} for place, item in enumerate(items)]
    ids, how = join(read(tmp_path, *rows, golds=False), items, "mathvision", "a.jsonl")
    assert (ids["0"], how) == (items[0].id, "the place in column 'index'")


def test_rows_of_no_problem_are_refused(tmp_path: Path) -> None:
    for given, says in (
        ({"response": "x"}, "has no column that names problems"),
        ({"id": "nope", "response": "x"}, r"1 problem that mathvision .*'nope' in column 'id'.*such as '59'"),
        ({"id": "1", "benchmark": "wemath", "response": "x"}, "says that it answers wemath, not mathvision"),
    ):
        with pytest.raises(UserError, match=says):
            join(read(tmp_path, given, golds=False), items_of("mathvision"), "mathvision", "a.jsonl")


THOUGHT = "<|im_start|>user\nSum?<|im_end|>\n<|im_start|>assistant\n<think>\n"
BOX = r"\boxed{2}"


def test_logs_that_say_where_thinking_ends(tmp_path: Path) -> None:
    """The rendered prompt, thoughts in a column of their own, and why a response ended, as each tool writes them."""
    settings = {"until": ["</s>"]}
    lm_eval = {"arguments": {"gen_args_0": {"arg_0": THOUGHT, "arg_1": settings}}, "resps": [[BOX]], "target": "2"}
    prefilled = [{"role": "user", "content": "Sum?"}, {"role": "assistant", "content": "<think>Let me see"}]
    said = {"role": "assistant", "content": BOX, "reasoning_content": "1 + 1"}
    anthropic = {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "1+1"}, {"type": "text", "text": BOX}],
    }
    for given, expected in (
        (row(response=BOX), (BOX, "unknown", False)),
        (row(response=BOX, prompt=THOUGHT, finish_reason="MAX_TOKENS"), (BOX, "length", True)),
        (row(response=BOX, prompt=prefilled), (BOX, "unknown", True)),
        (row(response=BOX, prompt="Say <think> first: 1+1?"), (BOX, "unknown", False)),
        (row(response=BOX, prompt=THOUGHT, reasoning_content="1 + 1"), (BOX, "unknown", False)),  # taken apart
        (row(response=BOX, prompt=THOUGHT, reasoning_content=""), (BOX, "unknown", True)),
        ({"doc_id": 0, **lm_eval}, (BOX, "unknown", True)),
        ({"doc_id": 0, **lm_eval, "arguments": [[json.dumps(prefilled), settings]]}, (BOX, "unknown", True)),
        ({"doc_id": 0, "input": THOUGHT, "filtered_resps": [BOX], "target": "2"}, (BOX, "unknown", True)),  # lmms-eval
        ({"index": 0, "prediction": BOX, "thinking": "1 + 1", "answer": "2"}, (BOX, "unknown", False)),  # VLMEvalKit
        (row(response=None, reasoning_content=BOX, finish_reason="length"), ("", "length", False)),
        ({"gold": "2", "choices": [{"message": said, "finish_reason": "stop"}]}, (BOX, "stop", False)),
        ({"gold": "2", "choices": [{"text": BOX, "finish_reason": "length"}], "input": THOUGHT}, (BOX, "length", True)),
        ({"custom_id": "a", "gold": "2", "response": {"status_code": 200, "body": {"choices": [
            {"message": {**said, "content": None}, "finish_reason": "length"}]}}}, ("", "length", False)),
        ({"gold": "2", "response": {**anthropic, "stop_reason": "max_tokens"}}, (BOX, "length", False)),
        ({"gold": "2", "message": {"role": "assistant", "content": BOX, "thinking": "1"}, "done_reason": "stop"},
         (BOX, "stop", False)),
        (row(response=BOX, finish_reason={"type": "length", "length": 9}), (BOX, "length", False)),
        (row(response=BOX, thinking=True), (BOX, "unknown", True)),  # our own files
    ):  # fmt: skip
        assert [(part.text, part.finish_reason, part.thinking) for part in read(tmp_path, given)] == [expected], given
    several = read(tmp_path, row(response=[BOX, BOX], prompt=THOUGHT, finish_reasons=["stop", "length"]))
    assert [(part.finish_reason, part.thinking) for part in several] == [("stop", True), ("length", True)]
    # Options that are objects are no completions.
    with pytest.raises(UserError, match="in which no options can be read"):
        read(tmp_path, row(choices=[{"label": "A", "text": "2"}]))


def test_bodies_of_the_responses_api(tmp_path: Path) -> None:
    """Fields as https://platform.openai.com/docs/api-reference/responses/object and its guide to batches show them."""
    thought = {"id": "rs_1", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "1+1"}]}
    text = {"type": "output_text", "text": BOX, "annotations": [], "logprobs": []}
    said = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [text]}
    refusal = said | {"content": [{"type": "refusal", "refusal": "I cannot."}]}
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    for more, expected in (
        ({"output": [thought, said]}, (BOX, "stop")),
        (
            {"output": [{"type": "web_search_call", "id": "ws_1", "status": "completed"}, said, said]},
            (BOX + BOX, "stop"),
        ),
        ({"output": [thought, said | {"status": "incomplete"}], **cut}, (BOX, "length")),
        ({"output": [thought], **cut}, ("", "length")),
        ({"output": [refusal]}, ("", "stop")),
        ({"output": [], "status": "failed", "error": {"code": "server_error", "message": "no"}}, (None, "unknown")),
    ):
        body = {"id": "resp_1", "object": "response", "status": "completed", "incomplete_details": None, **more}
        batch = {"status_code": 200, "request_id": "req_1", "body": body}
        alone = {
            "id": "batch_req_2",
            "custom_id": "b",
            "response": {**batch, "body": {**body, "status": "completed", "output": [said]}},
        }
        for line, id in (
            ({"id": "batch_req_1", "custom_id": "a", "response": batch, "error": None}, "a"),
            (body, "resp_1"),
        ):
            parts = read(tmp_path, line | {"gold": "2"}, alone | {"gold": "2"})
            assert [(part.id, part.text, part.finish_reason) for part in parts[:1]] == [(id, *expected)], more
    # A list of anything else is no body of that API.
    with pytest.raises(UserError, match="holds dict as 'output'"):
        read(tmp_path, {"output": [{"type": "text", "text": BOX}], "gold": "2"})


def test_requests_of_a_batch_that_failed_are_counted(tmp_path: Path) -> None:
    """As Anthropic's results of message batches and OpenAI's files of outputs and errors have them."""
    message = {"role": "assistant", "content": [{"type": "text", "text": BOX}], "stop_reason": "end_turn"}
    fault = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}, "request_id": None}
    anthropic = [
        {"type": "succeeded", "message": message},
        {"type": "errored", "error": fault},
        {"type": "canceled"},
        {"type": "expired"},
    ]
    body = {"choices": [{"message": {"role": "assistant", "content": BOX}, "finish_reason": "stop"}]}
    openai = [
        {"response": {"status_code": 200, "request_id": "r", "body": body}, "error": None},
        {"response": {"status_code": 400, "request_id": "r", "body": {"error": {"message": "no"}}}, "error": None},
        {"response": None, "error": {"code": "batch_expired", "message": "late"}},
    ]
    for lines in (
        [{"result": result} for result in anthropic],
        [{"id": f"r{n}", **line} for n, line in enumerate(openai)],
    ):
        rows = [{"custom_id": f"p{n}", "gold": "2", **line} for n, line in enumerate(lines)]
        file, notes = read_responses(write_rows(tmp_path / "a.jsonl", rows))
        assert [(part.id, part.text) for part in file] == [("p0", BOX), *((f"p{n}", None) for n in range(1, len(rows)))]
        assert notes == [
            f"{len(rows) - 1} of {len(rows)} rows hold no response, or a failed call; they count as missing"
        ]


def test_drafts_of_a_file_are_no_answers_and_kept_as_such(tmp_path: Path) -> None:
    drafts = [row(id=str(n), response=BOX, prompt=THOUGHT) for n in range(3)]
    file = write_rows(tmp_path / "a.jsonl", drafts)
    assert any("opened a thought that none of them ends" in note for note in read_responses(file)[1])
    graded = grade_file(file)
    assert (graded.scores["a"]["correct"], graded.scores["a"]["unclosed"]) == (0, 3)
    assert all(line["thinking"] for line in graded.folder.stream("responses.jsonl"))
    assert grade_file(graded.path, mcq_policy="letter_only").scores["a"]["unclosed"] == 3
    # As raw rows they are read as they stand, and the lines of a folder, given as a file, say what they are.
    raw = grade_file(write_rows(tmp_path / "b.jsonl", [{**draft, "prompt": "Sum?"} for draft in drafts]))
    assert raw.scores["b"]["correct"] == 3
    lines = [{**line, "gold": "2"} for line in graded.folder.stream("responses.jsonl")]
    assert grade_file(write_rows(tmp_path / "c.jsonl", lines)).scores["c"]["unclosed"] == 3
