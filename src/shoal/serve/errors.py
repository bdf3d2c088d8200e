"""What a request is refused with: an HTTP status and one line, which says what to change.

RequestError          400  the request is malformed, or does not fit the model
├── ModelMissing      404  no such model or version
├── BodyTooLarge      413  more bytes, elements or samples than this server takes
├── PredictFailed     500  the model itself raised an error
├── ServerBusy        503  no room in the queue; `retry_after` says when to come again
└── DeadlinePassed    504  the answer would come later than the client waits
"""

from shoal.core.errors import ShoalError


class RequestError(ShoalError):
    """The request cannot be answered; `status` is the HTTP status."""

    status = 400
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Headers of the answer beside the usual ones."""


class ModelMissing(RequestError):  # noqa: N818  (a fact about the server, not a mistake of ours)
    """The server has no such model, or not this version of it."""

    status = 404


class BodyTooLarge(RequestError):  # noqa: N818  (as above)
    """The request is larger than a limit of the server."""

    status = 413


class PredictFailed(RequestError):  # noqa: N818  (as above)
    """The model raised an error for inputs that fit its declaration."""

    status = 500


class ServerBusy(RequestError):  # noqa: N818  (as above)
    """The server has as much to do as it can finish in time."""

    status = 503

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which there should be room."""


class DeadlinePassed(RequestError):  # noqa: N818  (as above)
    """The client's time was over before the model had answered."""

    status = 504


class LoadRefused(ShoalError):  # noqa: N818  (as above)
    """A version was not loaded: it is damaged, or does not fit the memory budget."""
