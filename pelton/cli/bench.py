"""`pelton bench latency|throughput MODEL`, `pelton bench serve URL`: what is measured is in pelton/measure/."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pelton.cli.options import add_json, add_settings, positive, settings_from
from pelton.config import DEFAULT_MODEL, from_environment
from pelton.errors import RequestError, UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND", parser_class=type(parser))
    latency = kinds.add_parser("latency", help="one stream alone, in this process: prefill and decode rates")
    add_model(latency)
    latency.add_argument(
        "--pp", type=positive, nargs="+", default=[128, 512], metavar="N", help="prompt lengths (128 512)"
    )
    latency.add_argument("--tg", type=positive, default=64, metavar="N", help="tokens to decode (64)")
    latency.add_argument("--repeat", type=positive, default=5, metavar="N", help="runs of each (5)")
    latency.add_argument(
        "--profile", action="store_true", help="instead: where a step's time goes, predicted and measured, node by node"
    )
    finish(latency, run_latency, "engine", "store")

    throughput = kinds.add_parser("throughput", help="many requests at once, in this process")
    add_model(throughput)
    throughput.add_argument("--num-prompts", type=positive, default=32, metavar="N", help="requests at once (32)")
    add_lengths(throughput)
    throughput.add_argument("--repeat", type=positive, default=3, metavar="N", help="runs (3)")
    finish(throughput, run_throughput, "engine", "store")

    serve = kinds.add_parser("serve", help="load on a running server that speaks OpenAI's dialect")
    serve.add_argument("url", help="its address, such as http://127.0.0.1:8000")
    serve.add_argument("--model", metavar="NAME", help="the model to ask for (the first that the server lists)")
    load = serve.add_mutually_exclusive_group()
    load.add_argument("--concurrency", type=positive, default=8, metavar="N", help="clients, one request each (8)")
    load.add_argument("--rate", type=positive_number, metavar="R", help="requests per second at random moments instead")
    serve.add_argument("--requests", type=positive, default=64, metavar="N", help="requests in all (64)")
    add_lengths(serve)
    serve.add_argument("--dialect", choices=("completions", "chat"), default="completions", help="route (completions)")
    serve.add_argument("--prompts", type=Path, metavar="FILE", help="one prompt per line instead of random ones")
    serve.add_argument("--timeout", type=positive_number, default=600, metavar="S", help="seconds per request (600)")
    serve.add_argument("--slo-ttft-ms", type=positive_number, metavar="MS", help="goodput: bound on the first token")
    serve.add_argument("--slo-tpot-ms", type=positive_number, metavar="MS", help="goodput: bound on each further one")
    serve.add_argument("--seed", type=int, default=7, metavar="N", help="of prompts and arrivals (7)")
    finish(serve, run_serve)


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, help=f"which model ({DEFAULT_MODEL})")


def add_lengths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--input-tokens", type=positive, default=128, metavar="N", help="tokens per prompt (128)")
    parser.add_argument("--output-tokens", type=positive, default=128, metavar="N", help="tokens per answer (128)")


def finish(
    parser: argparse.ArgumentParser, measure: Callable[[argparse.Namespace], dict[str, Any]], *sections: str
) -> None:
    add_json(parser)
    if sections:
        add_settings(parser, *sections)
    parser.set_defaults(measure=measure)


def positive_number(text: str) -> float:
    """For argparse: a number above 0."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError
    return number


def run(arguments: argparse.Namespace) -> int:
    document = arguments.measure(arguments)
    if arguments.json:
        print(json.dumps(document, indent=1))
    else:
        print({"latency": latency_text, "throughput": throughput_text, "serve": serve_text}[arguments.kind](document))
    return 0


