#!/bin/bash
# A layer without a recurrent state has a layer of states in the cache of Nemotron-H.
#
# Version: transformers 5.22.0; 5.23.0 has a placeholder instead.
# Behaviour: DynamicCache(config=...) makes a LinearAttentionLayer for each layer "mlp" of the model, which keeps nothing of
#   the text and so never fills it.
# Seen: 5.22.0 "LinearAttentionLayer LinearAttentionLayer DynamicLayer" for the layers mamba, mlp and attention; 5.23.0
#   "LinearAttentionLayer DummyLayer DynamicLayer".
# Why it matters to us: who finds the recurrent layers of a model by its cache counts too many. rest-store verifies trees only
#   where it knows every layer with states (rest_store/generation/tree_mixers.py), so Nemotron-H has chains before 5.23.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0
cat > "$folder/layers.py" <<'PYTHON'
import sys

from transformers import DynamicCache, NemotronHConfig

config = NemotronHConfig(layers_block_type=["mamba", "mlp", "attention"], num_hidden_layers=3)
kinds = [type(layer).__name__ for layer in DynamicCache(config=config).layers]
print(sys.argv[1], *kinds)
expected = ["LinearAttentionLayer", sys.argv[2], "DynamicLayer"]
sys.exit(0 if kinds == expected else f"expected {' '.join(expected)}")
PYTHON
for release in 5.22.0:LinearAttentionLayer 5.23.0:DummyLayer; do
  "$folder/venv/bin/pip" install -q --disable-pip-version-check "transformers==${release%:*}"
  "$folder/venv/bin/python" "$folder/layers.py" "${release%:*}" "${release#*:}"
done
