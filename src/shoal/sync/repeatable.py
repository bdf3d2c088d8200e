"""What can be done again when members are lost in the middle: an engine, what rides on it, an exchange of both.

    whole()      could all that has started here be finished from what is there now? any thread may ask
    repeat()     let all that has started start again, among the members of the new view
    recover()    finish all that has started without anybody's help: it was whole when the view ended

After `repeat` and `recover` everything is finished again. Where somebody cannot, a loss ends the run.
"""

from shoal.core.errors import UsageError


class RetryableExchange:
    """Nothing that can be repeated: the null member."""

    repeatable: bool = False

    def whole(self) -> bool:
        raise UsageError(
            f"{type(self).__name__} cannot be repeated without a lost worker; go on with shoal run --resume"
        )

    def repeat(self) -> None:
        self.whole()

    def recover(self) -> None:
        self.whole()