def run_latency(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.profile:
        return run_profile(arguments)
    from pelton.llm import LLM
    from pelton.measure.latency import measure_latency
    from pelton.measure.rates import predicted_speed
    from pelton.runner.assembly import prepare

    settings = settings_from(arguments, model=arguments.model)
    predicted = predicted_speed(prepare(settings), arguments.pp, [1])
    start = time.perf_counter()
    with LLM.from_settings(settings) as llm:
        load_s = time.perf_counter() - start
        found = measure_latency(llm, arguments.pp, arguments.tg, arguments.repeat)
    for row, expected in zip(found["rows"], predicted.rows, strict=True):
        row["predicted_tokens_per_s"] = expected.tokens_per_s
    return {"model": arguments.model, "load_s": load_s, **found}


def run_profile(arguments: argparse.Namespace) -> dict[str, Any]:
    from pelton.measure.profile import profile_model

    steps = profile_model(settings_from(arguments, model=arguments.model), arguments.pp, arguments.repeat)
    return {"model": arguments.model, "steps": steps}


def profile_text(document: Mapping[str, Any]) -> str:
    lines = [document["model"]]
    for step in document["steps"]:
        predicted, measured = (sum(row[key] for row in step["rows"]) for key in ("predicted_s", "measured_s"))
        lines.append(f"{step['name']}: {measured * 1e3:.2f} ms measured, {predicted * 1e3:.2f} ms predicted")
        for row in step["rows"]:
            name = f"{row['kernel']} {row['formats']}".rstrip()
            share = row["measured_s"] / measured
            times = f"{row['nodes']:>4} x {row['measured_s'] * 1e3:9.3f} ms {share:5.0%}"
            lines.append(f"  {name:<40} {times}  predicted {row['predicted_s'] * 1e3:9.3f} ms, bound by {row['bound']}")
    return "\n".join(lines)


def latency_text(document: Mapping[str, Any]) -> str:
    if "steps" in document:
        return profile_text(document)
    lines = [f"{document['model']}: loaded in {document['load_s']:.2f} s, {document['threads']} threads"]
    for row in document["rows"]:
        share = (
            f", {row['share_of_read_bandwidth']:.0%} of the read bandwidth" if "share_of_read_bandwidth" in row else ""
        )
        lines.append(
            f"  {row['name']:<12} {row['tokens_per_s']:8.1f} tokens/s ({row['min']:.1f} to {row['max']:.1f}){share}, "
            f"predicted {row['predicted_tokens_per_s']:.1f}"
        )
    return "\n".join(lines)


def run_throughput(arguments: argparse.Namespace) -> dict[str, Any]:
    from pelton.llm import LLM
    from pelton.measure.throughput import measure_throughput

    with LLM.from_settings(settings_from(arguments, model=arguments.model)) as llm:
        found = measure_throughput(
            llm, arguments.num_prompts, arguments.input_tokens, arguments.output_tokens, arguments.repeat
        )
    return {"model": arguments.model, **found}


def throughput_text(document: Mapping[str, Any]) -> str:
    return (
        f"{document['model']}: {document['num_prompts']} requests of {document['prompt_tokens']} + "
        f"{document['output_tokens']} tokens, at most {document['max_num_seqs']} at once, "
        f"{document['threads']} threads\n"
        f"  {document['output_tokens_per_s']:.1f} output tokens/s, {document['total_tokens_per_s']:.1f} tokens/s in "
        f"all, {document['requests_per_s']:.2f} requests/s"
    )


def run_serve(arguments: argparse.Namespace) -> dict[str, Any]:
    import asyncio

    from pelton.measure.load import Ask, Target, closed_loop, open_loop, random_asks
    from pelton.measure.sse_client import Endpoint, HttpError, get_json
    from pelton.measure.summary import summarise

    endpoint = Endpoint.parse(arguments.url)
    api_key = from_environment().api_key
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    if arguments.prompts is not None:
        lines = _prompts(arguments.prompts)
        asks = [Ask(lines[index % len(lines)], arguments.output_tokens) for index in range(arguments.requests)]
    else:
        asks = random_asks(
            arguments.requests,
            arguments.input_tokens,
            arguments.output_tokens,
            as_text=arguments.dialect == "chat",
            seed=arguments.seed,
        )

    async def measure() -> dict[str, Any]:
        try:
            model = arguments.model or (await get_json(endpoint, "/v1/models", headers))["data"][0]["id"]
        except HttpError as error:
            raise RequestError(f"`{endpoint}` does not list its models: {error}", "give one with --model") from error
        target = Target(endpoint, model, arguments.dialect, headers, {"ignore_eos": True})
        if arguments.rate is None:
            outcomes = await closed_loop(target, asks, arguments.concurrency, arguments.timeout)
        else:
            outcomes = await open_loop(target, asks, arguments.rate, arguments.timeout, arguments.seed)
        load = {"concurrency": arguments.concurrency} if arguments.rate is None else {"rate": arguments.rate}
        found = summarise(outcomes, arguments.slo_ttft_ms, arguments.slo_tpot_ms)
        return {"url": str(endpoint), "model": model, "dialect": arguments.dialect, **load, **found}

    return asyncio.run(measure())


def _prompts(file: Path) -> list[str]:
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"`{file}` can't be read: {error}") from error
    if not lines:
        raise UsageError(f"`{file}` has no prompts", "write one per line")
    return lines


def serve_text(document: Mapping[str, Any]) -> str:
    load = f"{document['concurrency']} at once" if "concurrency" in document else f"{document['rate']} per second"
    lines = [
        f"{document['url']}, {document['model']}: {document['answered']} of {document['requests']} requests answered, "
        f"{load}, in {document['duration_s']:.1f} s",
        f"  {document['output_tokens_per_s']:.1f} output tokens/s, {document['total_tokens_per_s']:.1f} tokens/s in "
        f"all, {document['requests_per_s']:.2f} requests/s, goodput {document['goodput_requests_per_s']:.2f} per s",
    ]
    for name in ("time_to_first_token_ms", "inter_token_ms", "time_per_output_token_ms", "end_to_end_ms"):
        found = document[name]
        if found is not None:
            values = "  ".join(f"{key} {value:.1f}" for key, value in found.items())
            lines.append(f"  {name.removesuffix('_ms').replace('_', ' '):<22} {values} ms")
    lines += [f"  failed: {count} x {reason}" for reason, count in document["failures"].items()]
    return "\n".join(lines)
