"""BLEU of whole corpora, as sacreBLEU computes it by default."""

from __future__ import annotations

from collections.abc import Sequence


def bleu(hypotheses: Sequence[Sequence[str]], references: Sequence[str]) -> list[float]:
    """Return the BLEU of each of the `hypotheses`, one text per reference in each, 0 to 100.

    Scores are case-sensitive; tokenisation is 13a, smoothing is exponential, and each text has one reference. Sources:
    Papineni et al. 2002; Post 2018, section 3. Equals the number that `sacrebleu references -i hypotheses -b` prints.
    """
    # The import takes a tenth of a second, and a listing of names does not need it.
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(references=[list(references)])
    return [float(metric.corpus_score(list(texts), None).score) for texts in hypotheses]
