"""Codecs made of codecs: error feedback, momentum correction, warm-up, parts that travel as they are."""
