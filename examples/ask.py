"""Ask a running server about a picture and a sound from disk, and print the answer as it comes.

make serve                       # in another terminal
.venv/bin/python examples/ask.py
.venv/bin/python examples/ask.py --picture cat.png --sound question.flac --text "What do you see and hear?"
"""

import argparse
import base64
import mimetypes
from pathlib import Path
from typing import Any

from openai import OpenAI

HERE = Path(__file__).parent


def main() -> None:
    """Send one message of three parts and print the stream."""
    options = parse()
    client = OpenAI(base_url=options.base_url, api_key=options.api_key)
    model = options.model or client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": content(options)}],
        max_tokens=options.max_tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    usage = None
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
        usage = chunk.usage or usage
    print()
    if usage is not None:
        print(f"[{model}: {usage.prompt_tokens} tokens in, {usage.completion_tokens} out]")


def content(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The parts of the message, in the order in which the model sees them."""
    return [picture_part(options.picture), sound_part(options.sound), {"type": "text", "text": options.text}]


def picture_part(path: Path) -> dict[str, Any]:
    """A picture as a data: URL; an https: URL of one works as well."""
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{encoded(path)}"}}


def sound_part(path: Path) -> dict[str, Any]:
    """A clip of wav, mp3, flac or ogg, any sample rate."""
    return {"type": "input_audio", "input_audio": {"data": encoded(path), "format": path.suffix[1:].lower()}}


def encoded(path: Path) -> str:
    """A file in base64."""
    return base64.b64encode(path.read_bytes()).decode("ascii")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="none", help="needed only where the server's api_keys is set")
    parser.add_argument("--model", help="default: the one that is served")
    parser.add_argument("--picture", type=Path, default=HERE / "picture.png")
    parser.add_argument("--sound", type=Path, default=HERE / "word.wav")
    parser.add_argument("--text", default="What do you see and hear?")
    parser.add_argument("--max-tokens", type=int, default=48)
    return parser.parse_args()


if __name__ == "__main__":
    main()
