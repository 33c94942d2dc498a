"""A small BERT that is trained by the Trainer of transformers; its sentences are made, nothing is downloaded."""

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(torch.utils.data.Dataset):
    """Ten words of 0 to 29; the label is whether most of them are below 15."""

    def __init__(self, count, seed):
        self.words = np.random.default_rng(seed).integers(0, 30, (count, 10))
        self.labels = (self.words < 15).sum(1) > 5

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"input_ids": torch.tensor(self.words[i]), "labels": int(self.labels[i])}


def compute_metrics(found):
    return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}


def model(hidden):
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=30,
            hidden_size=hidden,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=2 * hidden,
            max_position_embeddings=16,
        )
    )


def arguments(lr):
    return TrainingArguments(
        output_dir="out",
        num_train_epochs=4,
        learning_rate=lr,
        warmup_steps=10,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=200,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )


def trainer(net, lr):
    data = {"train_dataset": Sentences(600, 1), "eval_dataset": Sentences(200, 2)}
    return Trainer(net, arguments(lr), compute_metrics=compute_metrics, **data)


def train():
    net = model(hidden=16)
    trainer(net, lr=3e-3).train()
    return net


def test(net):
    print(trainer(net, lr=3e-3).evaluate(Sentences(200, 3), metric_key_prefix="test"))


if __name__ == "__main__":
    test(train())
