"""The settings of a network of the transformer family, and what it must know of its data."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from ablate.base.errors import RequestError
from ablate.core.config import DatasetFacts, Frozen, NotNegative, Positive, Protocol, Size, TaskConfig

Similarity = Literal["separate", "collapsed", "shared", "mirrored", "cholesky"]
Value = Literal["separate", "collapsed", "stacked", "none", "key"]
Projection = Literal["query", "key", "value", "output"]
SINGLE_HEAD_SIMILARITIES = ("collapsed", "mirrored", "cholesky")
SINGLE_HEAD_VALUES = ("collapsed", "stacked")
WITHOUT_KEY_VECTORS = ("collapsed", "mirrored", "cholesky")

# Which projections may carry a bias, per form. There is none where it would break the promised symmetry (`mirrored`,
# `cholesky`), and none for a projection that uses the matrix of another.
SIMILARITY_BIASES: dict[str, tuple[Projection, ...]] = {
    "separate": ("query", "key"),
    "collapsed": ("query", "key"),
    "shared": ("key",),
    "mirrored": (),
    "cholesky": (),
}
VALUE_BIASES: dict[str, tuple[Projection, ...]] = {
    "separate": ("value", "output"),
    "collapsed": ("output",),
    "stacked": ("output",),
    "none": (),
    "key": ("output",),
}


def _none_to_zero(value: Any) -> Any:
    return 0 if value in ("none", None) and value is not False else value


class ModelConfig(Frozen):
    """One architecture of the transformer family (sizes and names: docs/models.md; papers A and B)."""

    width: Positive = 60
    """Model width N."""
    depth: Positive = 6
    """Number of blocks S."""
    heads: Positive = 1
    """Attention heads H; the head width is N/H."""
    mlp: Annotated[NotNegative, BeforeValidator(_none_to_zero, json_schema_input_type=int | Literal["none"])] = 256
    """Hidden width h of the block's MLP (paper A, Eq. 7); `none` (0) leaves the MLP out (paper A, section 2)."""
    mlp_ratio: Annotated[float, Field(gt=0)] | None = None
    """Hidden width of the MLP as a multiple of the width. It replaces `mlp`, unless `mlp` is `none`."""
    similarity: Similarity = "separate"
    """How two tokens are compared (paper A, Eq. 3, Eq. 11 and section 5; paper B, section 3.1)."""
    value: Value = "separate"
    """What attention averages (paper A, Eq. 9 and 10; paper B, section 3.1)."""
    pair_position: NotNegative = 0
    """Channels m of the 2-D position term "+Pos" (paper B, section 3.1); 0 leaves it out."""
    diagonal: Literal["plain", "normalised"] = "plain"
    """`normalised` divides the diagonal of the similarity by its mean (paper B, section 3.2)."""
    bias: Literal["all", "none"] | tuple[Projection, ...] = "all"
    """Which projections carry a bias; `all` means every one that the chosen forms have."""
    position: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    """Position code added to the token embeddings; only `learned` has weights."""
    pool: Literal["mean", "cls"] = "mean"
    """How the tokens of a sample are reduced to one vector; `cls` adds a learned token (N weights)."""
    norm: Literal["pre", "post", "none"] = "pre"
    """Position of the block's two LayerNorms; `none`: no LayerNorm."""
    residual: bool = True
    """Whether each block adds its input to its output."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of values set to zero in training, after the embedding and in the output of each branch."""

    @model_validator(mode="after")
    def _possible(self) -> ModelConfig:
        faults = impossible(self)
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @property
    def hidden(self) -> int:
        """The hidden width of the MLP, 0 without one."""
        return self.mlp if self.mlp == 0 or self.mlp_ratio is None else max(round(self.mlp_ratio * self.width), 1)

    def biases(self) -> tuple[Projection, ...]:
        """Return the projections that carry a bias, in the order query, key, value, output."""
        allowed = SIMILARITY_BIASES[self.similarity] + VALUE_BIASES[self.value]
        if self.bias == "all":
            return allowed
        return () if self.bias == "none" else tuple(name for name in allowed if name in self.bias)

    def cross_biases(self) -> tuple[Projection, ...]:
        """Return the projections of an attention to the source that carry a bias; it has all four in every form."""
        return get_args(Projection) if self.bias == "all" else () if self.bias == "none" else self.bias


