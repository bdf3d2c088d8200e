"""What engines, aggregators and exchanges do when a member is lost in the middle of an operation.

    is_complete()      can everything that has started here be finished from what has arrived? Any thread may ask
    retry()            start everything that has started once more, among the members of the new view
    finish_locally()   finish everything that has started without the others: it was complete when the view ended

After `retry` and `finish_locally` the caller finishes everything again. If an operation cannot be retried, a lost
worker ends the run.
"""

from shoal.core.errors import UsageError


class RetryableOperation:
    """The null member: nothing here can be retried."""

    retryable: bool = False

    def is_complete(self) -> bool:
        raise UsageError(
            f"{type(self).__name__} cannot be repeated without a lost worker; go on with shoal run --resume"
        )

    def retry(self) -> None:
        # raises the error that says why
        self.is_complete()

    def finish_locally(self) -> None:
        self.is_complete()
