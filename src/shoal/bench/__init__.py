"""Measuring: what plans and models cost, and what they give for it."""
