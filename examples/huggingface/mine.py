"""A small BERT, made from its configuration, that says whether a sentence of numbers rises; nothing is downloaded."""

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from ablate.functions.huggingface import fit

EPOCHS = 4


def sentences(count, seed):
    draws = np.random.default_rng(seed)
    ids = np.sort(draws.integers(1, 50, (count, 12)), axis=1)
    labels = draws.integers(0, 2, count)
    ids[labels == 0] = draws.permuted(ids[labels == 0], axis=1)
    return [{"input_ids": torch.tensor(row), "labels": int(label)} for row, label in zip(ids, labels, strict=True)]


def accuracy(found):
    return {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())}


def trainer(model, config, run):
    args = TrainingArguments(
        output_dir=run.folder,
        num_train_epochs=EPOCHS,
        learning_rate=config["lr"],
        per_device_train_batch_size=32,
        eval_strategy="epoch",
        report_to="none",
        disable_tqdm=True,
        use_cpu=run.device.type == "cpu",
    )
    data = {"train_dataset": sentences(256, 1), "eval_dataset": sentences(128, 2)}
    return Trainer(model, args, **data, compute_metrics=accuracy)


def bert(config):
    width = {"hidden_size": config["width"], "intermediate_size": 2 * config["width"]}
    return BertConfig(vocab_size=50, num_attention_heads=2, num_labels=2, num_hidden_layers=2, **width)


def size(config):
    return BertForSequenceClassification(bert(config))


def train(config, run):
    model = run.build(BertForSequenceClassification, bert(config))
    fit(run, trainer(model, config, run))  # in place of trainer.train()


def test(model, config):
    held_out = sentences(256, 3)
    ids, labels = (torch.stack([torch.as_tensor(each[name]) for each in held_out]) for name in ("input_ids", "labels"))
    with torch.no_grad():
        found = model.eval()(ids.to(model.device)).logits.argmax(1).cpu()
    return {"test_accuracy": float((found == labels).float().mean())}
