"""The tables of training that samples."""

from __future__ import annotations

from page_tables.table import SESSION, digits, find, markdown, results


def rollouts() -> str:
    """Tokens per pass and processor time of each epoch of a training run that samples."""
    runs = results("rollouts")
    plain = runs["one by one, no drafts"]
    drafted = runs["one by one, memory"]
    means = [
        tokens / passes for tokens, passes in zip(drafted["tokens"], drafted["passes"], strict=True)
    ]
    table_rows = [
        ["M with history (1 without)", *map(digits, means)],
        [
            "seconds of the processor without drafts",
            *(f"{seconds:.1f}" for seconds in plain["seconds"]),
        ],
        ["with history", *(f"{seconds:.1f}" for seconds in drafted["seconds"])],
    ]
    return markdown(["", *(f"epoch {number + 1}" for number in range(len(means)))], table_rows)


def rollouts_replayed() -> str:
    """M of the last epoch's samples by method and by the epochs known before."""
    measured = results("peers_rollouts")
    # In the order in which they were measured.
    known = dict.fromkeys(row["knows"] for row in measured)
    labels = ["nothing", "epoch 1", "epochs 1 and 2", "epochs 1 to 3"]
    methods = {
        "prompt lookup, 3-gram": "prompt lookup, 3-gram",
        "suffix decoding": "suffix decoding",
        f"`{SESSION}`, history": "session",
    }
    table_rows = []
    for label, knows in zip(labels, known, strict=True):
        means = [
            find(measured, knows=knows, drafting=drafting)["M"] for drafting in methods.values()
        ]
        table_rows.append([label, *map(digits, means)])
    return markdown(["known before", *methods], table_rows)
