"""Requests by which our HTTP surface is compared with vLLM's own server, field by field.

The conversations, tools and constraints are those of vLLM's published client examples, made greedy or seeded
and short so that two servers can be compared.
"""

from typing import Any

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_current_weather",
        "description": "Get the current weather in a given location",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Dallas", "San Francisco"]},
                "state": {
                    "type": "string",
                    "enum": ["TX", "CA"],
                    "description": "the two-letter abbreviation",
                },
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "state", "unit"],
            "additionalProperties": False,
        },
    },
}
NAMED = {"type": "function", "function": {"name": "get_current_weather"}}
WORLD_SERIES = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Who won the world series in 2020?"},
    {"role": "assistant", "content": "The Los Angeles Dodgers won the World Series in 2020."},
    {"role": "user", "content": "Where was it played?"},
]
DALLAS = [
    {"role": "user", "content": "Hi! How are you doing today?"},
    {"role": "assistant", "content": "I'm doing well! How can I help you?"},
    {"role": "user", "content": "Can you tell me what the temperate will be in Dallas, in fahrenheit?"},
]
CALLED = [
    *DALLAS,
    {
        "role": "assistant",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {
                    "name": "get_current_weather",
                    "arguments": '{"city": "Dallas", "state": "TX", "unit": "fahrenheit"}',
                },
            }
        ],
    },
    {"role": "tool", "content": "It is 85 degrees.", "tool_call_id": "call_1", "name": "get_current_weather"},
]
CAR = {
    "type": "object",
    "properties": {
        "brand": {"type": "string", "enum": ["Ford", "Fiat"]},
        "car_type": {"type": "string", "enum": ["SEDAN", "SUV", "TRUCK", "COUPE"]},
        "old": {"type": "boolean"},
    },
    "required": ["brand", "car_type", "old"],
    "additionalProperties": False,
}
SQL = """
root ::= "SELECT " column " from " table
column ::= "col_1 " | "col_2 "
table ::= "table_1 " | "table_2 "
"""
PREFILL = [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "one, two,"}]


def _ask(messages: Any = "Tell me about the red circle.", **options: Any) -> dict[str, Any]:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return {"model": "graphserve-toy", "messages": messages, "temperature": 0, "max_tokens": 12, **options}


GOOD: dict[str, dict[str, Any]] = {
    "conversation": _ask(WORLD_SERIES),
    "content_as_parts": _ask(
        [{"role": m["role"], "content": [{"type": "text", "text": m["content"]}]} for m in WORLD_SERIES]
    ),
    "several_text_parts": _ask(
        [{"role": "user", "content": [{"type": "text", "text": "red"}, {"type": "text", "text": "circle"}]}]
    ),
    "no_model_named": {key: value for key, value in _ask().items() if key != "model"},
    "max_completion_tokens": _ask(max_tokens=None, max_completion_tokens=3),
    "both_limits": _ask(max_completion_tokens=3),
    "logprobs": _ask(logprobs=True),
    "top_logprobs": _ask(logprobs=True, top_logprobs=3),
    "logprobs_of_named_tokens": _ask(logprobs=True, logprob_token_ids=[5, 6]),
    "logprobs_as_token_ids": _ask(logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True),
    "token_ids": _ask(return_token_ids=True),
    "prompt_text": _ask(return_prompt_text=True),
    "several_choices": _ask(n=3, temperature=1.0, seed=7),
    "seed": _ask(temperature=2.0, seed=11),
    "top_p_and_k": _ask(temperature=1.5, seed=3, top_p=0.8, top_k=20, min_p=0.01),
    "penalties": _ask(frequency_penalty=0.5, presence_penalty=0.5, repetition_penalty=1.2),
    "stop": _ask(stop=[" the", "."], max_tokens=40),
    "stop_as_a_string": _ask(stop="e"),
    "stop_included": _ask(stop=["e"], include_stop_str_in_output=True),
    "stop_token_ids": _ask(stop_token_ids=list(range(300, 900))),
    "min_tokens": _ask(min_tokens=12),
    "ignore_eos": _ask(ignore_eos=True),
    "logit_bias": _ask(logit_bias={"400": 80, "401": -100}),
    "allowed_token_ids": _ask(allowed_token_ids=[400, 401, 402]),
    "bad_words": _ask(bad_words=["red", "circle"]),
    "special_tokens_kept": _ask(skip_special_tokens=False, spaces_between_special_tokens=False),
    "user_and_metadata": _ask(user="somebody", metadata={"a": "b"}, store=False, service_tier="auto"),
    "unknown_field": _ask(no_such_field=1),
    "echo": _ask(PREFILL, echo=True, add_generation_prompt=False, continue_final_message=True),
    "echo_of_a_user": _ask(echo=True),
    "prefill": _ask(PREFILL, add_generation_prompt=False, continue_final_message=True),
    "no_generation_prompt": _ask(add_generation_prompt=False),
    "special_tokens_added": _ask(add_special_tokens=True),
    "chat_template_kwargs": _ask(chat_template_kwargs={"enable_thinking": False}),
    "truncated_prompt": _ask(truncate_prompt_tokens=5),
    "thinking_in_history": _ask(
        [*WORLD_SERIES[:2], {"role": "assistant", "content": "<think>\nhm\n</think>\n\nLA"}, WORLD_SERIES[3]]
    ),
    "cache_salt": _ask(cache_salt="salt"),
    "repetition_detection": _ask(repetition_detection={"max_pattern_size": 4, "min_count": 3}),
    "stream_interval": _ask(stream_interval=4),
    "tools_auto": _ask(DALLAS, tools=[WEATHER], tool_choice="auto"),
    "tools_none": _ask(DALLAS, tools=[WEATHER], tool_choice="none"),
    "tools_required": _ask(DALLAS, tools=[WEATHER], tool_choice="required", max_tokens=80),
    "tools_named": _ask(DALLAS, tools=[WEATHER], tool_choice=NAMED, max_tokens=80),
    "tools_named_cut_short": _ask(DALLAS, tools=[WEATHER], tool_choice=NAMED, max_tokens=5),
    "tools_in_history": _ask(CALLED, tools=[WEATHER]),
    "tools_one_at_a_time": _ask(DALLAS, tools=[WEATHER], tool_choice="required", max_tokens=80,
                                parallel_tool_calls=False),
    "json_object": _ask(response_format={"type": "json_object"}, max_tokens=30),
    "json_schema": _ask(
        response_format={"type": "json_schema", "json_schema": {"name": "car", "schema": CAR}}, max_tokens=80
    ),
    "json_schema_strict": _ask(
        max_tokens=80,
        response_format={
            "type": "json_schema", "json_schema": {"name": "car", "schema": CAR, "strict": True},
        },
    ),
    "response_format_text": _ask(response_format={"type": "text"}),
    "choice": _ask(structured_outputs={"choice": ["positive", "negative"]}),
    "regex": _ask(structured_outputs={"regex": r"[a-c]{1,5}@[d-f]{2}\.com"}, max_tokens=20),
    "grammar": _ask(structured_outputs={"grammar": SQL}, max_tokens=30),
    "json_structured": _ask(structured_outputs={"json": CAR}, max_tokens=80),
    "beam_search": _ask(use_beam_search=True, n=2),
    "prompt_logprobs": _ask("Hi", prompt_logprobs=1, max_tokens=2),
}  # fmt: skip
"""Each is sent whole and streamed."""

