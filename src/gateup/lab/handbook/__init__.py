"""The handbook: one chapter on the gated feed-forward network, in English and Chinese.

`text/LANGUAGE/NN_id.md` has the sections, `code/*.py` the experiments, which both languages share.
Numbers stand in neither: a text says {{llama-3-8b/mlp_share}} and numbers.py computes it. From
these are made the lab's page, an executable notebook, a printable page and plain Markdown.
"""

from __future__ import annotations

from gateup.lab.handbook.source import LANGUAGES, Block, Code, Prose, Question, Section, chapter

__all__ = ["LANGUAGES", "Block", "Code", "Prose", "Question", "Section", "chapter"]
