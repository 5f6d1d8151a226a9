"""The receipt of an encode: made, written to the log, and told to who traces."""

import logging
from dataclasses import dataclass

from deployments import tracing
from deployments.encoders.batcher import Done
from deployments.messages import EncodedMedia, EncodeReceipt, MediaItem

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True)
class Times:
    """When an item's stages began, as ``time.monotonic()`` counts, and what only the caller measured."""

    begun_s: float
    preprocess_s: float
    queued_at_s: float


def make(
    item: MediaItem,
    encoder: str,
    replica_id: str,
    shape_key: str,
    message: EncodedMedia,
    done: Done,
    times: Times,
) -> EncodeReceipt:
    """What the Ingress is told of an item that was encoded."""
    return EncodeReceipt(
        uuid=item.uuid,
        encoder=encoder,
        replica_id=replica_id,
        shape_key=shape_key,
        tokens=len(message.data),
        bytes=message.data.nbytes,
        outcome="hit" if done.hit else "miss",
        batch_size=done.batch_size,
        preprocess_s=times.preprocess_s,
        queue_s=done.queue_s,
        encode_s=done.encode_s,
    )


def tell(item: MediaItem, receipt: EncodeReceipt, miss_reason: str, times: Times) -> None:
    """The one line of an encode, as text and as fields, and a span for each stage."""
    fields: dict[str, str | int] = {
        "shape_key": receipt.shape_key,
        "outcome": receipt.outcome,
        "miss_reason": miss_reason,
        "batch_size": receipt.batch_size,
        "tokens": receipt.tokens,
    }
    seconds = {
        "preprocess_s": round(receipt.preprocess_s, 6),
        "queue_s": round(receipt.queue_s, 6),
        "encode_s": round(receipt.encode_s, 6),
    }
    logger.info(
        "encoded %s: %s%s, %d tokens, batch of %d, preprocess %.4f s, queue %.4f s, encode %.4f s",
        receipt.shape_key,
        receipt.outcome,
        f" ({miss_reason})" if miss_reason else "",
        receipt.tokens,
        receipt.batch_size,
        receipt.preprocess_s,
        receipt.queue_s,
        receipt.encode_s,
        extra={"request_id": item.request_id, **fields, **seconds},
    )
    taken_s = times.queued_at_s + receipt.queue_s
    tracing.note("preprocess", times.begun_s, times.begun_s + receipt.preprocess_s)
    tracing.note("queue", times.queued_at_s, taken_s)
    tracing.note("encode", taken_s, taken_s + receipt.encode_s, **fields)
