"""Serve's side of routing by shape: reads what replicas report, lets ``policies.routing`` rank them.

Set as ``RequestRouterConfig(request_router_class="deployments.shape_router:ShapeRouter",
request_router_kwargs={"bound": 2, "max_graphs": 4}, request_routing_stats_period_s=1.0)``. It runs in the
process that holds the handle, so each Ingress replica ranks for itself.
"""

import time
from typing import Any

from ray.serve.request_router import FIFOMixin, PendingRequest, RequestRouter, RunningReplica

from policies.lifecycle import ReplicaState
from policies.routing import Homes, RoutedReplica, route
from policies.stats import UNKNOWN_KEY

STATES = {state.value: state for state in ReplicaState}


class ShapeRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]
    """Ranks by two keyword arguments of the call: ``shape_key``, without which it goes by load, and
    ``avoid``, the ids of replicas where it failed before (a failed replica's report lags).

    Serve waits and looks again while every replica is full or leaving.
    """

    def initialize_state(self, bound: int = 2, max_graphs: int = 4, home_ttl_s: float = 3.0) -> None:
        """Called by Serve with ``request_router_kwargs``.

        Args:
            bound: how many more requests a preferred replica may have than the freest one.
            max_graphs: slots of a replica that has not reported yet.
            home_ttl_s: how long a new key keeps its home unreported; a few stats periods.
        """
        if bound < 0 or max_graphs < 0 or home_ttl_s < 0:
            raise ValueError("bound, max_graphs and home_ttl_s must not be negative")
        self._bound = bound
        self._max_graphs = max_graphs
        self._homes = Homes(home_ttl_s)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Ranks of replicas, best first; Serve takes the first rank that has room."""
        key, avoid = UNKNOWN_KEY, frozenset[str]()
        if pending_request is not None:
            # Without this Serve asks again at once, for ever, when no replica can take the request.
            pending_request.routing_context.should_backoff = True
            key = pending_request.kwargs.get("shape_key") or UNKNOWN_KEY
            avoid = frozenset(pending_request.kwargs.get("avoid") or ())
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        views = [self._view(name, replica) for name, replica in by_id.items()]
        now_s = time.monotonic()
        ranks, self._homes = route(views, key, self._homes, now_s, bound=self._bound, avoid=avoid)
        return [[by_id[name] for name in names] for names in ranks]

    def _view(self, name: str, replica: RunningReplica) -> RoutedReplica:
        """What a replica last said of itself, with the queue length this router knows."""
        said: dict[str, Any] = replica.routing_stats or {}
        queue_len = self.replica_queue_len_cache.get(replica.replica_id)
        return RoutedReplica(
            replica_id=name,
            queue_len=said.get("queued", 0) if queue_len is None else queue_len,
            state=STATES.get(said.get("state", ""), ReplicaState.READY),
            graphs_enabled=said.get("graphs_enabled", True),
            captured=frozenset(said.get("captured", ())),
            free_slots=said.get("free_slots", self._max_graphs),
        )

    def _get_pending_request_matching_metadata(self, request_metadata: Any = None) -> PendingRequest | None:
        """The very request that a replica was ranked for.

        FIFOMixin alone gives the replica to the oldest request, whatever its shape; and Serve's match by
        request id loses calls, for all calls of one HTTP request share that id.
        """
        for pending in self._pending_requests_to_fulfill:
            if pending.metadata is request_metadata and not pending.future.done():
                return pending
        return None
