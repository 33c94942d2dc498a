"""How much each searched setting matters: numbers, sentences and figures."""
