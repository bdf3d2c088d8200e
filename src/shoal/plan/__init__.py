"""The plan language: HOW replicas agree, WHEN, WHAT travels and HOW the model is split, as one plain value.

Read in this order: terms (the words), text (the syntax), bind (a written term becomes a value), plan (the
value), presets (named plans), load (what `--plan` accepts), rules (what fits together), explain.
"""

from shoal.plan.plan import Plan

__all__ = ["Plan"]
