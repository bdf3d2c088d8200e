"""What an exchange has decided, as events of the record."""

import time

from shoal.core.events import Chosen, Event, Guarded
from shoal.sync.news import News, Tightened


def event_of(news: News, step: int) -> Event:
    if isinstance(news, Tightened):
        return Guarded(
            at=time.time(),
            step=step,
            cosine=news.cosine,
            budget=news.budget,
            steps=news.steps,
            action=news.action,
            ratio=news.ratio,
        )
    return Chosen(at=time.time(), step=step, codec=news.codec, reason=news.reason, steps=news.steps)
