"""What an exchange has decided, as events of the record."""

import time

from shoal.core.events import ChoiceMade, GuardChecked, RunEvent
from shoal.sync.news import GuardTightened, News


def event_of(news: News, step: int) -> RunEvent:
    if isinstance(news, GuardTightened):
        return GuardChecked(
            at=time.time(),
            step=step,
            cosine=news.cosine,
            budget=news.budget,
            steps=news.steps,
            action=news.action,
            ratio=news.ratio,
        )
    return ChoiceMade(at=time.time(), step=step, codec=news.codec, reason=news.reason, steps=news.steps)
