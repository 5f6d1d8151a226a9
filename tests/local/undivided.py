"""Answers of vLLM's own undivided run, from a process of its own: python undivided.py REQUESTS ANSWERS.

REQUESTS is a JSON file with `folder`, `dtype`, `max_tokens`, `conversations` (lists of messages, asked in one
batch) and `alone` (more of them, asked one after another). ANSWERS receives for each `ids`, `text`, `margins`
(between the two best tokens of each step) and `finish`.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process: it starts in seconds
    "VLLM_LOGGING_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "2",
}


def answer(
    folder: str, dtype: str, max_tokens: int, conversations: list[Any], alone: list[Any]
) -> list[dict[str, Any]]:
    """Greedy answers to all of them, in order."""
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=folder,
        dtype=dtype,
        trust_remote_code=True,
        max_model_len=4096,
        enforce_eager=True,
        gpu_memory_utilization=0.15,
        limit_mm_per_prompt={"image": 4, "audio": 4},
    )
    params = SamplingParams(temperature=0, max_tokens=max_tokens, logprobs=2)
    outputs = engine.chat(conversations, params, use_tqdm=False)
    outputs += [engine.chat([one], params, use_tqdm=False)[0] for one in alone]
    return [_summary(output.outputs[0]) for output in outputs]


def _summary(completion: Any) -> dict[str, Any]:
    margins = []
    for step in completion.logprobs:
        best, second = sorted((entry.logprob for entry in step.values()), reverse=True)[:2]
        margins.append(best - second)
    ids = list(completion.token_ids)
    return {"ids": ids, "text": completion.text, "margins": margins, "finish": completion.finish_reason}


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    answers = answer(**json.loads(Path(sys.argv[1]).read_text()))
    Path(sys.argv[2]).write_text(json.dumps(answers))
