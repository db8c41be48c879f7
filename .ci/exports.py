"""Load exports with the packages that trainers use, and tokenise them through TRL.

    python .ci/exports.py PLACE

Runs in an environment with the extra `export`, TRL and transformers (no torch). Writes an export of each format to
PLACE; those in ATIF are for .ci/atif.py to judge.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
os.environ["HF_HUB_OFFLINE"] = "1"

import datasets  # noqa: E402
import trl  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

from pytest_benchflow.exporters._base import export  # noqa: E402
from pytest_benchflow.rollout.config import RolloutConfig  # noqa: E402
from pytest_benchflow.rollout.run import run_rollout  # noqa: E402
from tests.unit.rollouts import Talk, assistant, call, system, tool, user, write_rollout  # noqa: E402

# Loaders look at the first 10 MiB to learn the columns: these rollouts, which call no tool, are more.
TALKS, TALK_BYTES = 60, 200_000
REPLAYED = ("csv-report", "stock-ledger", "cron-next")
# What templates do with arguments: take text or objects, write any value as JSON, go through the items of an object.
TEMPLATES = {
    "prime-sft": ("qwen3_training.jinja",),
    "trl": ("qwen3_training.jinja", "qwen2_5_training.jinja", "qwen3_5_think_training.jinja"),
}
TOOLS_COLUMN = {"prime-sft": "tool_defs", "trl": "tools"}


async def make_rollouts(jobs: Path) -> None:
    """Run bundled tasks by their recordings, and write invented rollouts of all kinds beside them."""
    for task in REPLAYED:
        await run_rollout(RolloutConfig(task=ROOT / "tasks" / task, jobs_dir=jobs, job_name="replayed"))
    for number in range(TALKS):
        talk = Talk(tools=[])
        talk.ask(assistant("word " * (TALK_BYTES // 5)))
        write_rollout(jobs / "a-talks" / f"{number:03}", talk.records)
    for number, value in enumerate(("text", 1, 1.5, None, True, ["a", 1], {"deep": {"er": []}})):
        talk = Talk(tools=[tool(f"tool{number}", "cmd"), tool("bash", "value")])
        talk.ask(assistant("", call("c1", value=value), call("c2", f"tool{number}", **{f"key{number}": value})))
        talk.ask(assistant("Done \U0001f600\u2028."))
        write_rollout(jobs / "b-calls" / str(number), talk.records)
    before, after = Talk(), Talk(system(), user(), user("Summary: parse.py was read."), tools=[tool("look", "path")])
    before.ask(assistant("I look.", call("c1")))
    before.ask(assistant("What next?"))
    after.ask(assistant("", call("c2", "look", path="parse.py")))
    after.ask(assistant("Repaired."))
    write_rollout(jobs / "c-branches" / "1", before.records + after.records)


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are bytes; it needs no download."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|pad|>")  # noqa: S106


def expect(what: str, good: bool, said: object = "") -> None:
    """End when something is not as it should be."""
    if not good:
        sys.exit(f"{what}: not as it should be: {said}")


def load(form: str, path: Path, cache: Path) -> Any:
    """Load an export and compare what comes out with what is in the file."""
    written = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]
    loaded = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(cache))
    expect(f"{form}: columns", set(loaded.column_names) == set(written[0]), loaded.column_names)
    for number, (row, line) in enumerate(zip(loaded, written, strict=True)):
        expect(f"{form}: row {number}", row == line, row)
    return loaded


def tokenise(form: str, template: str, rows: Any, tokens: PreTrainedTokenizerFast) -> int:
    """Put every row through a chat template of TRL's and the tokenizer; return the number of tokens."""
    tokens.chat_template = (Path(trl.__file__).parent / "chat_templates" / template).read_text("utf-8")
    total = 0
    for row in rows:
        tools = json.loads(row[TOOLS_COLUMN[form]])
        text = trl.apply_chat_template({"messages": row["messages"]}, tokens, tools=tools)["text"]
        ids = tokens(text)["input_ids"]
        expect(f"{form}: {template}", tokens.decode(ids) == text)
        for message in row["messages"]:
            expect(f"{form}: {template}", message["content"].strip() in text, message["content"][:80])
        expect(f"{form}: {template}: arguments are text within text", '"arguments": "{' not in text, text[-500:])
        total += len(ids)
    return total


def main() -> None:
    """Export, load and tokenise."""
    place = Path(sys.argv[1])
    asyncio.run(make_rollouts(place / "jobs"))
    datasets.disable_progress_bars()
    tokens = tokenizer()
    for form, version in (("openai", None), ("adp", None), ("atif", "1.7"), ("atif", "1.8")):
        name = f"{form}-{version}" if version else form
        done = export(form, [place / "jobs"], place / f"{name}.jsonl", version=version, side_calls=True)
        expect(name, not done.skipped, done.left_out)
        print(f"{name}: {done.rows} rows")
    for form, templates in TEMPLATES.items():
        done = export(form, [place / "jobs"], place / f"{form}.jsonl")
        expect(form, not done.skipped and done.not_loaded_back is None, (done.left_out, done.not_loaded_back))
        expect(form, done.out.stat().st_size > TALKS * TALK_BYTES)
        rows = load(form, done.out, place / "cache")
        few = [row for row in rows if len(row["messages"]) > 3]
        for template in templates:
            print(f"{form}: {len(rows)} rows loaded; {template}: {tokenise(form, template, few, tokens)} tokens")


if __name__ == "__main__":
    main()