STREAMED: dict[str, dict[str, Any]] = {
    name: _ask(stream=True, stream_options=options)
    for name, options in {
        "usage_at_the_end": {"include_usage": True},
        "usage_all_along": {"include_usage": True, "continuous_usage_stats": True},
        "usage_all_along_alone": {"continuous_usage_stats": True},
        "no_usage": {"include_usage": False},
        "empty_options": {},
    }.items()
}

BAD: dict[str, Any] = {
    "not_json": "{",
    "not_an_object": "[]",
    "no_messages": {"model": "graphserve-toy"},
    "empty_messages": _ask([]),
    "messages_of_the_wrong_type": _ask(7),
    "message_of_the_wrong_type": _ask(["hello"]),
    "unknown_model": _ask(model="other"),
    "temperature_of_the_wrong_type": _ask(temperature="hot"),
    "temperature_below_zero": _ask(temperature=-1),
    "top_p_above_one": _ask(top_p=2),
    "top_logprobs_without_logprobs": _ask(top_logprobs=2),
    "too_many_logprobs": _ask(logprobs=True, top_logprobs=500),
    "n_of_zero": _ask(n=0),
    "max_tokens_below_zero": _ask(max_tokens=-3),
    "min_above_max": _ask(min_tokens=100),
    "stream_options_without_stream": _ask(stream_options={"include_usage": True}),
    "prompt_logprobs_in_a_stream": _ask(prompt_logprobs=1, stream=True),
    "over_long_prompt": _ask("red circle " * 9000),
    "over_long_answer": _ask(max_tokens=100_000),
    "stop_of_the_wrong_type": _ask(stop=[1, {"a": 2}]),
    "seed_too_large": _ask(seed=2**70),
    "logit_bias_out_of_the_vocabulary": _ask(logit_bias={"999999": 1}),
    "allowed_token_out_of_the_vocabulary": _ask(allowed_token_ids=[999999]),
    "no_allowed_token": _ask(allowed_token_ids=[]),
    "two_constraints": _ask(structured_outputs={"regex": "a", "choice": ["a"]}),
    "bad_regex": _ask(structured_outputs={"regex": "("}),
    "bad_grammar": _ask(structured_outputs={"grammar": "root ::= "}),
    "bad_schema": _ask(
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 7}}}
    ),
    "no_schema": _ask(response_format={"type": "json_schema"}),
    "unknown_response_format": _ask(response_format={"type": "yaml"}),
    "tool_choice_without_tools": _ask(tool_choice="required"),
    "unknown_tool": _ask(tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "other"}}),
    "tool_without_a_name": _ask(tools=[{"type": "function", "function": {}}]),
    "tool_arguments_that_are_no_json": _ask(
        [*CALLED[:3], {**CALLED[3], "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}
        ]}, CALLED[4]]
    ),
    "prefill_and_generation_prompt": _ask(PREFILL, continue_final_message=True),
    "own_chat_template": _ask(chat_template="{{ messages }}"),
    "priority": _ask(priority=3),
    "empty_cache_salt": _ask(cache_salt=""),
    "role_missing": _ask([{"content": "a"}]),
    "beams_below_one": _ask(use_beam_search=True, n=0),
    "bad_words_empty": _ask(bad_words=[""]),
    "content_type_is_text": ("text/plain", _ask()),
}  # fmt: skip

ROUTES: tuple[tuple[str, str], ...] = (
    ("GET", "/v1/nothing"),
    ("POST", "/v1/nothing"),
    ("GET", "/v1/chat/completions"),
    ("DELETE", "/v1/chat/completions"),
    ("POST", "/v1/models"),
    ("OPTIONS", "/v1/chat/completions"),
    ("HEAD", "/v1/models"),
)
