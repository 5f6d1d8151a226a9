"""One picture through a running encoder replica, called as the Ingress calls, timed by stage."""

import time
from io import BytesIO
from typing import Any

import numpy as np

from deployments.messages import EncodeReceipt, MediaItem

HOP = "hop and hand-over"
WHOLE = "whole call"


def noise(seed: int, width: int, height: int) -> bytes:
    """A JPEG of new noise."""
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


async def timed_encode(handle: Any, item: MediaItem) -> tuple[dict[str, float], EncodeReceipt, Any]:
    """Seconds by stage, the receipt, and the reference of the embedding, which is complete by then.

    ``handle`` streams by reference. What the replica's own stages do not explain is the hop. Raises TypeError
    where the replica answers with something else than a receipt.
    """
    begun = time.perf_counter()
    refs = await handle.encode.remote(item, shape_key=item.media_key)._to_object_ref_gen()
    receipt = await (await refs.__anext__())
    if not isinstance(receipt, EncodeReceipt):
        raise TypeError(f"no receipt but {receipt!r}")
    embedding = await refs.__anext__()
    whole = time.perf_counter() - begun  # nobody waits for the stream's end
    await anext(refs, None)
    stages = {
        "preprocessing": receipt.preprocess_s,
        "queue": receipt.queue_s,
        "encoder": receipt.encode_s,
    }
    return {**stages, HOP: whole - sum(stages.values()), WHOLE: whole}, receipt, embedding
