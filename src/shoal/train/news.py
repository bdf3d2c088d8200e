"""What an exchange has decided, as events of the record."""

import time

from shoal.core.events import ChoiceMade, GuardChecked, RunEvent
from shoal.sync.observer import ExchangeDecision, GuardTightened


def event_of(news: ExchangeDecision, step: int) -> RunEvent:
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
