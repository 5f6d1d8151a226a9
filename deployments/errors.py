"""The error tree: client, transient, terminal.

Every error pickles, for it crosses process borders: all arguments go to ``super().__init__``.
"""


class GraphServeError(Exception):
    """Base of every error this project raises on purpose."""


class ClientError(GraphServeError):
    """The request is at fault: answered with a 4xx that names the part.

    Args:
        message: what is wrong, for the client.
        param: path of the part, for example ``messages[0].content[1].image_url``.
        status: HTTP status, 400 to 499.
        code: short machine-readable word.
        detail: the cause in a library's words, for the log alone.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        status: int = 400,
        code: str | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(message, param, status, code, detail)
        self.message = message
        self.param = param
        self.status = status
        self.code = code
        self.detail = detail

    def __str__(self) -> str:
        return self.message


class ReplicaError(GraphServeError):
    """A replica could not do the work. ``replica_id`` says which, so that a retry can avoid it."""

    def __init__(self, message: str, replica_id: str | None = None) -> None:
        super().__init__(message, replica_id)
        self.message = message
        self.replica_id = replica_id

    def __str__(self) -> str:
        return self.message


class TransientError(ReplicaError):
    """This attempt failed, another replica or a later attempt may succeed."""


class TerminalError(ReplicaError):
    """This replica can do no more work: retry elsewhere, replace the replica."""


class TerminalGraphError(TerminalError):
    """A graph capture or replay failed earlier and the CUDA context cannot be trusted.

    Raised for every later call of the adapter, without CUDA work (contract A11).
    """

    def __init__(self, encoder: str, cause: str) -> None:
        GraphServeError.__init__(self, encoder, cause)
        self.message = f"the {encoder} encoder's graphs failed for good: {cause}"
        self.replica_id = None
        self.encoder = encoder
        self.cause = cause
