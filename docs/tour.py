# %% [markdown]
# # A tour in Python
#
# Train a model in a minute, look at its link head, exchange two attention weights, test every head, open the model with
# transformers and test it again, and plot how the head emerges. The first cell sets up everything.

# %%
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

# The program runs from its folder, which holds train.py.
root = next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "train.py").exists())
os.chdir(root)
sys.path.insert(0, str(root))
if not all(map(find_spec, ("torch", "hydra", "scipy", "transformers", "matplotlib"))):
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "-r", "requirements-dev.txt"], check=True)

import matplotlib.pyplot as plt
import torch

from antecedent_lab import HeadEdit, load_metrics, open_model, probe_model

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
# `result.findings` has the answer to each question; `result.table()` is ready for `pandas.DataFrame`.

# %%
opened = open_model(run)
result = probe_model(opened)
print(result)
layer, head = result.findings["number"].place

# %% [markdown]
# ## Look at the head
# Rows are the tokens that attend, columns the tokens that they attend to.

# %%
text = opened.tokenize("One sunny day, the cat sat near the buses. It")
tokens = torch.tensor([text.tokens], device=opened.model.device)
weights = opened.model.attention_scores(tokens).softmax(-1)  # [layers, texts, heads, tokens, tokens]

names = [opened.decode(token) for token in text.tokens]
figure, axes = plt.subplots(figsize=(5, 5))
axes.imshow(weights[layer, 0, head].cpu(), cmap="viridis")
axes.set_xticks(range(len(names)), names, rotation=90)
axes.set_yticks(range(len(names)), names)
axes.set_title(f"L{layer}H{head}")
figure.tight_layout()

# %% [markdown]
# ## Exchange the weights on "cat" and "buses"
# If the answer depends on this head, the next word changes from what a cat does to what buses do.

# %%
query, cat, buses = (text.word_of_token.index(text.words.index(word)) for word in ("It", "cat", "buses"))


def exchange(attention: torch.Tensor) -> torch.Tensor:
    """Return attention weights [B, T, T] with those of the pronoun on both nouns exchanged."""
    changed = attention.clone()
    changed[:, query, [cat, buses]] = attention[:, query, [buses, cat]]
    return changed


edit = HeadEdit(layer, head, weights=exchange)
for name, edits in (("as it is", []), ("exchanged", [edit])):
    probabilities = opened.model.logits(tokens, edits=edits)[0, -1].softmax(-1)
    top = probabilities.topk(4).indices.tolist()
    print(name, [(opened.decode(token), round(float(probabilities[token]), 2)) for token in top])

# %% [markdown]
# ## Test another model
# Any causal language model of transformers: a folder, or a name on the hub such as "openai-community/gpt2". Without
# `items="stories"` it is tested on English text. Here it is our own model, exported to transformers; the head and the
# verdict are the same.

# %%
other = Path("runs/tour-export")
if not other.exists():
    subprocess.run([sys.executable, "-m", "antecedent_lab", "export", f"run={run}", f"out={other}"], check=True)
imported = probe_model(other, items="stories")
for question, finding in imported.findings.items():
    print(question, finding.place, finding.verdict)
print(imported.save("probes/tour/probe"))

# %% [markdown]
# ## How the head emerges

# %%
points = load_metrics(run).probe
steps = [point.step for point in points]
scores = [point.questions["number"] for point in points]
accuracy = torch.tensor([score.grids["accuracy"] for score in scores])  # [steps, layers, heads]

figure, axes = plt.subplots(figsize=(6, 3.5))
axes.plot(steps, accuracy.flatten(1), color="grey", linewidth=1)
axes.plot(steps, accuracy[:, layer, head], linewidth=3, label=f"L{layer}H{head}")
axes.plot(steps, [score.values["bar"] for score in scores], "k--", label="bar")
axes.set(xlabel="training step", ylabel="accuracy on dev sentences", ylim=(0, 1.02))
axes.legend()
figure.tight_layout()
