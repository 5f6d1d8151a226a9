"""vLLM's engine and its own OpenAI serving, without its HTTP server."""

import logging
from collections.abc import AsyncGenerator, Mapping
from types import SimpleNamespace
from typing import Any

from deployments import tracing
from deployments.errors import GraphServeError
from deployments.upstream.engine_metrics import engine_metrics
from deployments.upstream.logs import logs_kept

logger = logging.getLogger(__name__)

EMBEDDING_PARTS = ("image_embeds", "audio_embeds")
"""Types of upstream's chat parts that hold an embedding, which stands under the same name."""


def serve_arguments(options: Mapping[str, Any]) -> Any:
    """Upstream's parsed server arguments with ``options`` set, each by its Python name.

    Raises GraphServeError for a name that upstream does not know.
    """
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    args = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    for name, value in options.items():
        if not hasattr(args, name):
            raise GraphServeError(f"decoder.engine_args.{name} is not an argument of vLLM's server")
        setattr(args, name, value)
    return args


def json_error(error: Exception) -> tuple[int, str]:
    """Status and OpenAI body for an error raised by upstream's serving."""
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

    response = create_error_response(error)
    return int(response.error.code), response.model_dump_json()


async def invalid_request(error: Any) -> str:
    """OpenAI body for a request that upstream's schema refuses, by the handler of upstream's own server."""
    from fastapi.exceptions import RequestValidationError
    from vllm.entrypoints.serve.exception_handling.handlers.validation import validation_exception_handler

    found = [{**each, "loc": ("body", *each["loc"])} for each in error.errors(include_url=False)]
    state = SimpleNamespace(args=SimpleNamespace(log_error_stack=False))
    request: Any = SimpleNamespace(app=SimpleNamespace(state=state))
    response = await validation_exception_handler(request, RequestValidationError(found))
    return bytes(response.body).decode()


def parsed_request(request: Mapping[str, Any]) -> Any:
    """The request in upstream's schema. Embeddings go round it: it would walk through every row of them.

    Raises VLLMClientError, ValueError or TypeError, whatever upstream's own checks stumble over.
    """
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.exceptions import VLLMClientError

    light, lifted = without_embeddings(request)
    try:
        parsed = ChatCompletionRequest.model_validate(light, from_attributes=True)
    except (ValueError, TypeError, VLLMClientError):  # pydantic's among them
        raise
    except Exception as error:  # they look into values before the types of these are checked
        raise ValueError(f"the request does not fit the schema: {error}") from error
    for (message, part), embedding in lifted.items():
        parsed.messages[message]["content"][part].update(embedding)
    return parsed


Lifted = dict[tuple[int, int], dict[str, Any]]


def without_embeddings(request: Mapping[str, Any]) -> tuple[dict[str, Any], Lifted]:
    """A copy of the request with None for every embedding, and those by their message and part.

    Upstream's schema takes None for an embedding that has a uuid, as all of ours have.
    """
    messages = request.get("messages")
    lifted: Lifted = {}
    if not isinstance(messages, list):
        return dict(request), lifted
    for number, message in enumerate(messages):
        parts = message.get("content") if isinstance(message, Mapping) else None
        for place, part in enumerate(parts if isinstance(parts, list) else ()):
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind in EMBEDDING_PARTS and isinstance(part.get(kind), Mapping):
                lifted[number, place] = {kind: part[kind]}
    light = list(messages)
    for number in {number for number, _ in lifted}:
        parts = messages[number]["content"]
        emptied = [
            {**part, **dict.fromkeys(lifted[number, n])} if (number, n) in lifted else part
            for n, part in enumerate(parts)
        ]
        light[number] = {**messages[number], "content": emptied}
    return {**request, "messages": light}, lifted


def traced() -> Any:
    """What upstream puts its own span under (``otlp_traces_endpoint``); None where nobody traces."""
    if not (found := tracing.headers()):
        return None
    from starlette.requests import Request

    return Request({"type": "http", "headers": [(n.encode(), v.encode()) for n, v in found.items()]})


