"""Parts of a built network by path: left out, frozen, shared or exchanged, and what can be (docs/parts.md)."""
