# %% [markdown]
# # A tour in Python
#
# Train a model in a minute, look at its link head, exchange two attention weights, test every head, open the model with
# transformers and test it again, and plot how the head emerges. Two cells of set-up come first.

# %%
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

root = next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "train.py").exists())
os.chdir(root)  # the program runs from its folder
sys.path.insert(0, str(root))
if not all(map(importlib.util.find_spec, ("torch", "hydra", "scipy", "transformers", "matplotlib"))):
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "-r", "requirements-dev.txt"], check=True)

# %%
import matplotlib.pyplot as plt
import torch

from model.observe import HeadEdit
from probe.sentences import word_attention
from report.api import open_model, probe_model
from training.logging import read_records

# %% [markdown]
# ## Train
# The settings are those of `train.py`. Try `settings, run = ["model.n_head=4"], Path("runs/tour_4")`.

# %%
settings = []
run = Path("runs/tour")
if not (run / "checkpoints").exists():
    subprocess.run([sys.executable, "train.py", f"out={run}", *settings], check=True)

# %% [markdown]
# ## Test every head
# `result.heads` has the head that was chosen for each question; `result.table()` is ready for `pandas.DataFrame`.

# %%
opened = open_model(run)
result = probe_model(opened)
print(result)
chosen = result.heads["number"]

# %% [markdown]
# ## Look at the head
# Rows are the words that read, columns the words that are read.

# %%
sentence = "One sunny day, the cat sat near the buses. It"
text = opened.tokenize(sentence)
[weights] = word_attention(opened.model, [text])  # [layers, heads, words, words]

figure, axes = plt.subplots(figsize=(5, 5))
axes.imshow(weights[chosen.layer, chosen.head], cmap="viridis")
axes.set_xticks(range(len(text.words)), text.words, rotation=90)
axes.set_yticks(range(len(text.words)), text.words)
axes.set_title(f"L{chosen.layer}H{chosen.head}")
figure.tight_layout()

# %% [markdown]
# ## Exchange the weights on "cat" and "buses"
# If the answer depends on this head, the next word changes from what a cat does to what buses do.

# %%
query, cat, buses = (text.word_of_token.index(text.words.index(word)) for word in ("It", "cat", "buses"))


def exchange(attention: torch.Tensor) -> torch.Tensor:
    """Returns the attention weights [B, T, T] of a head after the pronoun's weights on both nouns were exchanged."""
    changed = attention.clone()
    changed[:, query, [cat, buses]] = attention[:, query, [buses, cat]]
    return changed


tokens = torch.tensor([text.tokens], device=opened.model.device)
edit = HeadEdit(chosen.layer, chosen.head, weights=exchange)
for name, edits in (("as it is", []), ("exchanged", [edit])):
    probabilities = opened.model.logits(tokens, edits=edits)[0, -1].softmax(-1)
    values, indices = probabilities.topk(4)
    print(name, [(opened.decode(int(i)), round(float(p), 2)) for p, i in zip(values, indices, strict=True)])

# %% [markdown]
# ## Test another model
# Any causal language model of transformers: a folder, a name on the hub such as "openai-community/gpt2", or a
# checkpoint of nanoGPT or llama2.c. Without `items="stories"` it is tested on plain English. Here it is our own model,
# exported to transformers; the head and the verdict are the same.

# %%
other = Path("runs/tour-export")
if not other.exists():
    subprocess.run([sys.executable, "-m", "model.export", "to=hf", f"run={run}", f"out={other}"], check=True)
imported = probe_model(other, items="stories")
print([(head["question"], head["layer"], head["head"], head["verdict"]) for head in imported.table()])
print(imported.save("probes/tour/probe"))

# %% [markdown]
# ## How the head emerges

# %%
records = [record for record in read_records(run) if record["split"] == "probe"]
steps = [record["step"] for record in records]
accuracy = torch.tensor([record["number"]["accuracy_heads"] for record in records])  # [steps, layers, heads]

figure, axes = plt.subplots(figsize=(6, 3.5))
for layer in range(accuracy.shape[1]):
    for head in range(accuracy.shape[2]):
        is_chosen = (layer, head) == (chosen.layer, chosen.head)
        axes.plot(steps, accuracy[:, layer, head], label=f"L{layer}H{head}", linewidth=3 if is_chosen else 1)
axes.plot(steps, [record["number"]["chance_level"] for record in records], "k--", label="chance level")
axes.set(xlabel="training step", ylabel="accuracy on dev sentences", ylim=(0, 1.02))
axes.legend()
figure.tight_layout()
