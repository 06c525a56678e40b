"""The command `rest-store bench replay`: M of sessions, their sources, history, and known rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from rest_store.bench.baselines import PromptLookupRule, RestRule
from rest_store.bench.compaction import WHOLE, compacted, contexts
from rest_store.bench.cost_model import CostModel, make_batches
from rest_store.bench.history_replay import AGAIN, OTHERS, Variant, measure_known
from rest_store.bench.measurement_options import (
    Destination,
    calibration_option,
    cost_model_options,
    datastores_option,
    every_option,
    history_from_option,
    load_calibration,
    recordings_option,
    result_options,
    tokenizer_option,
)
from rest_store.bench.recorded_drafters import beside_heads, other_drafters
from rest_store.bench.recorded_grammar import recorded_grammar, satisfying
from rest_store.bench.recorded_history import holding
from rest_store.bench.recordings import (
    Recording,
    amount,
    read_all,
    remembered,
    tokenizer_identity,
    unfitted,
    without,
)
from rest_store.bench.replay import Outcome, Tokens, replay, walk
from rest_store.bench.results import write_result
from rest_store.command_options import RenamedOptions, json_schema_option, max_nodes_option
from rest_store.datastore.render import counted
from rest_store.datastore.store import Store
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.grammar import Grammar
from rest_store.drafting.sources import PromptLookup, RecycledLogits, require_sources
from rest_store.live.open_store import open_datastores

_REST_NODES = 24  # of REST's rule
_LOOKUP_NODES = 10  # of prompt lookup's rule


@click.command(
    cls=RenamedOptions,
    renamed={"--memory": "--history", "--remember": "--history-from"},
    epilog="Example: rest-store bench replay --recordings traces.jsonl.gz --datastore python.ds",
)
@recordings_option()
@datastores_option
@tokenizer_option
@calibration_option
@max_nodes_option((16, 64), multiple=True)
@every_option
@click.option(
    "--no-ablations", is_flag=True, help="Leave out the rows with each source alone or left out."
)
@click.option(
    "--history",
    is_flag=True,
    help="Replay also with the other recordings in a live datastore.",
)
@history_from_option
@click.option(
    "--again",
    is_flag=True,
    help=(
        "Replay also with the outputs of all recordings in a live datastore, the replayed one, too,"
        " as when the same is asked again; trees and chains."
    ),
)
@click.option(
    "--groups",
    is_flag=True,
    help=(
        "With --history or --history-from, also search the history of the same task ahead of the"
        " rest, and alone."
    ),
)
@click.option(
    "--compact",
    metavar="N",
    type=click.IntRange(1),
    help=(
        "Replay also as after a compaction: with prompts cut to their first 1,500 and last N"
        " tokens, and with these and an archive of the tokens that were cut. Prompts that are"
        " shorter are left out."
    ),
)
@json_schema_option("A JSON schema that each output satisfies: replay also with its grammar.")
@cost_model_options
@result_options
def replay_command(
    recordings: tuple[Path, ...],
    datastores: tuple[Path, ...],
    tokenizer: str | None,
    calibration: Path | None,
    max_nodes: tuple[int, ...],
    every: int,
    no_ablations: bool,
    history: bool,
    history_from: tuple[Path, ...],
    again: bool,
    groups: bool,
    compact: int | None,
    json_schema: str | None,
    cost_model: Path | None,
    batches: tuple[int, ...],
    drafting_us: float | None,
    out: Destination,
) -> None:
    """Replay recordings without the model, and print M, tokens per forward pass.

    Recordings are JSON lines, as ids or texts: prompt and output, as `bench record` writes them;
    messages, or messages and choices, as in logs of an OpenAI-compatible server; ids with turns, as
    in traces of agents. For your own logs, `--recordings logs.jsonl --tokenizer MODEL --history`
    shows the M that remembering would have given, in their order.

    Figures are of the recordings that the calibration was not fitted to: all tokens, the median
    recording, and families. In a replay every step drafts as many nodes as it may; generation cuts
    trees where another node costs more time than it saves, so its M is lower. As in a program,
    sessions learn from one recording to the next how far scores and long matches can be believed.
    The Brier skill is 1 where scores are the outcomes, and 0 where they say no more than the share
    of accepted nodes. The AUC is the chance that an accepted node has a greater score than another.

    With --compact, prompts have lost their middle, as after a compaction of an agent's context. An
    archive is a reference of the session: it is searched, and the model does not read it.

    With --json-schema, further rows have a grammar among the sources, which keeps from recording to
    recording the choices that it saw.

    With --cost-model, speeds relative to plain decoding are modelled, and drafts are cut. The model
    takes all sequences of a batch to be alike, and drafts for one after the other.
    """
    stores = open_datastores(datastores)
    require_sources("--datastore", list(stores.values()))
    model = None if cost_model is None else CostModel.read(cost_model)
    has_history = bool(history or history_from or again)
    identity = tokenizer_identity(stores, tokenizer) if has_history else None
    used = load_calibration(calibration)
    chosen = read_all(recordings, stores, tokenizer)[::every]
    reported = unfitted(chosen, used, "bench replay")
    left_out = without(chosen, reported)
    if compact is not None:
        shorter = len(reported)
        reported = compacted(reported, compact)
        shorter -= len(reported)
        left_out += f"; prompts too short to be cut: {shorter}"
    known = remembered(history_from, reported, stores, tokenizer)
    orders = {
        **(OTHERS if history else {}),
        **{name: holding(others) for name, others in known.items()},
        **({AGAIN: holding(chosen)} if again else {}),
    }

    def show(drafting: str, nodes: int, outcome: Outcome) -> None:
        click.echo(f"{drafting}, {counted(nodes, 'node')}: {outcome.summary()}")

    click.echo(f"{amount(reported)}{left_out}")
    click.echo("M, tokens per forward pass, and its 95% interval:")
    results: dict[str, Any] = {
        "datastores": {name: store.token_count for name, store in stores.items()},
        "reported": len(reported),
    }
    variants = [Variant(counted(nodes, "node"), nodes) for nodes in max_nodes]
    if again:
        variants += [
            Variant(f"chains of {counted(nodes, 'node')}", nodes, chains=True)
            for nodes in max_nodes
        ]
    grammar = None
    if json_schema is not None:
        grammar = recorded_grammar(json_schema, reported, stores, tokenizer)
        results["satisfying"] = satisfying(reported, grammar)
        click.echo(f"outputs that satisfy the schema: {results['satisfying']} of {len(reported)}")
    if model is None:
        ablations = not no_ablations
        table_rows = measure(
            reported,
            stores,
            used,
            budgets=max_nodes,
            ablations=ablations,
            grammar=grammar,
            progress=show,
        )
        for row in table_rows:
            if row["drafting"] == "session":
                click.echo(
                    f"calibration error with {counted(row['nodes'], 'node')}:"
                    f" {row['calibration_error']:.4f}, Brier skill {row['brier_skill']:.3f},"
                    f" AUC {row['auc']:.3f}"
                )
        results["rows"] = table_rows
    else:
        click.echo(f"speeds are modelled: {model.source}; drafting {_drafting(drafting_us)}")
        steps = make_batches(model, batches, drafting_us)
        variants = []
        for batch in steps:
            for chains in (False, True):
                name = f"{'chains' if chains else 'trees'}, batch of {batch.sequences}"
                variants.append(Variant(name, max(max_nodes), batch, chains))
        others = []
        for line, row in other_drafters(reported, steps):
            click.echo(line)
            others.append(row)
        beside = []
        for line, row in beside_heads(reported, list(stores.values()), used, steps, max(max_nodes)):
            click.echo(line)
            beside.append(row)
        results |= {
            "cost_model": model.source,
            "drafting": _drafting(drafting_us),
            "other_drafters": others,
            "beside": beside,
        }
    if orders or model is not None or compact is not None:
        results["known"] = measure_known(
            chosen,
            reported,
            stores,
            used,
            variants=variants,
            orders=orders,
            tokenizer=identity,
            groups=groups,
            contexts=[WHOLE] if compact is None else contexts(compact),
            progress=click.echo,
        )
    write_result(
        out, "replay", click.get_current_context().params, ("numpy", "rest-store"), results
    )


def _drafting(microseconds: float | None) -> str:
    return "as measured here" if microseconds is None else f"{microseconds:g} us a sequence"


def measure(
    recordings: Sequence[Recording],
    stores: Mapping[str, Store],
    calibration: Calibration,
    *,
    budgets: Sequence[int] = (16, 64),
    ablations: bool = True,
    grammar: Grammar | None = None,
    progress: Callable[[str, int, Outcome], None] | None = None,
) -> list[dict[str, Any]]:
    """Replay recordings with the session, its sources, and the rules that it is compared with.

    Args:
        recordings: recordings to report on; `calibration` must not have been fitted to them.
        stores: datastores by name.
        calibration: the calibration of the session; not changed.
        budgets: nodes of a step.
        ablations: whether to replay also with each source alone and with each left out.
        grammar: of the outputs; None: they have none.
        progress: called after each row with its name, nodes and outcome.

    Returns:
        One row for each rule and budget: "drafting", "nodes" and the figures of `Outcome.as_json`.
    """
    table_rows: list[dict[str, Any]] = []

    def add(drafting: str, nodes: int, outcome: Outcome) -> None:
        table_rows.append({"drafting": drafting, "nodes": nodes, **outcome.as_json()})
        if progress is not None:
            progress(drafting, nodes, outcome)

    def add_rest(name: str, searched: Sequence[Store], max_suffix: int = 16) -> None:
        def opening(prompt: Tokens) -> nullcontext[RestRule]:
            return nullcontext(RestRule(searched, prompt, max_suffix=max_suffix))

        add(f"REST's rule, {name}", _REST_NODES, walk(recordings, opening, max_nodes=_REST_NODES))

    def add_session(name: str, nodes: int, own: list[object]) -> None:
        add(name, nodes, replay(recordings, own, calibration.copy(), max_nodes=nodes))

    combined = {name: [store] for name, store in stores.items()}
    if len(stores) > 1:
        combined["longest match of all"] = list(stores.values())
    for name, searched in combined.items():
        add_rest(name, searched)
    for name, searched in [*combined.items()][-1:]:
        add_rest(f"{name}, suffixes of at most 2", searched, max_suffix=2)
    outcome = walk(
        recordings, lambda prompt: nullcontext(PromptLookupRule(prompt)), max_nodes=_LOOKUP_NODES
    )
    add("prompt lookup, 3-gram, 10 tokens", _LOOKUP_NODES, outcome)
    local: dict[str, object] = {
        "prompt lookup": PromptLookup(),
        "recycled logits": RecycledLogits(),
    }
    if not any(recording.top_k.size for recording in recordings):
        del local["recycled logits"]
    sources = {**local, **stores}

    for nodes in budgets:
        add_session("session", nodes, list(sources.values()))
        if grammar is not None:
            add_session("session with the grammar", nodes, [*sources.values(), grammar.copy()])
            add_session("session, the grammar alone", nodes, [grammar.copy()])
        if not ablations or len(sources) == 1:
            continue
        for name in sources:
            add_session(f"session, {name} alone", nodes, [sources[name]])
            others = [source for other, source in sources.items() if other != name]
            add_session(f"session without {name}", nodes, others)
    return table_rows