def impossible(config: ModelConfig) -> list[str]:
    """Return why `config` cannot be built, one sentence per reason (design table of the axes); empty if it can."""
    faults = []
    if config.width % config.heads:
        faults.append(f"width={config.width} is not a multiple of heads={config.heads}")
    if config.heads > 1 and config.similarity in SINGLE_HEAD_SIMILARITIES:
        faults.append(f"similarity={config.similarity} needs heads=1, got heads={config.heads}")
    if config.heads > 1 and config.value in SINGLE_HEAD_VALUES:
        faults.append(f"value={config.value} needs heads=1, got heads={config.heads}")
    if config.value == "key" and config.similarity in WITHOUT_KEY_VECTORS:
        faults.append(f"value=key needs key vectors, and similarity={config.similarity} has none")
    if isinstance(config.bias, tuple):
        allowed = SIMILARITY_BIASES[config.similarity] + VALUE_BIASES[config.value]
        wrong = [name for name in config.bias if name not in allowed]
        if wrong:
            faults.append(
                f"bias={wrong[0]} does not exist with similarity={config.similarity}, value={config.value}"
                f" (possible: {', '.join(allowed) or 'none'})"
            )
    if config.position == "sinusoidal" and config.width % 2:
        faults.append(f"position=sinusoidal needs an even width, got width={config.width}")
    return faults


class InputShape(DatasetFacts):
    """What a model must know of a task, without loading any data."""

    tokens: Positive
    """Tokens per sample T (without a class token); the most there can be where lengths differ."""
    features: Positive
    """Features per token F: an image patch has height * width * channels, ids have the size of their vocabulary."""
    outputs: Positive
    """Scores per sample, or per token where `output` is `token`: M."""
    train_samples: Positive
    """Samples of the training part, before validation is held out of it."""
    test_samples: Positive | None = None
    """Samples of the test part, if they are known."""
    inputs: Literal["vectors", "ids"] = "vectors"
    """`vectors`: x is [B, T, F]; `ids`: x is [B, T] whole numbers below F, each standing for a one-hot vector."""
    output: Literal["sample", "token", "set"] = "sample"
    """`sample`: scores [B, M]; `token`: scores [B, T, M]; `set`: one score per token, [B, T], whatever their order."""
    causal: bool = False
    """Whether a token may see only itself and those before it."""
    source_tokens: Annotated[int, Field(ge=0)] = 0
    """Most tokens of a source text S; above 0 the model is an encoder-decoder on the pair (source, x)."""
    source_features: Annotated[int, Field(ge=0)] = 0
    """Size of the source vocabulary."""
    pad: Annotated[int, Field(ge=0)] | None = None
    """Id that fills up short texts, the same in source and target; nothing attends to it in the source."""
    ships_validation: bool = False
    """Whether the data set includes a validation part. If it does, nothing is held out of the training part."""
    window: Annotated[int, Field(ge=0)] = 0
    """Length in tokens of the windows on one text that are the training samples; 0: the samples are no windows.

    Window i begins at token i."""
    patch: tuple[Positive, Positive] | None = None
    """Height and width in pixels of the patches that images are cut into."""

    def trained_samples(self, task: TaskConfig, protocol: Protocol) -> int:
        """Return how many samples a trial of this protocol trains on: K (paper A, Eq. 12).

        `ablate.engine.training.splits.split` takes these samples; the two are tested against each other.
        """
        samples = self.train_samples
        if protocol == "held_out" and not self.ships_validation:
            # of windows on a text, those that reach into the part that is held out are left out as well
            samples = max(samples - max(round(task.validation * samples), 1) - self.window, 1)
        kept = max(1, round(task.share * samples))
        return min(kept, task.train_limit or kept)

    def evaluated_samples(self, task: TaskConfig, protocol: Protocol) -> tuple[int | None, int | None]:
        """Return the numbers of validation and test samples, None if not known: per token, windows, a shipped part.

        `ablate.engine.training.splits.split` takes these samples; the two are tested against each other.
        """
        if self.output == "token":
            return None, None
        test = None if self.test_samples is None else max(1, round(task.share * self.test_samples))
        if protocol == "paper" or self.ships_validation or self.window:
            return test if protocol == "paper" else None, test
        held_out = min(max(round(task.validation * self.train_samples), 1), self.train_samples - 1)
        return max(1, round(task.share * held_out)), test

    def overdetermination(self, size: Size, task: TaskConfig, protocol: Protocol) -> float:
        """Return Q = K * M / P (paper A, Eq. 12): K samples are trained on, M scores per sample over all tokens."""
        per_sample = self.outputs * (self.tokens if self.output == "token" else 1)
        return self.trained_samples(task, protocol) * per_sample / size["params"]


def refuse_pool(config: ModelConfig, shape: InputShape) -> None:
    """Raise RequestError if the class token of `pool: cls` cannot see other tokens or there are no sample scores."""
    if config.pool == "cls" and (shape.output != "sample" or shape.causal):
        of = "each token" if shape.output == "token" else "each member" if shape.output == "set" else "the last token"
        raise RequestError(f"model.pool = 'cls': the task asks for scores of {of}, which need pool: mean")