class ChatEngine:
    """AsyncLLM with upstream's chat serving on top. Start it inside the running event loop."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        self.engine: Any = None
        self.chat_serving: Any = None
        self.models: Any = None

    async def start(self) -> None:
        """Start the engine process and build the serving layer."""
        from starlette.datastructures import State
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.entrypoints.launchers.api_server.app_state import init_app_state
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        args = serve_arguments(self.options)
        engine_args = AsyncEngineArgs.from_cli_args(args)
        with logs_kept():
            self.engine = AsyncLLM.from_engine_args(
                engine_args,
                usage_context=UsageContext.OPENAI_API_SERVER,  # as upstream's server says it, for batch sizes
                stat_loggers=[engine_metrics()],
            )
        state = State()
        await init_app_state(self.engine, state, args, await self.engine.get_supported_tasks())
        self.chat_serving = state.openai_serving_chat
        self.models = state.openai_serving_models

    async def loaded_modules(self) -> tuple[str, ...]:
        """Direct child modules of the model in the engine process that hold weights."""
        per_rank = await self.engine.collective_rpc("graphserve_modules_loaded")
        return tuple(per_rank[0])

    async def device_uuids(self) -> tuple[str, ...]:
        """UUIDs of the GPUs that hold the model's parts; none on the CPU."""
        per_rank = await self.engine.collective_rpc("graphserve_device_uuid")
        return tuple(uuid for uuid in per_rank if uuid is not None)

    async def check_health(self) -> None:
        """Raise EngineDeadError when the engine process is gone."""
        await self.engine.check_health()

    @property
    def dead(self) -> bool:
        """Whether the engine process is known to be gone."""
        return bool(self.engine is not None and self.engine.errored)

    @property
    def unfinished(self) -> int:
        """Requests that the engine has in hand."""
        return int(self.engine.output_processor.get_num_unfinished_requests()) if self.engine else 0

    async def model_list(self) -> dict[str, Any]:
        """The body of ``GET /v1/models``."""
        listed: dict[str, Any] = (await self.models.show_available_models()).model_dump()
        return listed

    async def chat(self, request: dict[str, Any], request_id: str = "") -> AsyncGenerator[Any, None]:
        """Run one chat request. Yields the status and whether it streams, then text pieces.

        ``request_id`` names the answer where the request itself does not.
        """
        from jinja2 import TemplateError
        from pydantic import ValidationError
        from vllm.entrypoints.serve.engine.protocol import ErrorResponse
        from vllm.exceptions import GenerationError, RetryableRequestError, VLLMClientError

        try:
            parsed = parsed_request(request)
            if request_id and "request_id" not in request:
                parsed.request_id = request_id
            answer = await self.chat_serving.create_chat_completion(parsed, raw_request=traced())
        except RetryableRequestError:
            raise
        except RecursionError:  # in what upstream parses itself, as the arguments of a tool call
            status, body = json_error(ValueError("the request is nested too deeply"))
            yield status, False
            yield body
            return
        except ValidationError as error:
            yield 400, False
            yield await invalid_request(error)
            return
        except (
            ValueError,
            TypeError,
            OverflowError,
            NotImplementedError,
            TemplateError,  # a chat template that refuses the conversation
            GenerationError,  # the engine gave this request up, for example over its grammar
            VLLMClientError,
        ) as error:
            status, body = json_error(error)
            yield status, False
            yield body
            return
        if isinstance(answer, ErrorResponse):
            yield int(answer.error.code), False
            yield answer.model_dump_json()
        elif hasattr(answer, "model_dump_json"):
            yield 200, False
            yield answer.model_dump_json()
        else:
            yield 200, True
            async for chunk in answer:
                yield chunk

    def shutdown(self) -> None:
        """Stop the engine process."""
        if self.engine is not None:
            self.engine.shutdown()
