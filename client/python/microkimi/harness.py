"""The lm-evaluation harness on models of microkimid: an adapter on the client.

    import lm_eval
    from microkimi.harness import MicrokimiLM

    lm_eval.simple_evaluate(MicrokimiLM("story-k3"), tasks=["lambada_openai"])

Importing this registers the model "microkimi": `lm_eval.simple_evaluate("microkimi",
model_args="model=story-k3,precision=exact", ...)`. Needs the package lm_eval (0.4.9 or later),
which microkimi does not install.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lm_eval.api.instance import Instance  # type: ignore[import-not-found, unused-ignore]
from lm_eval.api.model import LM  # type: ignore[import-not-found, unused-ignore]
from lm_eval.api.registry import (  # type: ignore[import-not-found, unused-ignore]
    register_model,
)

from .client import Client
from .requests import Precision
from .scores import Score, ScoreItem

# Requests at once, which the daemon puts into common forward passes; and texts of a request.
AT_ONCE = 8
TEXTS = 16
# Where a task does not say how much to generate.
MAX_NEW = 256


@register_model("microkimi")
class MicrokimiLM(LM):  # type: ignore[misc, unused-ignore]
    """What the harness asks of a model. `client`: None starts or finds a daemon as usual."""

    def __init__(
        self,
        model: str | None = None,
        precision: Precision = "auto",
        client: Client | None = None,
        **_: Any,  # batch_size, device and the like are the daemon's affair
    ) -> None:
        super().__init__()
        self._model = model
        self._precision = precision
        self._client = client or Client()

    def _score(self, items: Sequence[ScoreItem]) -> list[Score]:
        def some(at: int) -> list[Score]:
            return self._client.score(
                items[at : at + TEXTS],
                model=self._model,
                precision=self._precision,
                tokens=False,
                priority="background",
            )

        with ThreadPoolExecutor(AT_ONCE) as pool:
            parts = pool.map(some, range(0, len(items), TEXTS))
            return [score for part in parts for score in part]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Of a continuation behind its context, and whether greedy decoding would give it."""
        items = [
            ScoreItem(text=continuation, context=context)
            for context, continuation in (one.args for one in requests)
        ]
        return [(one.logprob, one.top1 == one.tokens) for one in self._score(items)]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Of whole texts, each read from an empty state to its end."""
        return [one.logprob for one in self._score([{"text": one.args[0]} for one in requests])]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        def one(request: Instance) -> str:
            prompt, how = request.args
            until = how.get("until") or []
            temperature = how.get("temperature", 0.0) if how.get("do_sample") else 0.0
            return self._client.run(
                prompt,
                chat=False,
                model=self._model,
                precision=self._precision,
                max_new=how.get("max_gen_toks", MAX_NEW),
                temperature=temperature,
                stop=[until] if isinstance(until, str) else list(until),
                priority="background",
            ).text

        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(one, requests))
