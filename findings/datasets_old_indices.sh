#!/bin/bash
# datasets: a filtered data set that release 1.13 saved comes back with all rows.
#
# Version: datasets 1.13.0 (saves; pyarrow 11.0.0) and 5.2.0 (loads).
# Behaviour: up to 1.13, save_to_disk wrote all rows of a filtered or shuffled data set, the numbers of those that belong to it
#   into indices.arrow, and the name of that file into state.json (_indices_data_files). load_from_disk of 5.2.0 reads
#   _data_files alone, and does not say that it passes over the other.
# Seen: a data set of 2 of 20 rows is 2 rows for load_from_disk of 1.13.0 and 20 rows for that of 5.2.0, without a warning.
# Why it matters to us: folders of save_to_disk are corpora. build_index/readers/dataset_folder.py reads the rows that were
#   saved: those whose numbers are in the file.
# The old release imports with Python 3.11 and pyarrow 11.0.0 if functools.wraps passes over methods that take no attributes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv old
old/bin/pip install -q --disable-pip-version-check datasets==1.13.0 pyarrow==11.0.0 "numpy<2" "pandas<2.1" dill==0.3.6 \
  multiprocess==0.70.14 fsspec==2022.11.0 huggingface_hub==0.0.19
python3 -m venv new
new/bin/pip install -q --disable-pip-version-check datasets==5.2.0
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_DATASETS_DISABLE_PROGRESS_BARS=1
old/bin/python - 2>/dev/null <<'PYTHON'
import functools

wraps = functools.wraps


def tolerant(wrapped, **options):
    def decorate(function):
        try:
            return wraps(wrapped, **options)(function)
        except AttributeError:
            return function

    return decorate


functools.wraps = tolerant
import datasets

rows = datasets.Dataset.from_dict({"text": [f"document {number}" for number in range(20)]})
chosen = rows.filter(lambda row: row["text"].endswith("7"))
chosen.save_to_disk("saved")
loaded = datasets.load_from_disk("saved")
print(f"datasets {datasets.__version__} saves {len(chosen)} rows and loads {len(loaded)}: {loaded['text']}")
assert len(chosen) == len(loaded) == 2
PYTHON
new/bin/python - <<'PYTHON'
import sys
import warnings

import datasets

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    loaded = datasets.load_from_disk("saved")
print(f"datasets {datasets.__version__} loads {len(loaded)} rows, with {len(caught)} warnings")
sys.exit(len(loaded) != 20)
PYTHON
